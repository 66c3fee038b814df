"""Finding a place again: from a position of the source to an offset of the log that now is."""

from __future__ import annotations

from tailrace.errors import PositionLost
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentName
from tailrace.model.watermark import Watermark
from tailrace.sources.base import Source


def offset_at(log: LogReader, source: Source, position: str) -> int:
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
        ends = _ends(log, source, name)
        found = max([found, *(end for end, place in ends.items() if source.reached(position, place))])
        break
    return found


def is_in(log: LogReader, source: Source, mark: Watermark) -> bool:
    """Whether `mark` is a place of this very log: its offset is kept, and is the place that it says it is.

    It is not where the log, or what holds the mark, was restored from a backup: offsets were given out anew since.
    """
    identity = log.identity()
    if identity is None or identity.id != mark.log_id:
        return False
    names = log.names()
    for name in names:
        if name.first == mark.offset + 1:
            return not mark.position or log.header(name).begins_at == mark.position
        if name.first <= mark.offset <= name.last:
            return _ends(log, source, name).get(mark.offset) == mark.position
    return not names and mark.offset == 0


def begins_at(log: LogReader) -> str:
    """The position behind which the log still has everything; empty for no log."""
    identity = log.identity()
    if identity is None:
        return ""
    names = log.names()
    return log.header(names[0]).begins_at if names else identity.start_position


def anchored(log: LogReader, source: Source, mark: Watermark, log_id: str) -> Watermark:
    """The same place as `mark`, in the log that has `log_id`. Raises PositionLost where the log begins after it."""
    if is_in(log, source, mark):
        return mark
    begin = begins_at(log)
    if mark.position and begin and not source.reached(mark.position, begin):
        raise PositionLost(
            f"the sink has the changes up to {mark.position}, and the change log begins at {begin}: was the sink put"
            " back from a backup?"
        )
    return Watermark(log_id, offset_at(log, source, mark.position), mark.position, mark.source)


def _ends(log: LogReader, source: Source, name: SegmentName) -> dict[int, str]:
    """Where transactions end in a segment: positions by offset."""
    _, frames = log.read(name)
    ends = frames.transactions.column("end").to_numpy()
    places = source.end_positions(frames.transactions)
    return {end: place for end, place in zip(ends.tolist(), places, strict=True) if end}
