"""Transactions of a stretch of events: where each begins and ends, what it is called, and when it was committed.

A group is a GTID event and what follows up to its end: an XID, a COMMIT, or a statement that stands alone.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tailrace.errors import DecodeError, SourceRefused
from tailrace.sources.mysql import events as kinds
from tailrace.sources.mysql import queries
from tailrace.sources.mysql.events import BODY, HEADER, Events, Integers, little_endian
from tailrace.sources.mysql.queries import Meaning, Query
from tailrace.sources.mysql.tagged_gtid import tagged

_STANDALONE = 1
"""A flag of MariaDB's GTID event: one statement follows, and no end."""
_BEGIN = np.frombuffer(b"BEGIN", np.uint8)


@dataclass(slots=True)
class Groups:
    """Of each event, the number of its group among these (0: the one that was open before them).

    `servers`, `numbers` and `times` are of each group; `ends` the rows of the events that end one, in order.
    """

    group: Integers
    servers: list[str]
    numbers: Integers
    times: Integers
    ends: Integers
    is_read: npt.NDArray[np.bool_]  # of each group: it was read before, and is not told again
    statements: list[tuple[int, Query]] = field(default_factory=list)
    files: list[tuple[int, str]] = field(default_factory=list)


class Grouping:
    """Carries the group that is open from one stretch to the next, and the name of the file."""

    def __init__(self, file: str = "", *, in_files: bool = False) -> None:
        self.file, self._in_files = file, in_files
        self._open: tuple[str, int, int] | None = None
        self._is_alone = False  # the open group has had nothing yet
        self._names: dict[bytes, str] = {}

    def read(self, events: Events) -> Groups:
        types = events.types
        begins = np.flatnonzero(np.isin(types, kinds.GTIDS))
        queries_ = self._statements(events, types, begins)
        files = [(row, _rotated(events, row)) for row in np.flatnonzero(types == kinds.ROTATE).tolist()]
        is_end = (types == kinds.XID) | (types == kinds.PAYLOAD) | (types == kinds.XA_PREPARE)
        for row, _, is_last in queries_:
            is_end[row] |= is_last
        self._refuse(types)
        if not self._in_files and (types == kinds.ANONYMOUS_GTID).any():
            raise SourceRefused(
                "the binary log has a transaction without a GTID, and our place is a set of them",
                hint="set gtid_mode back to ON, and begin anew; all tables are copied then",
            )
        group: Integers = np.cumsum(np.isin(types, kinds.GTIDS), dtype=np.int64)
        ends = np.flatnonzero(is_end)
        self._check(group, ends, len(begins))
        servers, numbers, times = self._named(events, types, begins)
        if self._in_files:
            servers, numbers = self._placed(begins, files), events.number(begins, 13, 4)
        carried = self._open or ("", 0, 0)
        found = Groups(
            group=group,
            servers=[carried[0], *servers],
            numbers=np.concatenate([[carried[1]], numbers]),
            times=np.concatenate([[carried[2]], times]),
            ends=ends,
            is_read=np.zeros(len(servers) + 1, np.bool_),
            statements=[(row, query) for row, query, _ in queries_],
            files=files,
        )
        self._carry(found, len(begins))
        return found

    def _placed(self, begins: Integers, files: list[tuple[int, str]]) -> list[str]:
        """The file that each begins in. With the byte behind its first event it has a name before its end is known,
        and no place between two transactions lies between that byte and its end."""
        names = [self.file, *(name for _, name in files)]
        return [names[place] for place in np.searchsorted([row for row, _ in files], begins).tolist()]

    def _carry(self, groups: Groups, count: int) -> None:
        ended = groups.group[groups.ends[-1]] if len(groups.ends) else -1
        is_open = (self._open is not None or count > 0) and ended != count
        last = (groups.servers[-1], int(groups.numbers[-1]), int(groups.times[-1]))
        self._open = last if is_open else None
        self.file = groups.files[-1][1] if groups.files else self.file

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def _check(self, group: Integers, ends: Integers, count: int) -> None:
        """Each group ends once, before the next begins."""
        ended = group[ends]
        first = 0 if self._open is not None else 1
        expected = np.arange(first, first + len(ended))
        if (ended != expected).any() or first + len(ended) < count:
            raise DecodeError("a transaction of the binary log does not end, or ends twice")

    def _statements(
        self, events: Events, types: npt.NDArray[np.uint8], begins: Integers
    ) -> list[tuple[int, Query, bool]]:
        """Query events other than BEGIN, and whether each ends its group."""
        rows = np.flatnonzero(types == kinds.QUERY)
        found = []
        relevant = np.flatnonzero(~np.isin(types, list(kinds.IGNORED)))
        place = np.zeros(len(types), np.int64)
        place[relevant] = np.arange(len(relevant))
        for row in rows[~_is_begin(events, rows)].tolist():
            query = queries.parse(events.body(row))
            before = int(place[row]) - 1
            is_alone = _is_of_one(events, types, int(relevant[before])) if before >= 0 else self._is_alone
            found.append((row, query, self._ends(query, is_alone)))
        if len(relevant):
            self._is_alone = _is_of_one(events, types, int(relevant[-1]))
        return found

    def _ends(self, query: Query, is_alone: bool) -> bool:
        match query.meaning:
            case Meaning.END | Meaning.XA_END:
                return True
            case Meaning.BEGIN | Meaning.INSIDE:
                return False
            case Meaning.ROLLBACK:
                raise SourceRefused("the binary log has a transaction that was rolled back: rows of it may not be real")
            case Meaning.CHANGE:
                raise SourceRefused(
                    f"the binary log has a change of {query.database} as a statement, not as rows",
                    hint="run: SET GLOBAL binlog_format = 'ROW', then start all sessions of the server anew",
                )
            case _:
                return is_alone

    def _refuse(self, types: npt.NDArray[np.uint8]) -> None:
        present = set(np.unique(types).tolist())
        if kinds.INCIDENT in present:
            raise SourceRefused("the server says that its binary log lacks changes (an incident event)")
        for kind, name in kinds.STATEMENTS.items():
            if kind in present:
                raise SourceRefused(
                    f"the binary log has statements instead of rows ({name} event)",
                    hint="run: SET GLOBAL binlog_format = 'ROW', then start all sessions of the server anew",
                )
        if kinds.PARTIAL_UPDATE in present:
            raise SourceRefused(
                "the binary log has partial updates of JSON", hint="run: SET GLOBAL binlog_row_value_options = ''"
            )
        known = {kinds.QUERY, kinds.XID, kinds.XA_PREPARE, kinds.TABLE_MAP, kinds.PAYLOAD}
        known |= {*kinds.ROWS, *kinds.GTIDS, *kinds.IGNORED}
        if unknown := present - known:
            raise DecodeError(f"the binary log has events of the unknown type {min(unknown)}")

    def _named(
        self, events: Events, types: npt.NDArray[np.uint8], begins: Integers
    ) -> tuple[list[str], Integers, Integers]:
        """Whose transaction each is, its number, and its time."""
        kind = types[begins]
        times = events.number(begins, 0, 4) * 1_000_000
        numbers, servers = np.zeros(len(begins), np.int64), [""] * len(begins)
        if (kind == kinds.MARIADB_GTID).any():
            numbers = events.number(begins, HEADER, 8)
            pairs = zip(
                events.number(begins, HEADER + 8, 4).tolist(), events.number(begins, 5, 4).tolist(), strict=True
            )
            return [f"{domain}-{server}" for domain, server in pairs], numbers, times
        if len(begins):
            numbers = events.number(begins, HEADER + 17, 8)
            servers = self._uuids(events, begins)
            committed = little_endian(events.buffer, events.starts[begins] + BODY + 42, 7) & ((1 << 55) - 1)
            is_told = events.ends[begins] - events.starts[begins] >= BODY + 49
            times = np.where(is_told & (committed > 0), committed, times)
        for place in np.flatnonzero(kind == kinds.GTID_TAGGED).tolist():
            servers[place], numbers[place], times[place] = tagged(events.body(int(begins[place])))
        return servers, numbers, times

    def _uuids(self, events: Events, begins: Integers) -> list[str]:
        window = np.ndarray((len(events.buffer) - 15,), "V16", events.buffer, 0, (1,))
        raw = window[events.starts[begins] + BODY + 1]
        distinct, codes = np.unique(raw, return_inverse=True)
        names = [str(uuid.UUID(bytes=each.tobytes())) for each in distinct]
        return [names[code] for code in codes.tolist()]


def _is_of_one(events: Events, types: npt.NDArray[np.uint8], row: int) -> bool:
    """Whether a group begins here that has one statement and nothing else, which ends it.

    MariaDB says so (FL_STANDALONE): its CREATE TABLE … SELECT is a statement, then rows, then an end.
    """
    if types[row] == kinds.MARIADB_GTID:
        return bool(events.number(np.array([row]), HEADER + 12, 1)[0] & 1)
    return bool(types[row] in kinds.GTIDS)


def _is_begin(events: Events, rows: Integers) -> npt.NDArray[np.bool_]:
    """Which Query events are a BEGIN: nearly all of them."""
    starts = events.starts[rows] + BODY
    text = starts + 14 + little_endian(events.buffer, starts + 11, 2) + events.buffer[starts + 8]
    size = events.ends[rows] - events.trailers[rows] - text
    found = size == len(_BEGIN)
    window = np.ndarray((len(events.buffer) - 4, 5), np.uint8, events.buffer, 0, (1, 1))
    found[found] = (window[text[found]] == _BEGIN).all(axis=1)
    return np.asarray(found)


def _rotated(events: Events, row: int) -> str:
    return events.body(row)[8:].decode()


def now_us() -> int:
    return int(time.time() * 1_000_000)
