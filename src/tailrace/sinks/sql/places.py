"""Where a sink's tables are: those that readers know, the copies that grow beside them, and what is staged."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

from tailrace import config
from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Naming, Target

COPY_PREFIX = "copy_"


class Places:
    """The places of one pipeline's sink. Nobody else's tables are in `copy_of` and `new_staging`."""

    def __init__(self, naming: Naming, settings: config.Sink, owner: str) -> None:
        self._naming, self._settings, self._owner = naming, settings, owner

    def table(self, schema: TableSchema, *, is_beside: bool = False) -> Target:
        """Where a table's rows go; with `is_beside`, those of a copy that is to take its place."""
        if not self.has(schema):
            raise SinkRejected(
                f"{schema.table} would be {self.name(schema)} in the sink, where tailrace keeps its own tables",
                hint="exclude the table, or give its schema another name under sinks.<name>.schemas",
                table=schema.table,
            )
        return self.copy_of(schema.table) if is_beside else self._target(schema)

    def name(self, schema: TableSchema) -> str:
        """What the table is called in the sink, or would be if there were a place for it."""
        return str(self._target(schema))

    def has(self, schema: TableSchema) -> bool:
        """Whether there is a place for a table of this name."""
        return not self._naming.is_own(self._target(schema))

    def _target(self, schema: TableSchema) -> Target:
        target = self._naming.target(schema, self._settings.schemas)
        if schema.table in self._settings.tables:
            return Target(target.schema, self._settings.tables[schema.table])
        return target

    def copy_of(self, table: str) -> Target:
        digest = _digest(f"{self._owner}\0{table}")
        return self._naming.own(f"{COPY_PREFIX}{digest}")

    @property
    def staging_prefix(self) -> str:
        return f"staged_{_digest(self._owner)}_"

    def new_staging(self) -> str:
        """Never used before, so that a task which is tried again does not meet its first try. Quoted."""
        name = f"{self.staging_prefix}{uuid.uuid4().hex[:16]}"
        return self._naming.qualified(self._naming.own(name))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def refuse_collision(source: str, target: str, others: Iterable[tuple[str, str]], *, folds: bool = True) -> None:
    """Refuse a source table that would share a table of the sink with another one; most sinks fold case.

    `others` are pairs of a source table and its target.
    """
    for other, place in others:
        if other != source and (place.lower() == target.lower() if folds else place == target):
            raise SinkRejected(
                f"tables {other} and {source} would both be {target} in the sink",
                hint="give one of their schemas another name under sinks.<name>.schemas, or exclude one table",
            )
