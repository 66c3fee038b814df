"""Comparing content: every row of the source's tables with every row of the sinks, at one consistent moment.

Documents are built of what the source has when they are written, so under load some are newer than the moment: those
that differ are looked at again at other moments, and only what differs at all of them is a difference.

The source is read under a snapshot. A pipeline that is running is held at the very place of the log that the snapshot
shows while we look; one that is not running is compared as it stands. The source's values come as text,
not by the binary way that capture and snapshot use, so a fault of the decoder shows. A table with a transform is
compared with what its expressions make of the source's rows, for which Spark is started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from marshal import dumps
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace import config, registry
from tailrace.errors import ConfigError, DecodeError, OffsetGone, SinkRejected, SinkUnavailable, ValueRefused
from tailrace.log.reader import LogReader
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.pipeline.moments import offset_seen
from tailrace.pipeline.viewpoint import seen_by
from tailrace.sinks.base import Documents, Sink, Verifies
from tailrace.sources.base import ExportedSnapshot, Source, TableLocked, TableRewritten
from tailrace.state.holding import Hold
from tailrace.state.layout import LOG, RUN_LOCK
from tailrace.state.storage import Storage

BUCKETS = 1 << 14
NAMED_KEYS = 5
WAIT_SECONDS = 60.0
_DIGEST_BYTES = 16
_PLAIN = 2
"""The version of marshal's format in which the same values are the same bytes: later ones have references."""

Buckets = frozenset[int]
Row = tuple[Any, ...]
Rows = Iterable[list[Row]]


class Comparison(msgspec.Struct, frozen=True):
    """One table of one sink. `differing` are the first keys that differ, or digests of rows without a key.

    A table that was not compared is not equal, unless there is nothing in the source to be equal to.
    """

    sink: str
    table: str
    source_rows: int
    sink_rows: int
    is_equal: bool
    differing: tuple[str, ...] = ()
    note: str = ""
    buckets: Buckets | None = None  # in which rows differ


def verify(pipeline: config.Pipeline) -> list[Comparison]:
    """Compare every table in every sink."""
    source = registry.make_source(pipeline)
    found: list[Comparison] = []
    for name in pipeline.sinks:
        sink = _with_transforms(pipeline, registry.make_sink(pipeline, name))
        try:
            found += _verify_sink(pipeline, seen_by(sink, source), name, sink)
        finally:
            sink.close()
    return found


@runtime_checkable
class Reshapes(Protocol):
    """Has other columns than the source's."""

    def held(self, schema: TableSchema) -> TableSchema: ...


def _with_transforms(pipeline: config.Pipeline, sink: Sink) -> Sink:
    """Spark, which most comparisons do without, takes seconds to come up."""
    if not pipeline.transforms:
        return sink
    from tailrace.pipeline.transforming import transforming
    from tailrace.spark.expressions import Expressions
    from tailrace.spark.masters import is_local
    from tailrace.spark.session import open_session
    from tailrace.spark.shipping import ship

    spark = open_session(pipeline)
    if pipeline.spark.ship and not is_local(str(spark.sparkContext.master)):
        ship(spark.sparkContext)
    return transforming(sink, Expressions(spark, pipeline.transforms))


def _verify_sink(
    pipeline: config.Pipeline,
    source: Source,
    name: str,
    sink: Sink,
    wanted: Mapping[str, Buckets | None] | None = None,
    tries: int = 5,
) -> Iterator[Comparison]:
    """All tables, or those that are `wanted`, of which only some buckets may differ any more.

    One that is truncated under our eyes is looked at again.
    """
    is_running = _is_running(pipeline)
    note = "" if is_running else "not running: a difference may be lag"
    with _held(pipeline) if is_running else nullcontext() as hold, _moment(pipeline, source, sink, hold) as snapshot:
        tables, schemas = sink.read_state().tables, source.tables()
        results, again = [], dict[str, Buckets | None]()
        for schema in schemas:
            if wanted is not None and schema.table not in wanted:
                continue
            try:
                suspects = None if wanted is None else wanted[schema.table]
                result = _verify_table(name, schema, tables.get(schema.table), source, sink, snapshot, note, suspects)
                results.append(result)
                if is_running and isinstance(sink, Documents) and not result.is_equal:
                    again[schema.table] = result.buckets
            except TableLocked as error:
                results.append(Comparison(name, schema.table, 0, 0, False, (), str(error)))
            except TableRewritten:
                results.append(_not_compared(name, schema.table, "was truncated or rewritten while it was compared"))
                again[schema.table] = None
        present = {schema.table for schema in schemas}
        results += _left_behind(
            name, [s for t, s in tables.items() if t not in present and (not wanted or t in wanted)]
        )
    yield from (result for result in results if tries == 1 or result.table not in again)
    if again and tries > 1:
        yield from _verify_sink(pipeline, source, name, sink, again, tries - 1)


