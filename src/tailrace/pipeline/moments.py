"""The place of the log that a snapshot of the source shows: all that ended before it is seen, and nothing after it.

Found in the log itself, by the transactions' ids. A temporary slot would give such a snapshot too, and would wait for
every transaction under way, however long it lasts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log.reader import LogReader
from tailrace.pipeline.anchoring import offset_at
from tailrace.sources.base import ExportedSnapshot, Source

SETTLED_US = 60_000_000
"""What was committed so long before the newest commit is visible to everybody."""


def offset_seen(log: LogReader, source: Source, snapshot: ExportedSnapshot) -> int | None:
    """The offset up to which `snapshot` sees the log. Only sure once the log has reached the snapshot's position.

    None if there is no such place: transactions may become visible in another order than they are committed in. A
    later snapshot will have one.
    """
    last = offset_at(log, source, snapshot.position)
    ends, is_told = _recent(log, source, last, snapshot.visibility)
    is_seen = is_told.fill_null(True).to_numpy(zero_copy_only=False)  # null: a mark of the source's progress
    if is_seen.all():
        return last
    first_unseen = int(np.argmin(is_seen))
    if pc.any(is_told[first_unseen:]).as_py() or first_unseen == 0:
        return None
    return int(ends[first_unseen - 1])


def _recent(
    log: LogReader, source: Source, last: int, visibility: str
) -> tuple[npt.NDArray[np.int64], pa.BooleanArray]:
    """The transactions that end at `last` or not long before it, in order: their ends, and which of them are seen."""
    names = [name for name in log.names() if name.holds_end and name.first <= last]
    newest_us, ends, seen = 0, [np.zeros(0, np.int64)], [pa.array([], pa.bool_())]
    for name in reversed(names):
        header, frames = log.read(name)
        newest_us = newest_us or header.last_time_us
        if header.last_time_us < newest_us - SETTLED_US:
            break
        end = frames.transactions.column("end").to_numpy()
        chosen = (end > 0) & (end <= last)
        ends.append(end[chosen])
        seen.append(source.seen(frames.transactions.filter(pa.array(chosen)), visibility))
    return np.concatenate(ends[::-1]), pa.concat_arrays(seen[::-1])
