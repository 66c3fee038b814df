"""The rows that sinks have set aside: finding them, writing them again, forgetting them. A run need not be stopped."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from tailrace import config, registry
from tailrace.errors import ConfigError, SinkRejected, SourceUnavailable
from tailrace.model.schema import TableSchema
from tailrace.pipeline.viewpoint import seen_by
from tailrace.sinks.base import Quarantined, Quarantines, Sink
from tailrace.sources.base import Source

WRITERS_SECONDS = 5.0
LOOK_SECONDS = 0.1


@runtime_checkable
class Keeping(Sink, Quarantines, Protocol):
    """A sink that sets rows aside. Others have none."""


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

    Raises SourceChanged where the source is not the one that the sink's rows are from.
    """
    source = registry.make_source(pipeline)
    with _sinks(pipeline, chosen) as sinks:
        for sink in sinks.values():
            mark = sink.read_state().watermark
            if mark is not None and mark.source is not None:
                source.check_same(mark.source, mark.position)
        transformed = pipeline.transforms.keys()
        return [result for name, sink in sinks.items() for result in _replay(name, sink, source, chosen, transformed)]


def drop(pipeline: config.Pipeline, chosen: Chosen) -> int:
    """Forget the rows; how many they were."""
    count = 0
    with _sinks(pipeline, chosen) as sinks:
        for sink in sinks.values():
            found = _of(sink, chosen)
            sink.drop_quarantined(found)
            count += len(found)
    return count


class _Seen:
    """Reads the rows of a table when all is seen that the sink may have of them.

    A commit is streamed before anybody sees it, and one that waits for a synchronous standby long before. So whoever
    writes to the table at the first call has to end first.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_sure = False

    def __call__(self, schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not self._is_sure:
            self._await_writers(schema)
            self._is_sure = True
        return self._source.read_rows(schema, keys)

    def _await_writers(self, schema: TableSchema) -> None:
        facts = next((facts for facts in self._source.facts() if facts.schema.table == schema.table), None)
        if facts is None:
            return
        deadline, still = time.monotonic() + WRITERS_SECONDS, self._source.writers(facts)
        while still:
            if time.monotonic() > deadline:
                who = " and ".join(sorted(set(still.values())))
                raise SourceUnavailable(f"{who} has not ended yet, and may have written to these rows: try again later")
            time.sleep(LOOK_SECONDS)
            now = self._source.writers(facts)
            still = {name: who for name, who in still.items() if name in now}


def _replay(
    name: str, sink: Keeping, source: Source, chosen: Chosen, transformed: Collection[str]
) -> Iterator[Replayed]:
    by_table: dict[str, list[Quarantined]] = {}
    for entry in _of(sink, chosen):
        by_table.setdefault(entry.rejected.table, []).append(entry)
    for table, mine in by_table.items():
        if table in transformed:
            yield Replayed(name, table, 0, len(mine), "the table has a transform: `tailrace snapshot` copies it again")
            continue
        try:
            written = sink.replay(mine, _Seen(seen_by(sink, source)))
        except (SinkRejected, SourceUnavailable) as error:
            yield Replayed(name, table, 0, len(mine), str(error))
        else:
            reason = "refused again" if written < len(mine) else ""
            yield Replayed(name, table, written, len(mine) - written, reason)


def _of(sink: Keeping, chosen: Chosen) -> list[Quarantined]:
    return [entry for entry in sink.quarantined() if chosen.table in (None, entry.rejected.table)]


@contextmanager
def _sinks(pipeline: config.Pipeline, chosen: Chosen) -> Iterator[dict[str, Keeping]]:
    if chosen.sink is not None and chosen.sink not in pipeline.sinks:
        raise ConfigError(f"the pipeline has no sink {chosen.sink}", hint=f"it has {', '.join(pipeline.sinks)}")
    wanted = [name for name in pipeline.sinks if chosen.sink in (None, name)]
    sinks = {name: registry.make_sink(pipeline, name) for name in wanted}
    try:
        yield {name: sink for name, sink in sinks.items() if isinstance(sink, Keeping)}
    finally:
        for sink in sinks.values():
            sink.close()
