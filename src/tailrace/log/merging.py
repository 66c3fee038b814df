"""Few files for much history: small segments that every sink has become larger ones.

A source that is never idle makes ten segments a second. The same messages at the same offsets lie in the merged one, so
whoever planned with the old names reads the same from it (`LogReader.read`). Each byte is written again once a tier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.log.segment import SegmentName
from tailrace.model.frames import PADDING, Frames

FANOUT = 32


def tier(size: int) -> int:
    """Segments of one tier are merged with each other; FANOUT of them make one of the next."""
    return int(math.log(max(size, 1), FANOUT))


def run_to_merge(sizes: Mapping[SegmentName, int], last: int, most_bytes: int) -> list[SegmentName]:
    """The oldest FANOUT neighbours of one tier that end at or before `last`, each of whole transactions."""
    run: list[SegmentName] = []
    for name, size in sizes.items():
        if name.last > last:
            break
        is_neighbour = bool(run) and run[-1].last + 1 == name.first and tier(sizes[run[-1]]) == tier(size)
        if name.committed != name.last or size * FANOUT > most_bytes:
            run = []
        else:
            run = [*run, name] if is_neighbour else [name]
        if len(run) == FANOUT:
            return run
    return []


def merged(parts: Sequence[Frames]) -> Frames:
    """Neighbours as one. Transactions must not reach from one part into the next."""
    ends = np.cumsum([0, *(int(part.bounds[-1]) for part in parts)])
    bounds = [part.bounds[:-1] + start for part, start in zip(parts, ends[:-1], strict=True)]
    bodies = [part.buffer[: int(part.bounds[-1])] for part in parts]
    tables: dict[str, int] = {}
    for part in parts:
        for table, count in part.tables.items():
            tables[table] = tables.get(table, 0) + count
    return Frames(
        kind=parts[0].kind,
        first=parts[0].first,
        buffer=np.concatenate([*bodies, np.zeros(PADDING, np.uint8)]),
        bounds=np.concatenate([*bounds, ends[-1:]]),
        transactions=pa.concat_batches([part.transactions for part in parts]),
        definitions=tuple(dict.fromkeys(each for part in parts for each in part.definitions)),
        tables=tables,
        widths=_widths(parts),
    )


def _widths(parts: Sequence[Frames]) -> npt.NDArray[np.uint32] | None:
    if all(part.widths is None for part in parts):
        return None
    ones = [np.ones(part.count, np.uint32) if part.widths is None else part.widths for part in parts]
    return np.concatenate(ones)
