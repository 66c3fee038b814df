"""How many changes of each table a transaction has: counted by tasks, told by the commit in `{prefix}.transaction`.

A micro-batch has whole transactions, and several tasks may have parts of one. Of a table whose changes catch up with
its copy nothing is counted: it was not live when the transaction was told, and its messages do not name it, either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.model.changes import Changes
from tailrace.sinks.kafka import staged
from tailrace.state.storage import Storage

COUNTS = pa.schema(
    [
        ("begin", pa.int64()),
        ("at_us", pa.int64()),
        ("count", pa.int64()),
        ("id", pa.string()),
        ("position", pa.string()),
    ]
)


class Finished(msgspec.Struct):
    """A transaction, in the source's own words, with its changes of each table that were sent."""

    id: str
    position: str
    at_us: int
    counts: dict[str, int] = {}


class CountWriter:
    """The counts of one part of a batch, as a file."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._sink: pa.BufferOutputStream | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def add(self, changes: Changes) -> None:
        origins = changes.origins
        if origins is None or origins.late or not len(changes):
            return
        begins, first, counts = np.unique(origins.begins[changes.transaction], return_index=True, return_counts=True)
        rows = changes.transaction[first].tolist()
        times = changes.transactions.column("_commit_time").take(pa.array(rows, pa.int64())).view(pa.int64())
        told = [[origins.ids[row] for row in rows], [origins.positions[row] for row in rows]]
        arrays = [pa.array(begins), times, pa.array(counts), *(pa.array(each, pa.string()) for each in told)]
        if self._stream is None:
            self._sink = pa.BufferOutputStream()
            self._stream = pa.ipc.new_stream(self._sink, COUNTS)
        batch = pa.RecordBatch.from_arrays(arrays, schema=COUNTS)
        self._stream.write_batch(batch, custom_metadata={"table": changes.schema.table})

    def close(self) -> tuple[str, ...]:
        """The file, if there is any."""
        if self._stream is None or self._sink is None:
            return ()
        self._stream.close()
        return (staged.put(self._storage, f"{self._name}-counts", self._sink.getvalue()),)


def finished(storage: Storage, parts: Iterable[tuple[Iterable[str], Collection[str]]]) -> Iterator[Finished]:
    """The transactions of a batch in their order, by the files of its parts and the tables that are held back of each.

    Two parts share no transaction but the last of one, which goes on in the next.
    """
    open_: dict[int, Finished] = {}
    for files, held in parts:
        for table, rows in staged.batches(storage, files):
            if table not in held:
                _add(open_, table, rows)
        ended = sorted(open_)[:-1]
        yield from (open_.pop(begin) for begin in ended)
    yield from open_.values()


def _add(open_: dict[int, Finished], table: str, rows: pa.RecordBatch) -> None:
    columns = (column.to_pylist() for column in rows.columns)
    for begin, at_us, count, id_, position in zip(*columns, strict=True):
        own = open_.get(begin)
        if own is None:
            own = open_[begin] = Finished(id_, position, at_us or 0)
        own.counts[table] = own.counts.get(table, 0) + count
