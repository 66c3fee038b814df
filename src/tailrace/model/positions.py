"""Positions in the logs of databases: read, written in one way, and compared.

| kind of source | position | example |
|---|---|---|
| postgresql | log sequence number | `16/B374D848` |
| mysql, mariadb | binlog file and position | `binlog.000042:1337` |
| mysql | GTID set | `3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:11` |
| mariadb | GTIDs, one a domain | `0-1-100,1-7-3` |

A place of MySQL's or MariaDB's may say behind itself where to read from, `binlog.000042:1337 from binlog.000041:4`: a
transaction that was prepared there (XA) was not ended yet.

The order is partial: of two GTID sets neither may contain the other. A position of a kind that is not listed is its
source's own affair: it is kept as it is, and never compared.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar, Protocol, Self

import msgspec

from tailrace.errors import ConfigError

ALIASES = {"postgres": "postgresql"}
"""Schemes that mean another one."""


class Order(StrEnum):
    """How one position stands to another."""

    BEFORE = "before"
    SAME = "same"
    AFTER = "after"
    APART = "apart"  # neither is before the other


class Position(Protocol):
    """`form` says how it is written; `is_global` that it means the same on every server of a group."""

    form: ClassVar[str]
    is_global: ClassVar[bool]

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for a text that is of another form, or of none."""

    def __str__(self) -> str: ...

    def contains(self, other: Self) -> bool:
        """Whether all that lies before `other` lies before this one."""


