"""PostgreSQL as a sink: staging by COPY, merging by one transaction a batch.

Rows travel in binary form. Tasks fill unlogged staging tables; a few rows travel in the receipt instead, and become
array parameters of the merging statements.
"""

from __future__ import annotations

from tailrace import config
from tailrace.sinks.sql.dialect import Dialect
from tailrace.sinks.sql.postgres.catalog import PostgresCatalog
from tailrace.sinks.sql.postgres.encoding import PostgresEncoding
from tailrace.sinks.sql.postgres.naming import PostgresNaming
from tailrace.sinks.sql.postgres.reading import PostgresReading
from tailrace.sinks.sql.postgres.server import PostgresServer
from tailrace.sinks.sql.postgres.staging import PostgresStaging
from tailrace.sinks.sql.postgres.statements import PostgresStatements
from tailrace.sinks.sql.postgres.types import PostgresTypes
from tailrace.sinks.sql.sink import SqlSink


class PostgresSink(SqlSink):
    """`postgresql://…` as a sink."""

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        super().__init__(postgres_dialect(pipeline.sinks[name].url), pipeline, name)


def postgres_dialect(url: str) -> Dialect:
    naming = PostgresNaming()
    return Dialect(
        name="PostgreSQL",
        server=PostgresServer(url, naming),
        naming=naming,
        types=PostgresTypes(),
        encoding=PostgresEncoding(),
        reading=PostgresReading(),
        catalog=PostgresCatalog(),
        staging=PostgresStaging(naming),
        statements=PostgresStatements(naming),
    )
