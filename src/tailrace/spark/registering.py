"""`tailrace.register`: apart from the data source, which an older Spark can not even import."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.spark.versions import INSTALL, is_supported, refusal


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to this session."""
    if not is_supported(spark.version):
        raise ConfigError(refusal(spark.version), hint=INSTALL)
    from tailrace.spark.datasource import TailraceDataSource

    spark.dataSource.register(TailraceDataSource)
