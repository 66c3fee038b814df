"""Finding a place again: from a position of the source to an offset of the log that now is."""

from __future__ import annotations

from typing import Any

from tailrace.log.reader import LogReader
from tailrace.model.watermark import Watermark


def offset_at(log: LogReader, source: Any, position: str) -> int:
    """The offset of the last transaction end at or before `position`; 0 if the log begins after it.

    Only sure once the log has reached `position`: the caller waits for that.
    """
    found = 0
    for name in log.names():
        if name.committed < name.first:
            continue
        header = log.header(name)
        if source.reached(position, header.position):
            found = name.committed
            continue
        _, frames = log.read(name)
        ends = frames.transactions.column("end").to_numpy()
        places = source.positions(frames.transactions.column("end_position").to_numpy())
        for end, place in zip(ends.tolist(), places, strict=True):
            if end and source.reached(position, place):
                found = max(found, end)
        break
    return found


def anchored(log: LogReader, source: Any, mark: Watermark, log_id: str) -> Watermark:
    """The same place as `mark`, in the log that has `log_id`."""
    if mark.log_id == log_id:
        return mark
    return Watermark(log_id, offset_at(log, source, mark.position), mark.position)