def _verify_table(
    name: str,
    schema: TableSchema,
    status: TableStatus | None,
    source: Source,
    sink: Sink,
    snapshot: str,
    note: str,
    suspects: Buckets | None,
) -> Comparison:
    """What keeps one table from being compared is said of it, and the others are compared all the same."""
    if status is None or status.state is not TableState.LIVE:
        state = "unknown" if status is None else str(status.state)
        return _not_compared(name, schema.table, f"is {state} in the sink{_because(status)}")
    if not isinstance(sink, Verifies):
        return Comparison(name, schema.table, 0, 0, True, (), "not compared: the sink can not be read back")
    try:
        return _compare(name, schema, source, sink, snapshot, note, suspects)
    except (ConfigError, DecodeError, ValueRefused, SinkRejected) as error:
        return _not_compared(name, schema.table, f"can not be compared: {error}")


def _not_compared(name: str, table: str, why: str) -> Comparison:
    return Comparison(name, table, 0, 0, False, (), f"the table {why}")


def _left_behind(name: str, statuses: Iterable[TableStatus]) -> Iterator[Comparison]:
    """The tables that the sink remembers and that the pipeline does not take from the source any more, or not yet."""
    for status in sorted(statuses, key=lambda status: status.table):
        if status.state is TableState.FAILED:
            yield _not_compared(name, status.table, f"is failed in the sink{_because(status)}")
            continue
        note = f"not compared: it is not captured any more{_because(status)}; the sink keeps what it had"
        yield Comparison(name, status.table, 0, 0, True, (), note)


def _because(status: TableStatus | None) -> str:
    return f": {status.reason}" if status is not None and status.reason else ""


def _is_running(pipeline: config.Pipeline) -> bool:
    return bool(Storage(pipeline.state).is_locked(RUN_LOCK))


def _held(pipeline: config.Pipeline) -> Hold:
    """Let the sinks go no further than the log goes now."""
    return Hold(pipeline.state, LogReader(Storage(pipeline.state).folder(LOG)).end())


