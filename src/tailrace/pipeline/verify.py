"""Comparing content: every row of the source's tables with every row of the sinks, at one consistent moment.

The source is read under a snapshot. A pipeline that is running is held at the very place of the log that the snapshot
shows while we look; one that is not running is compared as it stands. The source's values come as text,
not by the binary way that capture and snapshot use, so a fault of the decoder shows.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
import numpy as np

from tailrace import config, registry
from tailrace.errors import SinkUnavailable
from tailrace.log.reader import LogReader
from tailrace.log.storage import Storage
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import TableSchema
from tailrace.pipeline.holding import Hold
from tailrace.pipeline.moments import offset_seen
from tailrace.sources.base import ExportedSnapshot, TableLocked, TableRewritten
from tailrace.spark.layout import LOG

BUCKETS = 1 << 14
NAMED_KEYS = 5
WAIT_SECONDS = 60.0
_MASK = (1 << 64) - 1

Rows = Iterable[list[tuple[Any, ...]]]


class Comparison(msgspec.Struct, frozen=True):
    """One table of one sink. `differing` are the first keys that differ, never values."""

    sink: str
    table: str
    source_rows: int
    sink_rows: int
    is_equal: bool
    differing: tuple[str, ...] = ()
    note: str = ""


def verify(pipeline: config.Pipeline) -> list[Comparison]:
    """Compare every table in every sink."""
    source: Any = registry.source_class(pipeline.source.url)(pipeline)
    found: list[Comparison] = []
    for name in pipeline.sinks:
        sink = registry.make_sink(pipeline, name)
        try:
            found += _verify_sink(pipeline, source, name, sink)
        finally:
            sink.close()
    return found


def _verify_sink(
    pipeline: config.Pipeline, source: Any, name: str, sink: Any, wanted: Container[str] | None = None, tries: int = 5
) -> Iterator[Comparison]:
    """All tables, or those that are `wanted`. One that is truncated under our eyes is looked at again."""
    is_running = _is_running(pipeline)
    with _held(pipeline) if is_running else nullcontext() as hold, _moment(pipeline, source, sink, hold) as snapshot:
        tables = sink.read_state().tables
        results, again = [], set()
        for schema in source.tables():
            if wanted is not None and schema.table not in wanted:
                continue
            status = tables.get(schema.table)
            if status is None or status.state is not TableState.LIVE:
                state = "unknown" if status is None else str(status.state)
                results.append(Comparison(name, schema.table, 0, 0, False, (), f"the table is {state} in the sink"))
                continue
            note = "" if is_running else "not running: a difference may be lag"
            try:
                results.append(_compare(name, schema, source, sink, snapshot, note))
            except TableLocked as error:
                results.append(Comparison(name, schema.table, 0, 0, False, (), str(error)))
            except TableRewritten:
                note = "it was truncated or rewritten while it was compared"
                results.append(Comparison(name, schema.table, 0, 0, False, (), note))
                again.add(schema.table)
    yield from (result for result in results if tries == 1 or result.table not in again)
    if again and tries > 1:
        yield from _verify_sink(pipeline, source, name, sink, again, tries - 1)


def _is_running(pipeline: config.Pipeline) -> bool:
    return bool(Storage(pipeline.state).is_locked("run.lock"))


@contextmanager
def _held(pipeline: config.Pipeline) -> Iterator[Hold]:
    """Let the sinks go no further than the log goes now."""
    hold = Hold(pipeline.state)
    hold.place(LogReader(Storage(pipeline.state).folder(LOG)).end())
    try:
        yield hold
    finally:
        hold.release()


@contextmanager
def _moment(pipeline: config.Pipeline, source: Any, sink: Any, hold: Hold | None) -> Iterator[str]:
    """A snapshot of the source; where there is a hold, the sink has just what the snapshot sees."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with source.export_snapshot() as snapshot:
            if hold is None or _is_met(pipeline, source, sink, hold, snapshot, deadline):
                yield snapshot.id
                return
        _wait_a_little(deadline, "a moment at which transactions became visible in the order of their commits")


