"""The named readers of a pipeline's change log: how far each is, and how much of the log waits for it."""

from __future__ import annotations

import time

import msgspec

from tailrace import config
from tailrace.log.reader import LogReader, segment_names
from tailrace.state.layout import LOG, READERS
from tailrace.state.readers import Readers
from tailrace.state.storage import Storage


class ReaderLine(msgspec.Struct, frozen=True):
    """`behind` are the offsets that the log has and the reader has not, `kept_bytes` the segments that hold them.

    `silent_seconds` is how long ago its place moved. Both are None for a place in a log that is gone.
    """

    reader: str
    table: str
    offset: int
    silent_seconds: float
    behind: int | None
    kept_bytes: int | None
    note: str = ""


def read(pipeline: config.Pipeline) -> list[ReaderLine]:
    """A line a reader, by name."""
    log = LogReader(Storage(pipeline.state).folder(LOG))
    identity, end = log.identity(), log.end()
    sizes = segment_names(log.storage)
    lines = []
    for name, place in _readers(pipeline).all().items():
        silent = max(time.time() - place.moved_at, 0.0)
        if identity is None or place.log != identity.id:
            note = "its log is gone: it holds nothing" if place.log else "its file is damaged: it holds all"
            lines.append(ReaderLine(name, place.table, place.offset, silent, None, None, note))
        else:
            kept = sum(size for segment, size in sizes.items() if segment.last > place.offset)
            lines.append(ReaderLine(name, place.table, place.offset, silent, max(end - place.offset, 0), kept))
    return lines


def drop(pipeline: config.Pipeline, name: str) -> None:
    """Forget a reader. One that still runs comes back with its next micro-batch."""
    _readers(pipeline).drop(name)


def _readers(pipeline: config.Pipeline) -> Readers:
    return Readers(Storage(pipeline.state).folder(READERS))
