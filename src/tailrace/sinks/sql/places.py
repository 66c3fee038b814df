"""Where a sink's tables are: those that readers know, the copies that grow beside them, and what is staged."""

from __future__ import annotations

import hashlib
import uuid

from tailrace import config
from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Dialect, Target

COPIES = "copy_"


class Places:
    """The places of one pipeline's sink. Nobody else's tables are in `copy_of` and `new_staging`."""

    def __init__(self, dialect: Dialect, settings: config.Sink, owner: str) -> None:
        self._dialect, self._settings, self._owner = dialect, settings, owner

    def table(self, schema: TableSchema, *, is_beside: bool = False) -> Target:
        """Where a table's rows go; with `is_beside`, those of a copy that is to take its place."""
        if not self.has(schema):
            raise SinkRejected(
                f"{schema.table} would be {self._target(schema)} in the sink, where tailrace keeps its own tables",
                hint="exclude the table, or give its schema another name under sinks.<name>.schemas",
                table=schema.table,
            )
        return self.copy_of(schema.table) if is_beside else self._target(schema)

    def has(self, schema: TableSchema) -> bool:
        """Whether there is a place for a table of this name."""
        return not self._dialect.is_own(self._target(schema), self._settings.url)

    def _target(self, schema: TableSchema) -> Target:
        target = self._dialect.target(schema, self._settings.schemas, self._settings.url)
        if schema.table in self._settings.tables:
            return Target(target.schema, self._settings.tables[schema.table])
        return target

    def copy_of(self, table: str) -> Target:
        digest = _digest(f"{self._owner}\0{table}")
        return self._dialect.own(f"{COPIES}{digest}", self._settings.url)

    @property
    def staging_prefix(self) -> str:
        return f"staged_{_digest(self._owner)}_"

    def new_staging(self) -> str:
        """Never used before, so that a task which is tried again does not meet its first try. Quoted."""
        name = f"{self.staging_prefix}{uuid.uuid4().hex[:16]}"
        return self._dialect.qualified(self._dialect.own(name, self._settings.url))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
