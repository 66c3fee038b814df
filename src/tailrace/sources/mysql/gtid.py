"""How far a stream has come: the place behind each of its transactions, for many of them at once."""

from __future__ import annotations

import struct
import uuid
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SourceRefused
from tailrace.model.positions import Binlog, GtidSet, MariaDbGtids
from tailrace.sources.mysql.positions import parse

Integers = npt.NDArray[np.int64]
_TAGGED = 1
"""The format of sets with tags."""


class Progress(Protocol):
    """The place that a stream has reached, as text; `after` moves it behind transactions, and says where each ends.

    With `is_dense`, numbers that lie between two of a server have to be told as well.
    """

    is_dense: bool

    def __str__(self) -> str: ...
    def _add(self, server: str, number: int) -> None: ...
    def _around(self, server: str) -> tuple[str, str]:
        """What stands before and behind the number of this server's last transaction."""


def progress_from(position: str) -> Progress:
    place = parse(position)
    match place:
        case GtidSet():
            return _Executed(place)
        case MariaDbGtids():
            return _Domains(place)
        case _:
            return _InFile(place)


def after(progress: Progress, servers: list[str], numbers: Integers) -> pa.StringArray:
    """Where each of these transactions ends, in the order of the stream.

    Those of a run of one server's differ in one number.
    """
    if not len(numbers):
        return pa.array([], pa.string())
    names = np.array(servers, object)
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = names[1:] != names[:-1]
    if progress.is_dense:
        is_first[1:] |= np.diff(numbers) != 1
    starts = np.flatnonzero(is_first)
    texts = []
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
        progress._add(servers[start], int(numbers[start]))
        texts.append(pa.array([str(progress)]))
        if end - start > 1:
            progress._add(servers[start], int(numbers[start + 1]))
        if end - start == 2:  # it may have closed a gap, and the interval ends elsewhere
            texts.append(pa.array([str(progress)]))
        elif end - start > 2:
            texts.append(_numbered(*progress._around(servers[start]), numbers[start + 1 : end]))
            for number in _rest(progress, numbers[start + 2 : end]):
                progress._add(servers[start], number)
    return pa.concat_arrays(texts)


def _rest(progress: Progress, numbers: Integers) -> list[int]:
    """Those that the progress has to hear of one by one: the last of a run is enough, if they grow."""
    if isinstance(progress, _Executed) and len(numbers):
        progress.stretch(int(numbers[-1]))
        return []
    is_growing = bool((np.diff(numbers) > 0).all())
    return [int(number) for number in (numbers[[0, -1]] if is_growing and len(numbers) > 1 else numbers)]


def _numbered(before: str, behind: str, numbers: Integers) -> pa.StringArray:
    written = pc.cast(pa.array(numbers), pa.string())
    return pc.binary_join_element_wise(pa.scalar(before), written, pa.scalar(behind), "")


class _Executed:
    """MySQL: all that was executed."""

    is_dense = True

    def __init__(self, place: GtidSet) -> None:
        self._intervals = {key: [list(pair) for pair in each] for key, each in place.intervals.items()}
        self._last: list[int] = []  # the interval that grew last

    def __str__(self) -> str:
        return str(GtidSet({key: tuple((a, b) for a, b in self._intervals[key]) for key in sorted(self._intervals)}))

    def _add(self, server: str, number: int) -> None:
        intervals = self._intervals.setdefault(server, [])
        for place, pair in enumerate(intervals):
            if pair[0] - 1 <= number <= pair[1] + 1:
                pair[0], pair[1] = min(pair[0], number), max(pair[1], number)
                if place + 1 < len(intervals) and intervals[place + 1][0] <= pair[1] + 1:
                    pair[1] = max(pair[1], intervals.pop(place + 1)[1])
                self._last = pair
                return
        self._last = [number, number]
        intervals.append(self._last)
        intervals.sort()

    def stretch(self, number: int) -> None:
        """The interval that grew last goes on to there; nothing of it was known."""
        last = self._last
        for intervals in self._intervals.values():
            if any(pair is last for pair in intervals):
                last[1] = max(last[1], number)
                merged: list[list[int]] = []
                for pair in sorted(intervals):
                    if merged and pair[0] <= merged[-1][1] + 1:
                        merged[-1][1] = max(merged[-1][1], pair[1])
                    else:
                        merged.append(pair)
                intervals[:] = merged

    def _around(self, server: str) -> tuple[str, str]:
        mark = self._last[1]
        self._last[1] = 1 << 62  # a number that is no other's
        before, _, behind = str(self).partition(str(1 << 62))
        self._last[1] = mark
        return before, behind


class _Domains:
    """MariaDB: the last of each domain."""

    is_dense = False

    def __init__(self, place: MariaDbGtids) -> None:
        self._domains = dict(place.domains)

    def __str__(self) -> str:
        return str(MariaDbGtids(dict(sorted(self._domains.items()))))

    def _add(self, server: str, number: int) -> None:
        """Numbers have to grow: what a snapshot sees is known by the last one alone."""
        domain, _, origin = server.partition("-")
        if number <= self._domains.get(int(domain), (0, -1))[1]:
            raise SourceRefused(
                f"the binary log has {server}-{number} behind a GTID of domain {domain} that is not smaller: several"
                " servers write to one domain",
                hint="give each its own gtid_domain_id, and set gtid_strict_mode to ON; then begin anew",
            )
        self._domains[int(domain)] = (int(origin), number)

    def _around(self, server: str) -> tuple[str, str]:
        domain = int(server.partition("-")[0])
        origin, number = self._domains[domain]
        self._domains[domain] = (origin, 1 << 62)
        before, _, behind = str(self).partition(str(1 << 62))
        self._domains[domain] = (origin, number)
        return before, behind


class _InFile:
    """A file, and a byte in it."""

    is_dense = False

    def __init__(self, place: Binlog) -> None:
        self._file, self._offset = f"{place.name}.{place.digits}", place.offset

    def __str__(self) -> str:
        return f"{self._file}:{self._offset}"

    def _add(self, server: str, number: int) -> None:
        self._file, self._offset = server, number

    def _around(self, server: str) -> tuple[str, str]:
        return f"{server}:", ""


def encoded(place: GtidSet) -> bytes:
    """A GTID set as COM_BINLOG_DUMP_GTID has it: servers with intervals, of which the end is the first one outside.

    Server sources, `Gtid_set::encode`: with tags, their number has the format on both sides of it, and each has a tag.
    """
    has_tags = any(":" in server for server in place.intervals)
    count = len(place.intervals)
    parts = [struct.pack("<Q", count << 8 | _TAGGED | _TAGGED << 56 if has_tags else count)]
    for key, intervals in place.intervals.items():
        server, _, tag = key.partition(":")
        named = bytes([len(tag) << 1]) + tag.encode() if has_tags else b""
        parts.append(uuid.UUID(server).bytes + named + struct.pack("<Q", len(intervals)))
        parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
    return b"".join(parts)
