"""MySQL and MariaDB as sinks: staging by LOAD DATA LOCAL, merging by one transaction a batch.

DDL is not transactional here: it comes before the transaction, and is undone if that does not come.
"""

from __future__ import annotations

from tailrace import config
from tailrace.errors import ConfigError
from tailrace.sinks.sql.dialect import Dialect
from tailrace.sinks.sql.mysql.catalog import MySqlCatalog
from tailrace.sinks.sql.mysql.encoding import MySqlEncoding
from tailrace.sinks.sql.mysql.flavor import MARIADB, MYSQL, Flavor
from tailrace.sinks.sql.mysql.naming import MySqlNaming
from tailrace.sinks.sql.mysql.reading import MySqlReading
from tailrace.sinks.sql.mysql.server import MySqlServer
from tailrace.sinks.sql.mysql.session import database_of
from tailrace.sinks.sql.mysql.staging import MySqlStaging
from tailrace.sinks.sql.mysql.statements import MySqlStatements
from tailrace.sinks.sql.mysql.types import MySqlTypes
from tailrace.sinks.sql.sink import SqlSink


class MySqlSink(SqlSink):
    """`mysql://…` as a sink."""

    flavor = MYSQL

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        url = pipeline.sinks[name].url
        if not database_of(url):
            hint = f"{config.scheme(url)}://user@host:3306/database"
            raise ConfigError(f"sinks.{name}.url names no database", hint=hint)
        super().__init__(mysql_dialect(url, self.flavor), pipeline, name)


class MariaDbSink(MySqlSink):
    """`mariadb://…` as a sink."""

    flavor = MARIADB


def mysql_dialect(url: str, flavor: Flavor) -> Dialect:
    naming = MySqlNaming(database_of(url))
    return Dialect(
        name=flavor.name,
        server=MySqlServer(url, flavor),
        naming=naming,
        types=MySqlTypes(flavor),
        encoding=MySqlEncoding(flavor),
        reading=MySqlReading(flavor),
        catalog=MySqlCatalog(),
        staging=MySqlStaging(naming, flavor),
        statements=MySqlStatements(naming, flavor),
    )