def _is_met(
    pipeline: config.Pipeline, source: Any, sink: Any, hold: Hold, snapshot: ExportedSnapshot, deadline: float
) -> bool:
    """Move the hold to the place that the snapshot shows, and wait for the sink; false if it can not be there."""
    log = LogReader(Storage(pipeline.state).folder(LOG))
    while not _has_captured(log, source, snapshot.position):
        _wait_a_little(deadline, f"the change log to reach {snapshot.position}")
        hold.renew()
    target = offset_seen(log, source, snapshot)
    if target is None:
        return False
    hold.place(target)
    while True:
        state = sink.read_state()
        if state.watermark is not None and state.watermark.offset >= target:
            return bool(state.watermark.offset == target)
        _wait_a_little(deadline, f"sink {sink.name} to reach {snapshot.position}")
        hold.renew()


def _has_captured(log: LogReader, source: Any, position: str) -> bool:
    names = [name for name in log.names() if name.committed >= name.first]
    return bool(names) and source.reached(log.header(names[-1]).position, position)


def _wait_a_little(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise SinkUnavailable(f"waited {WAIT_SECONDS:g} s in vain for {what}", hint="is the pipeline making progress?")
    time.sleep(0.05)


def _compare(name: str, schema: TableSchema, source: Any, sink: Any, snapshot: str, note: str) -> Comparison:
    def rows_of_source() -> Rows:
        return (sink.expected_rows(schema, batch) for batch in source.read_all(schema, snapshot))

    def rows_of_sink() -> Rows:
        found: Rows = sink.read_table(schema)
        return found

    key = schema.key_indexes or tuple(range(len(schema.columns)))
    theirs, ours = _checksums(rows_of_source(), key), _checksums(rows_of_sink(), key)
    different = np.flatnonzero((theirs != ours).any(axis=1))
    counts = int(theirs[:, 0].sum()), int(ours[:, 0].sum())
    if not len(different):
        return Comparison(name, schema.table, *counts, True)
    keys = _differing_keys(rows_of_source(), rows_of_sink(), key, set(different[:NAMED_KEYS].tolist()))
    return Comparison(name, schema.table, *counts, False, keys, note)


def _checksums(batches: Rows, key: tuple[int, ...]) -> np.ndarray:
    """Count and sum of row hashes for each bucket of keys: what is equal as a set of rows is equal here."""
    sums = np.zeros((BUCKETS, 2), np.uint64)
    for rows in batches:
        buckets, hashes = _hashes(rows, key)
        np.add.at(sums[:, 0], buckets, np.uint64(1))
        np.add.at(sums[:, 1], buckets, hashes)
    return sums


def _hashes(rows: list[tuple[Any, ...]], key: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    whole = np.array([hash(_exact(row)) & _MASK for row in rows], np.uint64)
    keys = np.array([hash(tuple(row[i] for i in key)) & _MASK for row in rows], np.uint64)
    return (keys % np.uint64(BUCKETS)).astype(np.int64), whole


def _exact(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Floats by their bits' text: -0.0 is not 0.0, and 1.0 is not 1."""
    return tuple(repr(value) if isinstance(value, float) else value for value in row)


def _differing_keys(theirs: Rows, ours: Rows, key: tuple[int, ...], buckets: set[int]) -> tuple[str, ...]:
    """A second look at a few buckets only, so that memory stays flat."""
    left, right = _rows_in(theirs, key, buckets), _rows_in(ours, key, buckets)
    names = sorted({row[0] for row in left ^ right})
    return tuple(names[:NAMED_KEYS])


def _rows_in(batches: Rows, key: tuple[int, ...], buckets: set[int]) -> set[tuple[str, int, int]]:
    seen: dict[tuple[str, int], int] = {}
    for rows in batches:
        numbers, hashes = _hashes(rows, key)
        for row, bucket, value in zip(rows, numbers.tolist(), hashes.tolist(), strict=True):
            if bucket in buckets:
                place = (", ".join(str(row[i]) for i in key), value)
                seen[place] = seen.get(place, 0) + 1
    return {(*place, count) for place, count in seen.items()}
