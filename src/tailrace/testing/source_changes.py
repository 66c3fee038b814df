"""What the source suite changes in a database, and what a source tells of it, as plain values."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import pyarrow as pa

from tailrace.model.changes import Changes, Op
from tailrace.model.frames import Frames
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Capture, ExportedSnapshot, Source

SECONDS = 30.0

Row = tuple[int, str | None]


class Change(NamedTuple):
    """One change of the table. An update with an `old_id` changes the key; of a deleted row only the id counts."""

    op: Op
    id: int
    name: str | None = None
    old_id: int | None = None


class Database(Protocol):
    """The database behind a source under test, with one table `(id, name)`, of integers and text; `id` is its key."""

    table: str
    """Its name as a source has it: `schema.name`."""

    def change(self, *changes: Change) -> None:
        """One committed transaction."""

    def rows(self) -> list[Row]:
        """The table as it is, by another way than the source's own."""


def insert(id_: int, name: str | None) -> Change:
    return Change(Op.INSERT, id_, name)


def update(id_: int, name: str | None, old_id: int | None = None) -> Change:
    return Change(Op.UPDATE, id_, name, old_id)


def delete(id_: int) -> Change:
    return Change(Op.DELETE, id_)


def prepare(source: Source) -> str:
    return source.prepare(lambda _: None, lambda: None)


class Stretch(NamedTuple):
    """What a capture handed out, in order, and how far the source was read."""

    frames: list[Frames]
    positions: list[str]
    identity: SourceIdentity
    received: str

    def transactions(self) -> list[pa.RecordBatch]:
        return [frames.transactions for frames in self.frames]


def capture(source: Source, after: str, first: int = 1, known: SourceIdentity | None = None) -> Stretch:
    """All that follows `after`, up to the present end, as a life of the capture process reads it."""
    opened = source.capture(after, first, {}, known)
    try:
        return read_on(source, opened)
    finally:
        opened.close()


def read_on(source: Source, opened: Capture) -> Stretch:
    taken: list[tuple[Frames, str]] = []
    target, deadline = source.current_position(), time.monotonic() + SECONDS
    while opened.pending_bytes or not source.reached(opened.received, target):
        opened.poll(0.02)
        while (piece := opened.take()) is not None:
            taken = [each for each in taken if each[0].first < piece[0].first]  # an unfinished transaction comes again
            taken.append(piece)
        assert time.monotonic() < deadline, f"the source was read to {opened.received}, and is at {target}"
    frames, positions = [piece for piece, _ in taken], [position for _, position in taken]
    return Stretch(frames, positions, opened.identity, opened.received)


def decoded(source: Source | type[Source], frames: Iterable[Frames], table: str) -> list[Changes]:
    return [each for piece in frames for each in source.decode(piece, piece.first, piece.last, {table})]


def told(changes: Iterable[Changes]) -> list[Change]:
    """Plain changes, in the order in which they came."""
    return [change for each in changes for change in _plain(each)]


def _plain(changes: Changes) -> list[Change]:
    before = dict(zip(changes.before_rows.tolist(), changes.before.to_pylist(), strict=True))
    found = []
    for number, (op, row) in enumerate(zip(changes.op.tolist(), changes.after.to_pylist(), strict=True)):
        old = before.get(number)
        moved = old["id"] if op == Op.UPDATE and old is not None and old["id"] != row["id"] else None
        found.append(Change(Op(op), row["id"], None if op == Op.DELETE else row["name"], moved))
    return found


def folded(rows: Iterable[Row], changes: Iterable[Change]) -> list[Row]:
    """What rows become by changes. One that is not possible fails: nothing may come twice, or be left out."""
    table = dict(rows)
    for change in changes:
        if change.op is Op.INSERT:
            assert change.id not in table, f"row {change.id} is inserted, and is there already"
        else:
            old = change.id if change.old_id is None else change.old_id
            assert old in table, f"row {old} is changed, and is not there"
            del table[old]
        if change.op is not Op.DELETE:
            table[change.id] = change.name
    return sorted(table.items())


def copied(source: Source, schema: TableSchema, snapshot: ExportedSnapshot, chunk_bytes: int = 1 << 20) -> list[Row]:
    """The rows of all chunks, as a snapshot sees them."""
    chunks = source.plan_snapshot(schema, chunk_bytes)
    return plain_rows(batch for chunk in chunks for batch in source.read_chunk(schema, chunk, snapshot.id))


def plain_rows(batches: Iterable[object]) -> list[Row]:
    rows = []
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch), "columns were asked for"
        rows += [(row["id"], row["name"]) for row in batch.to_pylist()]
    return rows


def schema_of(source: Source, table: str) -> TableSchema:
    (found,) = [schema for schema in source.tables() if schema.table == table]
    return found


def ends(source: Source, stretch: Stretch) -> list[str]:
    """Where the transactions end that do."""
    found = []
    for batch in stretch.transactions():
        pairs = zip(batch.column("end").to_pylist(), source.end_positions(batch), strict=True)
        found += [position for end, position in pairs if end]
    return found


def missing(connector: type, contract: type) -> set[str]:
    """What a connector has left to the empty methods of a contract."""
    own = [vars(each) for each in connector.__mro__ if each is not contract]
    defaults = vars(contract).keys() & contract.__annotations__.keys()
    named = {name for name in (*vars(contract), *contract.__annotations__) if not name.startswith("_")} - defaults
    return {name for name in named if not any(name in each for each in own)}
