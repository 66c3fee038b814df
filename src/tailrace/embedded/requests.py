"""Snapshots that are asked for while the stream flows: begun, paused, resumed, stopped. All of it is durable."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailrace.embedded.control import SnapshotControl
from tailrace.embedded.ledger import Ledger
from tailrace.errors import Misuse
from tailrace.model.checkpoint import TableCopy
from tailrace.model.names import parse_table, table_name
from tailrace.model.schema import TableSchema


class Requests:
    """Safe to be used by several threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def add(self, table: str, where: str, tables: Mapping[str, TableSchema]) -> SnapshotControl:
        """`tables` are those of the stream."""
        with self._ledger.lock:
            schema = self._readable(table, tables)
            copy = TableCopy(schema, (), where=where, generation=self._ledger.checkpoint.snapshots + 1)
            self._ledger.save_copy(copy)
        return SnapshotControl(self, schema.table, copy.generation)

    def under_way(self) -> list[SnapshotControl]:
        known = self._ledger.known
        copies = () if known is None else known.copies
        return [SnapshotControl(self, each.schema.table, each.generation) for each in copies if not each.visibility]

    def of(self, table: str, generation: int) -> TableCopy | None:
        """A snapshot that is under way; one that had to begin again has a later generation."""
        copies = self._ledger.checkpoint.copies
        return next((each for each in copies if each.schema.table == table and each.generation >= generation), None)

    def pause(self, table: str, generation: int, *, is_paused: bool) -> bool:
        """Or let it go on; False if it is over."""
        with self._ledger.lock:
            found = self.of(table, generation)
            if found is not None:
                self._ledger.save_copy(msgspec.structs.replace(found, is_paused=is_paused))
            return found is not None

    def stop(self, table: str, generation: int) -> bool:
        with self._ledger.lock:
            found = self.of(table, generation)
            if found is not None:
                self._ledger.drop_copy(table)
            return found is not None

    def _readable(self, table: str, tables: Mapping[str, TableSchema]) -> TableSchema:
        """The table, if it can be read on demand."""
        named = parse_table(table)
        schema = None if named is None else tables.get(table_name(*named))
        if schema is None:
            known = ", ".join(sorted(tables)) or "none"
            raise Misuse(f"{table} is not a table of this stream", hint=f"its tables are {known}")
        if not schema.key:
            raise Misuse(
                f"{table} has no key: nobody can tell which of its rows were changed while they are read",
                hint="begin a stream of another name with snapshot='initial'",
            )
        if any(copy.schema.table == schema.table for copy in self._ledger.checkpoint.copies):
            raise Misuse(f"{table} is being read already", hint="wait for its end, or stop it")
        return schema