@contextmanager
def _moment(pipeline: config.Pipeline, source: Source, sink: Sink, hold: Hold | None) -> Iterator[str]:
    """A snapshot of the source; where there is a hold, the sink has just what the snapshot sees."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with source.export_snapshot() as snapshot:
            if hold is None or _is_met(pipeline, source, sink, hold, snapshot, deadline):
                yield snapshot.id
                return
        _wait_a_little(deadline, "a moment at which transactions became visible in the order of their commits")


def _is_met(
    pipeline: config.Pipeline, source: Source, sink: Sink, hold: Hold, snapshot: ExportedSnapshot, deadline: float
) -> bool:
    """Move the hold to the place that the snapshot shows, and wait for the sink; false if it can not be there."""
    log = LogReader(Storage(pipeline.state).folder(LOG))
    while not _has_captured(log, source, snapshot.position):
        _wait_a_little(deadline, f"the change log to reach {snapshot.position}")
    try:
        target = offset_seen(log, source, snapshot)
    except OffsetGone:  # all sinks had it, and it was removed under our eyes
        return False
    if target is None:
        return False
    hold.place(target)
    while True:
        state = sink.read_state()
        if state.watermark is not None and state.watermark.offset >= target:
            return bool(state.watermark.offset == target)
        _wait_a_little(deadline, f"sink {sink.name} to reach {snapshot.position}")


def _has_captured(log: LogReader, source: Source, position: str) -> bool:
    names = [name for name in log.names() if name.committed >= name.first]
    try:
        return bool(names) and source.reached(log.header(names[-1]).position, position)
    except OffsetGone:  # there is a newer one by now
        return False


def _wait_a_little(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise SinkUnavailable(f"waited {WAIT_SECONDS:g} s in vain for {what}", hint="is the pipeline making progress?")
    time.sleep(0.05)


def _compare(
    name: str,
    schema: TableSchema,
    source: Source,
    sink: Verifies,
    snapshot: str,
    note: str,
    suspects: Buckets | None = None,
) -> Comparison:
    """With `suspects`, only what is in these buckets may differ: the others have been equal before."""

    def rows_of_source() -> Rows:
        return (sink.expected_rows(schema, batch) for batch in source.read_all(schema, snapshot))

    def rows_of_sink() -> Rows:
        found: Rows = sink.read_table(schema)
        return found

    held = sink.held(schema) if isinstance(sink, Reshapes) else schema
    theirs, ours = _checksums(rows_of_source(), held), _checksums(rows_of_sink(), held)
    different = np.flatnonzero((theirs != ours).any(axis=1))
    if suspects is not None:
        different = different[np.isin(different, list(suspects))]
    counts = int(theirs[:, 0].sum()), int(ours[:, 0].sum())
    if not len(different):
        return Comparison(name, schema.table, *counts, True)
    names = _differing(rows_of_source(), rows_of_sink(), held, set(different[:NAMED_KEYS].tolist()))
    return Comparison(name, schema.table, *counts, False, names, note, frozenset(different.tolist()))


def _checksums(batches: Rows, schema: TableSchema) -> npt.NDArray[np.uint64]:
    """Count and sum of row digests for each bucket of keys: what is equal as a multiset of rows is equal here."""
    sums = np.zeros((BUCKETS, 3), np.uint64)
    for rows in batches:
        buckets, digests = _buckets(rows, schema), np.frombuffer(b"".join(_digests(rows)), np.uint64).reshape(-1, 2)
        np.add.at(sums[:, 0], buckets, np.uint64(1))
        np.add.at(sums[:, 1], buckets, digests[:, 0])
        np.add.at(sums[:, 2], buckets, digests[:, 1])
    return sums


def _digests(rows: list[Row]) -> list[bytes]:
    """Of each row. What marshal writes has the type and the length of every value: 1, 1.0, True, "1" and b"1" differ,
    and so do 0.0 and -0.0, NULL and the empty text.
    """
    return [blake2b(dumps(row, _PLAIN), digest_size=_DIGEST_BYTES).digest() for row in rows]


def _buckets(rows: list[Row], schema: TableSchema) -> npt.NDArray[np.int64]:
    key = itemgetter(*schema.key_indexes) if schema.key else tuple
    numbers = np.fromiter((crc32(dumps(key(row), _PLAIN)) for row in rows), np.int64, len(rows))
    return numbers % BUCKETS


def _differing(theirs: Rows, ours: Rows, schema: TableSchema, buckets: set[int]) -> tuple[str, ...]:
    """A second look at a few buckets only, so that memory stays flat."""
    left, right = _rows_in(theirs, schema, buckets), _rows_in(ours, schema, buckets)
    names = sorted({name for name, *_ in left ^ right})
    return tuple(names[:NAMED_KEYS])


def _rows_in(batches: Rows, schema: TableSchema, buckets: set[int]) -> set[tuple[str, bytes, int]]:
    seen: dict[tuple[str, bytes], int] = {}
    for rows in batches:
        for row, bucket, digest in zip(rows, _buckets(rows, schema).tolist(), _digests(rows), strict=True):
            if bucket in buckets:
                place = (_name(row, schema, digest), digest)
                seen[place] = seen.get(place, 0) + 1
    return {(*place, count) for place, count in seen.items()}


def _name(row: Row, schema: TableSchema, digest: bytes) -> str:
    """A row without a key is all values, which are nobody's business here."""
    return ", ".join(str(row[i]) for i in schema.key_indexes) if schema.key else f"row {digest.hex()[:8]}"
