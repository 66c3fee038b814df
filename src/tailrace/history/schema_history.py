"""Schema history: every version that a table had, by position and by time.

Guarantees: `record` is durable when it returns, and may be repeated: what a restart delivers again is found, not added.
Versions of a table are in the order of the source's log. Positions are opaque here; whoever makes a history says how
they are ordered, with `Source.reached`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tailrace.errors import StateError
from tailrace.history.versions import Retention, SchemaVersion
from tailrace.model.schema import TableSchema

Versions = dict[str, list[SchemaVersion]]
Reached = Callable[[str, str], bool]
"""Whether the first position is at or past the second one."""

Told = tuple[TableSchema, str, datetime]
"""A version of a table, the position of its first change and when that was committed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryStore(Protocol):
    """Where a history lies. `save` replaces all of it, durably when it returns."""

    def load(self) -> Versions: ...
    def save(self, versions: Versions) -> None: ...
    def close(self) -> None: ...


class SchemaHistory:
    """Safe to be called by several threads. One history has one writer: the stores that others can reach see to it."""

    def __init__(
        self,
        store: HistoryStore,
        reached: Reached,
        retention: Retention | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._reached, self._now = store, reached, now
        self.retention = retention or Retention()
        self._lock = threading.Lock()
        self._versions = store.load()

    # --- writing

    def record(self, schema: TableSchema, position: str, at: datetime) -> SchemaVersion | None:
        """The version that a change at `position` is of: the one that is known, or a new one.

        None for one from before the beginning of what is kept: it is not added any more. Raises StateError where
        another version is known to have been in force there.
        """
        return self._record(schema.table, schema, position, at)

    def record_drop(self, table: str, position: str, at: datetime) -> SchemaVersion | None:
        """The table is gone from here on; otherwise as `record`."""
        return self._record(table, None, position, at)

    def _record(self, table: str, schema: TableSchema | None, position: str, at: datetime) -> SchemaVersion | None:
        with self._lock:
            known = self._versions.get(table, [])
            if known and not self._is_new(known, schema, position):
                return self._found(table, known, schema, position)
            number = known[-1].number + 1 if known else 1
            version = SchemaVersion(number, schema, position, _microseconds(at))
            kept = self.retention.kept([*known, version], self._now_us())
            self._replace(self._versions | {table: kept})
            return version

    def _is_new(self, known: list[SchemaVersion], schema: TableSchema | None, position: str) -> bool:
        """Whether it follows the last one, and is another. Two changes of one transaction have the same position."""
        last = known[-1]
        if last.schema == schema or not self._reached(position, last.position):
            return False
        return not any(v.schema == schema for v in self._at(known, position))

    def _found(
        self, table: str, known: list[SchemaVersion], schema: TableSchema | None, position: str
    ) -> SchemaVersion | None:
        in_force = self._in_force(known, position)
        if in_force is None:
            return None
        for version in (in_force, *self._at(known, position)):
            if version.schema == schema:
                return version
        raise StateError(
            f"the history of {table} has version {in_force.number} at {position}, and another one came from there",
            hint="is it the history of another source? Give this one a place of its own",
            table=table,
        )

    def learn(self, told: Iterable[Told]) -> int:
        """Versions as a stream delivers them, in its order: the new ones are added, all in one save. Says how many.

        What is delivered again is known, whatever the source makes of it by now: nothing is put before a table's last
        version. Columns are compared by name, type and key.
        """
        with self._lock:
            versions, added = dict(self._versions), 0
            for schema, position, at in told:
                known = versions.get(schema.table, [])
                if not self._is_known(known, schema, position):
                    number = known[-1].number + 1 if known else 1
                    version = SchemaVersion(number, schema, position, _microseconds(at))
                    versions[schema.table] = self.retention.kept([*known, version], self._now_us())
                    added += 1
            if added:
                self._replace(versions)
            return added

    def _is_known(self, known: list[SchemaVersion], schema: TableSchema, position: str) -> bool:
        if not known:
            return False
        shape = _shape(schema)
        if _shape(known[-1].schema) == shape or not self._reached(position, known[-1].position):
            return True
        return any(_shape(version.schema) == shape for version in self._at(known, position))

    def apply_retention(self, retention: Retention | None = None) -> int:
        """Forget what need not be kept any more; says how many versions that were."""
        with self._lock:
            rule, now_us = retention or self.retention, self._now_us()
            kept = {table: rule.kept(versions, now_us) for table, versions in self._versions.items()}
            removed = sum(len(self._versions[table]) - len(versions) for table, versions in kept.items())
            if removed:
                self._replace(kept)
            return removed

    def _replace(self, versions: Versions) -> None:
        """Durable first: what could not be saved is not known either."""
        self._store.save(versions)
        self._versions = versions

    def close(self) -> None:
        self._store.close()

    # --- reading

    def tables(self) -> list[str]:
        return sorted(self._versions)

    def versions(self, table: str) -> list[SchemaVersion]:
        """All that are kept, the oldest first."""
        return list(self._versions.get(table, ()))

    def version(self, table: str, number: int) -> SchemaVersion | None:
        return next((v for v in self._versions.get(table, ()) if v.number == number), None)

    def latest(self, table: str) -> TableSchema | None:
        """None for a table that is gone, or was never there."""
        known = self._versions.get(table)
        return known[-1].schema if known else None

    def is_latest(self, schema: TableSchema) -> bool:
        """Whether the last version of its table has these columns, and this key."""
        known = self._versions.get(schema.table, [])
        return bool(known) and _shape(known[-1].schema) == _shape(schema)

    def schema_at(self, table: str, *, position: str | None = None, time: datetime | None = None) -> TableSchema | None:
        """The columns that a change at a position has, or one that was committed at a time; one of the two is given."""
        if (position is None) == (time is None):
            raise TypeError("schema_at takes either a position or a time")
        known = self._versions.get(table, [])
        if position is not None:
            found = self._in_force(known, position)
        else:
            assert time is not None
            at_us = _microseconds(time)
            found = next((v for v in reversed(known) if v.at_us <= at_us), None)
        return None if found is None else found.schema

    def _in_force(self, known: list[SchemaVersion], position: str) -> SchemaVersion | None:
        return next((v for v in reversed(known) if self._reached(position, v.position)), None)

    def _at(self, known: list[SchemaVersion], position: str) -> list[SchemaVersion]:
        return [v for v in known if self._reached(position, v.position) and self._reached(v.position, position)]

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000)


def _shape(schema: TableSchema | None) -> object:
    return schema and ([(column.name, column.type) for column in schema.columns], schema.key)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
