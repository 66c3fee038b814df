"""SQLite as a sink: one file, one writer; readers see whole source transactions only.

Tasks stage into files of their own, at the same time; the driver attaches them and merges in one transaction.
"""

from __future__ import annotations

from pathlib import Path

from tailrace import config
from tailrace.sinks.sql.dialect import Dialect
from tailrace.sinks.sql.sink import SqlSink
from tailrace.sinks.sql.sqlite.catalog import SqliteCatalog
from tailrace.sinks.sql.sqlite.encoding import SqliteEncoding
from tailrace.sinks.sql.sqlite.file import SqliteFile
from tailrace.sinks.sql.sqlite.naming import SqliteNaming
from tailrace.sinks.sql.sqlite.reading import SqliteReading
from tailrace.sinks.sql.sqlite.server import SqliteServer
from tailrace.sinks.sql.sqlite.staging import SqliteStaging
from tailrace.sinks.sql.sqlite.statements import SqliteStatements
from tailrace.sinks.sql.sqlite.types import SqliteTypes

MAX_PARTS = 8  # SQLite attaches ten databases at the most


class SqliteSink(SqlSink):
    """`sqlite:///…` as a sink."""

    max_parts = MAX_PARTS
    is_local_only = True

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        path = config.sqlite_path(pipeline.sinks[name].url)
        file = SqliteFile(name, path, _scratch(pipeline, name, path))
        super().__init__(sqlite_dialect(file), pipeline, name)


def sqlite_dialect(file: SqliteFile) -> Dialect:
    naming = SqliteNaming()
    return Dialect(
        name="SQLite",
        server=SqliteServer(file),
        naming=naming,
        types=SqliteTypes(),
        encoding=SqliteEncoding(),
        reading=SqliteReading(),
        catalog=SqliteCatalog(),
        staging=SqliteStaging(file, naming),
        statements=SqliteStatements(naming),
    )


def _scratch(pipeline: config.Pipeline, name: str, path: Path) -> Path:
    """Where tasks stage: in the state folder, or beside the sink's file where that is in an object store."""
    if "://" in pipeline.state:
        return path.with_name(f".{path.name}.staged")
    return Path(pipeline.state) / "staged" / name
