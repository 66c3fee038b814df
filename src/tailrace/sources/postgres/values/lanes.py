"""Walking the columns of many tuples at once.

Every message of a relation has the same shape, so the walk steps through *columns*: one array of cursors, a lane a row.
Protocol page: "Logical Replication Message Formats", TupleData.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrace.errors import DecodeError

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

NULL, UNCHANGED, TEXT, BINARY = (ord(kind) for kind in "nutb")
_VALID = np.zeros(256, np.bool_)
_VALID[[NULL, UNCHANGED, TEXT, BINARY]] = True
HAS_VALUE = np.zeros(256, np.bool_)
HAS_VALUE[[TEXT, BINARY]] = True


@dataclass(slots=True)
class Lane:
    """One column of all lanes: the kind of each value, where it is, and how long."""

    kind: Bytes
    place: Integers
    length: Integers


def big_endian(buffer: Bytes, at: Integers, width: int) -> Integers:
    """The signed `width`-byte integer at each of the places `at`; one that reaches past the buffer is noise."""
    everywhere = np.ndarray((len(buffer) - width + 1,), f">i{width}", buffer, 0, (1,))  # overlapping: one a byte
    try:
        return everywhere[at].astype(np.int64)
    except IndexError:
        return everywhere[np.minimum(at, len(everywhere) - 1)].astype(np.int64)


def walk(buffer: Bytes, cursor: Integers, end: Integers, columns: int) -> tuple[list[Lane], Integers]:
    """The tuples at `cursor` (their column count first), and where each ends. Never reads past a message's `end`."""
    _inside(cursor + 2 <= end)
    if (big_endian(buffer, cursor, 2) != columns).any():
        raise DecodeError(f"a row does not have the {columns} columns of its relation")
    cursor = cursor + 2
    cells = []
    for _ in range(columns):
        _inside(cursor < end)
        kind = buffer[cursor]
        if not _VALID[kind].all():
            raise DecodeError("a value is of a kind that pgoutput does not have")
        has_value = HAS_VALUE[kind]
        if has_value.all():
            length = big_endian(buffer, cursor + 1, 4)
            place = cursor + 5
            cursor = place + length
        else:
            length = np.where(has_value, big_endian(buffer, cursor + 1, 4), 0)
            place = cursor + 5
            cursor = np.where(has_value, place + length, cursor + 1)
            place = np.minimum(place, end)
        _inside((length >= 0) & (cursor <= end))
        cells.append(Lane(kind, place, length))
    return cells, cursor


def blank(count: int) -> Lane:
    """Lanes without a value."""
    return Lane(np.full(count, NULL, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))


def _inside(is_inside: npt.NDArray[np.bool_]) -> None:
    if not is_inside.all():
        raise DecodeError("a message is shorter than its contents claim")
