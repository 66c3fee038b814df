"""Walking the rows of many events at once: a lane an event, a step a column of a row.

Protocol page: "Rows_event". Every event of a table has rows of the same shape, so a step moves all lanes by one value.
Events whose rows are all alike need no walk (`decode_alike`). A lane that has come to the end of its event drops out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrace.errors import DecodeError
from tailrace.sources.mysql import decode_alike
from tailrace.sources.mysql.decode_maps import MapColumn
from tailrace.sources.mysql.events import Bytes, Integers, little_endian

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Cell:
    """One column of all rows: where its values begin, how long they are, and which are NULL (None: not one)."""

    place: Integers
    length: Integers | None  # None: all as wide as the column
    null: Flags | None


@dataclass(slots=True)
class Walked:
    """The rows of some events in their order: of which event each is, and the cells of each image."""

    event: Integers
    images: list[list[Cell]]

    def __len__(self) -> int:
        return len(self.event)


def present(bitmap: bytes, count: int) -> list[int]:
    """The columns that an image has."""
    return [column for column in range(count) if bitmap[column // 8] >> column % 8 & 1]


def count_rows(buffer: Bytes, at: Integers, end: Integers, images: Sequence[Sequence[MapColumn]]) -> Integers:
    """How many rows each event has."""
    counts = np.zeros(len(at), np.int64)
    lanes = np.flatnonzero(at < end)
    if (alike := _alike(buffer, at[lanes], end[lanes], images)) is not None:
        counts[lanes[alike.lanes]] = alike.counts
        lanes = np.delete(lanes, alike.lanes)
    at, end = at[lanes], end[lanes]
    while len(lanes):
        for image in images:
            at, _ = _step(buffer, at, image, keeps=False)
        counts[lanes] += 1
        _inside(at, end)
        going = at < end
        if not going.all():
            lanes, at, end = lanes[going], at[going], end[going]
    return counts


def walk(buffer: Bytes, at: Integers, end: Integers, images: Sequence[Sequence[MapColumn]]) -> Walked:
    """All rows that lie in `at … end` of the buffer, each as so many images."""
    lanes, found = np.flatnonzero(at < end), []
    if (alike := _alike(buffer, at[lanes], end[lanes], images)) is not None:
        cells = [[Cell(*cell) for cell in image] for image in alike.cells()]
        found.append((np.repeat(lanes[alike.lanes], alike.counts), cells))
        lanes = np.delete(lanes, alike.lanes)
    at, end = at[lanes], end[lanes]
    while len(lanes):
        cells = []
        for image in images:
            at, each = _step(buffer, at, image)
            cells.append(each)
        _inside(at, end)
        found.append((lanes, cells))
        going = at < end
        if not going.all():
            lanes, at, end = lanes[going], at[going], end[going]
    return _in_order(found, images)


def _alike(
    buffer: Bytes, at: Integers, end: Integers, images: Sequence[Sequence[MapColumn]]
) -> decode_alike.Alike | None:
    try:
        return decode_alike.find(buffer, at, end, images)
    except IndexError:
        raise DecodeError("a row event is shorter than its contents claim") from None


def _inside(at: Integers, end: Integers) -> None:
    if (at > end).any():
        raise DecodeError("a row event is shorter than its contents claim")


def _step(
    buffer: Bytes, at: Integers, image: Sequence[MapColumn], *, keeps: bool = True
) -> tuple[Integers, list[Cell]]:
    """Where the images that begin at `at` end, and their cells."""
    try:
        bits = decode_alike.nulls(buffer, at, len(image))
        at = at + (len(image) + 7) // 8
        return _step_dense(buffer, at, image, keeps) if not bits.any() else _step_sparse(buffer, at, image, bits)
    except IndexError:
        raise DecodeError("a row event is shorter than its contents claim") from None


def _step_dense(buffer: Bytes, at: Integers, image: Sequence[MapColumn], keeps: bool) -> tuple[Integers, list[Cell]]:
    """Nothing is NULL: columns of fixed width are stepped over together."""
    cells, ahead = [], 0
    for column in image:
        if not column.prefix:
            if keeps:
                cells.append(Cell(at + ahead, None, None))
            ahead += column.width
            continue
        place = at + ahead if ahead else at
        length = little_endian(buffer, place, column.prefix)
        place = place + column.prefix
        if keeps:
            cells.append(Cell(place, length, None))
        at, ahead = place + length, 0
    return at + ahead if ahead else at, cells


def _step_sparse(buffer: Bytes, at: Integers, image: Sequence[MapColumn], bits: Bytes) -> tuple[Integers, list[Cell]]:
    cells = []
    has_null: Flags = np.asarray(bits.any(axis=0))
    for number, column in enumerate(image):
        null = None
        if has_null[number // 8]:
            null = (bits[:, number // 8] >> number % 8 & 1).astype(np.bool_)
        if column.prefix:
            length = little_endian(buffer, at, column.prefix)
            if null is not None:
                length[null] = 0
            cells.append(Cell(at + column.prefix, length, null))
            at = at + length + (column.prefix if null is None else np.where(null, 0, column.prefix))
        else:
            cells.append(Cell(at, None, null))
            at = at + (column.width if null is None else np.where(null, 0, column.width))
    return at, cells


def _in_order(found: list[tuple[Integers, list[list[Cell]]]], images: Sequence[Sequence[MapColumn]]) -> Walked:
    """Steps put together: rows of one event stand behind each other."""
    if len(found) == 1:
        return Walked(*found[0])
    if not found:
        nothing = np.zeros(0, np.int64)
        return Walked(nothing, [[Cell(nothing, nothing, None) for _ in image] for image in images])
    event = np.concatenate([lanes for lanes, _ in found])
    order = np.argsort(event, kind="stable")
    joined = [
        [_joined([cells[number][column] for _, cells in found], order) for column in range(len(image))]
        for number, image in enumerate(images)
    ]
    return Walked(event[order], joined)


def _joined(cells: list[Cell], order: Integers) -> Cell:
    place = np.concatenate([cell.place for cell in cells])[order]
    length = None
    if cells[0].length is not None:
        length = np.concatenate([cell.length for cell in cells if cell.length is not None])[order]
    null = None
    if any(cell.null is not None for cell in cells):
        blank = [np.zeros(len(cell.place), np.bool_) if cell.null is None else cell.null for cell in cells]
        null = np.concatenate(blank)[order]
    return Cell(place, length, null)
