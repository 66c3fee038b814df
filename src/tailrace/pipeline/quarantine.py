"""The rows that sinks have set aside: finding them, writing them again, forgetting them. A run need not be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tailrace import config, registry
from tailrace.errors import ConfigError, SinkRejected, SourceUnavailable
from tailrace.log.reader import LogReader
from tailrace.log.storage import Storage
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import FetchRows, Quarantined, Sink
from tailrace.spark.layout import LOG


class Chosen(msgspec.Struct, frozen=True):
    """Which rows are meant: all, or those of one sink, one table."""

    sink: str | None = None
    table: str | None = None


class Replayed(msgspec.Struct, frozen=True):
    sink: str
    table: str
    written: int
    refused: int
    reason: str = ""


def entries(pipeline: config.Pipeline, chosen: Chosen) -> list[tuple[str, Quarantined]]:
    """Each with the name of its sink, the oldest of a sink first."""
    with _sinks(pipeline, chosen) as sinks:
        return [(name, entry) for name, sink in sinks.items() for entry in _of(sink, chosen)]


def replay(pipeline: config.Pipeline, chosen: Chosen) -> list[Replayed]:
    """Write the rows as the source has them now. What is refused again stays where it is.

    Raises SourceChanged where the source is not the one that the sink's rows are from, and SourceUnavailable while it
    does not show yet what the sink may have.
    """
    source: Any = registry.source_class(pipeline.source.url)(pipeline)
    fetch = _fetch_seen(source, LogReader(Storage(pipeline.state).folder(LOG)))
    with _sinks(pipeline, chosen) as sinks:
        for sink in sinks.values():
            mark = sink.read_state().watermark
            if mark is not None and mark.source is not None:
                source.check_same(mark.source, mark.position)
        return [result for name, sink in sinks.items() for result in _replay(name, sink, fetch, chosen)]


def drop(pipeline: config.Pipeline, chosen: Chosen) -> int:
    """Forget the rows; how many they were."""
    count = 0
    with _sinks(pipeline, chosen) as sinks:
        for sink in sinks.values():
            found = _of(sink, chosen)
            sink.drop_quarantined(found)
            count += len(found)
    return count


def _fetch_seen(source: Any, log: LogReader) -> FetchRows:
    """Rows as the source has them, unless it is behind the log: there a commit may wait for a synchronous standby."""

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        running = source.running()
        if len(running) and np.isin(running, log.transactions(0, log.end())).any():
            raise SourceUnavailable("commits wait for a synchronous standby: the log has them, and nobody sees them yet")
        rows: pa.RecordBatch = source.read_rows(schema, keys)
        return rows

    return fetch


def _replay(name: str, sink: Sink, fetch: FetchRows, chosen: Chosen) -> Iterator[Replayed]:
    by_table: dict[str, list[Quarantined]] = {}
    for entry in _of(sink, chosen):
        by_table.setdefault(entry.rejected.table, []).append(entry)
    for table, mine in by_table.items():
        try:
            written = sink.replay(mine, fetch)
        except SinkRejected as error:
            yield Replayed(name, table, 0, len(mine), str(error))
        else:
            reason = "refused again" if written < len(mine) else ""
            yield Replayed(name, table, written, len(mine) - written, reason)


def _of(sink: Sink, chosen: Chosen) -> list[Quarantined]:
    return [entry for entry in sink.quarantined() if chosen.table in (None, entry.rejected.table)]


@contextmanager
def _sinks(pipeline: config.Pipeline, chosen: Chosen) -> Iterator[dict[str, Sink]]:
    if chosen.sink is not None and chosen.sink not in pipeline.sinks:
        raise ConfigError(f"the pipeline has no sink {chosen.sink}", hint=f"it has {', '.join(pipeline.sinks)}")
    wanted = [name for name in pipeline.sinks if chosen.sink in (None, name)]
    sinks: dict[str, Sink] = {name: registry.make_sink(pipeline, name) for name in wanted}
    try:
        yield sinks
    finally:
        for sink in sinks.values():
            sink.close()
