"""Chunks that tasks only stage, and the driver sends: in waves, so that not all of a copy lies staged at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.errors import SinkTaken, TailraceError
from tailrace.pipeline.follower import SinkFollower
from tailrace.sinks.base import Delivers, Snapshots
from tailrace.tasks.load import ChunkWork, Loaded

WAVE_BYTES = 256 << 20
"""How much of the source's tables is staged before it is sent."""


def waves(sink: Snapshots, work: Sequence[ChunkWork]) -> Iterator[list[ChunkWork]]:
    """All of the work at once, for a sink whose tasks load it themselves."""
    if not isinstance(sink, Delivers):
        yield list(work)
        return
    wave: list[ChunkWork] = []
    size = 0
    for item in work:
        if wave and size + item.mark.chunk.bytes > WAVE_BYTES:
            yield wave
            wave, size = [], 0
        wave.append(item)
        size += item.mark.chunk.bytes
    if wave:
        yield wave


def deliver(follower: SinkFollower, sink: Snapshots, wave: Sequence[ChunkWork], loaded: list[Loaded]) -> list[Loaded]:
    """Send what tasks have staged. A table's own trouble is told with what became of the others."""
    if not isinstance(sink, Delivers):
        return loaded
    found = list(loaded)
    failed = {done.table for done in loaded if done.error is not None or done.is_rewritten}
    for item in (item for item in wave if item.schema.table not in failed):
        try:
            with follower.lock:
                sink.deliver(item.mark)
        except TailraceError as error:
            if error.retry or isinstance(error, SinkTaken):
                raise
            failed.add(item.schema.table)
            found.append(Loaded(item.schema.table, 0, error=error))
    return found
