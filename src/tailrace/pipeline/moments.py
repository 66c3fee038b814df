"""The place of the log that a snapshot of the source shows: all that ended before it is seen, and nothing after it.

Found in the log itself, by the transactions' ids. A temporary slot would give such a snapshot too, and would wait for
every transaction under way, however long it lasts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    ends, xids = _recent(log, last)
    is_seen = (xids == 0) | source.is_visible(xids, snapshot.visibility)  # 0: a mark of the source's progress
    if is_seen.all():
        return last
    first_unseen = int(np.argmin(is_seen))
    if (is_seen & (xids != 0))[first_unseen:].any() or first_unseen == 0:
        return None
    return int(ends[first_unseen - 1])


def _recent(log: LogReader, last: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ends and ids of the transactions that end at `last` or not long before it, in order."""
    names = [name for name in log.names() if name.holds_end and name.first <= last]
    newest_us, ends, xids = 0, [], []
    for name in reversed(names):
        header, frames = log.read(name)
        newest_us = newest_us or header.last_time_us
        if header.last_time_us < newest_us - SETTLED_US:
            break
        end = frames.transactions.column("end").to_numpy()
        chosen = (end > 0) & (end <= last)
        ends.append(end[chosen])
        xids.append(frames.transactions.column("xid").to_numpy()[chosen])
    none = [np.zeros(0, np.int64)]
    return np.concatenate(ends[::-1] or none), np.concatenate(xids[::-1] or none)