class Lsn(msgspec.Struct, frozen=True):
    """PostgreSQL: a byte of the write-ahead log. Zero is no place that a stream can reach."""

    number: int

    form: ClassVar[str] = "a log sequence number such as 16/B374D848"
    is_global: ClassVar[bool] = False

    @classmethod
    def parse(cls, text: str) -> Self | None:
        match = re.fullmatch(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", text)
        number = (int(match[1], 16) << 32) | int(match[2], 16) if match else 0
        return cls(number) if number else None

    def __str__(self) -> str:
        return f"{self.number >> 32:X}/{self.number & 0xFFFFFFFF:X}"

    def contains(self, other: Self) -> bool:
        return self.number >= other.number


class Binlog(msgspec.Struct, frozen=True):
    """MySQL, MariaDB: a file and a byte in it. Files are in the order of their numbers, not of their names.

    A file begins with four bytes that are no event.
    """

    name: str
    digits: str
    offset: int
    since: str = ""

    form: ClassVar[str] = "a binlog file and position such as binlog.000042:1337"
    is_global: ClassVar[bool] = False
    FIRST: ClassVar[int] = 4

    @classmethod
    def parse(cls, text: str) -> Self | None:
        text, since = _parted(text)
        match = re.fullmatch(r"([^:/\s]+)\.(\d{1,18}):(\d{1,18})", text, re.ASCII)
        return cls(match[1], match[2], int(match[3]), since) if match and int(match[3]) >= cls.FIRST else None

    def __str__(self) -> str:
        return with_since(f"{self.name}.{self.digits}:{self.offset}", self.since)

    def contains(self, other: Self) -> bool:
        return self.name == other.name and (int(self.digits), self.offset) >= (int(other.digits), other.offset)


_SINCE = " from "


def with_since(text: str, since: str) -> str:
    """A place, and where to read from to have all that is not ended there."""
    return f"{text}{_SINCE}{since}" if since else text


def _parted(text: str) -> tuple[str, str]:
    place, _, since = text.partition(_SINCE)
    return place, since


Interval = tuple[int, int]
"""First and last."""


class GtidSet(msgspec.Struct, frozen=True):
    """MySQL: the transactions that were executed, by the server (and tag) that they began on.

    The intervals of each are merged and in order, so that equal sets are written alike.
    """

    intervals: dict[str, tuple[Interval, ...]]
    since: str = ""

    form: ClassVar[str] = "a GTID set such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
    is_global: ClassVar[bool] = True

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Reference manual, "GTID Sets"; tags are of MySQL 8.3."""
        found: dict[str, list[Interval]] = {}
        text, since = _parted(text)
        for part in re.split(r"\s*,\s*", text.strip()):
            match = re.fullmatch(rf"({_UUID})((?::(?:{_TAG}|{_INTERVAL}))+)", part)
            if match is None or not _read_set(match[1].lower(), match[2][1:].split(":"), found):
                return None
        return cls({key: _merged(found[key]) for key in sorted(found)}, since)

    def __str__(self) -> str:
        text = ",".join(
            ":".join([key, *(f"{first}" if first == last else f"{first}-{last}" for first, last in each)])
            for key, each in self.intervals.items()
        )
        return with_since(text, self.since)

    def contains(self, other: Self) -> bool:
        return all(
            any(low <= first and last <= high for low, high in self.intervals.get(key, ()))
            for key, each in other.intervals.items()
            for first, last in each
        )


_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_TAG = r"[A-Za-z_][A-Za-z0-9_]{0,31}"
_INTERVAL = r"[1-9]\d{0,18}(?:-[1-9]\d{0,18})?"


def _read_set(server: str, parts: list[str], found: dict[str, list[Interval]]) -> bool:
    """Add the intervals of one server; False if a tag has none, or one ends before it begins."""
    key, is_open = server, False
    for part in parts:
        if not part[0].isdigit():
            if is_open:
                return False
            key, is_open = f"{server}:{part.lower()}", True
            continue
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            return False
        found.setdefault(key, []).append((int(first), int(last or first)))
        is_open = False
    return not is_open


def _merged(intervals: list[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


class MariaDbGtids(msgspec.Struct, frozen=True):
    """MariaDB: the last transaction of each domain, with the server that it began on.

    Numbers of a domain grow whichever server it is on; the same one of two servers is two histories.
    """

    domains: dict[int, tuple[int, int]]  # server and number
    since: str = ""

    form: ClassVar[str] = "GTIDs such as 0-1-100, one a domain"
    is_global: ClassVar[bool] = True

    @classmethod
    def parse(cls, text: str) -> Self | None:
        text, since = _parted(text)
        matches = [
            re.fullmatch(r"(\d{1,10})-(\d{1,10})-(\d{1,20})", part, re.ASCII)
            for part in re.split(r"\s*,\s*", text.strip())
        ]
        found = {int(match[1]): (int(match[2]), int(match[3])) for match in matches if match}
        return cls(dict(sorted(found.items())), since) if len(found) == len(matches) else None

    def __str__(self) -> str:
        text = ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in self.domains.items())
        return with_since(text, self.since)

    def contains(self, other: Self) -> bool:
        return all(
            domain in self.domains and (self.domains[domain] == last or self.domains[domain][1] > last[1])
            for domain, last in other.domains.items()
        )


FORMS: dict[str, tuple[type[Position], ...]] = {
    "postgresql": (Lsn,),
    "mysql": (Binlog, GtidSet),
    "mariadb": (Binlog, MariaDbGtids),
}
"""By the kind of the source. No text is of two forms."""


def kind_of(scheme: str) -> str:
    """The kind of source that a URL's scheme means."""
    return ALIASES.get(scheme.lower(), scheme.lower())


def parse(kind: str, text: str) -> Position | None:
    """The position of a source of this kind; None where nothing is known of its positions. Raises ConfigError."""
    forms = FORMS.get(kind_of(kind), ())
    for form in forms:
        if (found := form.parse(text)) is not None:
            return found
    if forms or not text:
        expected = ", or ".join(form.form for form in forms) or "a text that is not empty"
        raise ConfigError(f"{text!r} is no position of a {kind} source", hint=f"a position is {expected}")
    return None


def compare(kind: str, one: str, other: str) -> Order | None:
    """How `one` stands to `other`; None if nothing is known of such positions. Positions of two forms are apart."""
    if one == other:
        return Order.SAME
    left, right = parse(kind, one), parse(kind, other)
    if left is None or right is None:
        return None
    if type(left) is not type(right):
        return Order.APART
    return _ORDERS[left.contains(right), right.contains(left)]


_ORDERS: dict[tuple[bool, bool], Order] = {
    (True, True): Order.SAME,
    (True, False): Order.AFTER,
    (False, True): Order.BEFORE,
    (False, False): Order.APART,
}
