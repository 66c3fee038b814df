"""What a stream of messages amounts to: of each key its last row. So sinks of changes are compared with their source.

Messages are spilled to disk by their keys, and one part of the keys is in memory at a time: that of a table of millions
of rows is small. A message is bytes until it is known to be the last one of its key.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

from tailrace.errors import DecodeError, SinkRejected

PARTS = 256
SPILL_BYTES = 32 << 20
AT_ONCE = 4096
KEPT = 64
"""The most messages of a key that are kept for what later ones did not send."""

Values = dict[str, Any]


class Told(NamedTuple):
    """A row as a message tells it, None for one that is gone; `unsent` are columns whose values it did not send."""

    row: Values | None
    unsent: frozenset[str] = frozenset()


Read = Callable[[bytes], Told]
GONE = Told(None)


class Message(NamedTuple):
    """`lane` is what the order of messages holds in; no `value`: a tombstone. `epoch` counts the lane's truncates."""

    lane: int
    epoch: int
    place: int
    key: bytes
    value: bytes | None


class Replay:
    """To be filled in the order of each lane, and then read once."""

    def __init__(self, read: Read, name: str) -> None:
        self._read, self._name = read, name
        self._folder = TemporaryDirectory(prefix="tailrace-verify-")
        self._waiting: dict[int, list[Message]] = defaultdict(list)
        self._waiting_bytes = 0
        self._epochs: dict[int, int] = defaultdict(int)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def add(self, lane: int, place: int, key: bytes, value: bytes | None) -> None:
        self._waiting[crc32(key) % PARTS].append(Message(lane, self._epochs[lane], place, key, value))
        self._waiting_bytes += len(key) + len(value or b"") + 64
        if self._waiting_bytes > SPILL_BYTES:
            self._spill()

    def truncate(self, lane: int) -> None:
        """What came before in this lane does not hold any more."""
        self._epochs[lane] += 1

    def was_truncated(self, lane: int) -> bool:
        return self._epochs[lane] > 0

    def rows(self) -> Iterator[list[Told]]:
        """All rows that are there in the end. A key in two lanes is two rows: nobody can tell which one is later."""
        self._spill()
        for part in range(PARTS):
            found = [told for told in self._last(part) if told.row is not None]
            for start in range(0, len(found), AT_ONCE):
                yield found[start : start + AT_ONCE]

    def _spill(self) -> None:
        for part, messages in self._waiting.items():
            with self._path(part).open("ab") as file:
                pickle.dump([tuple(message) for message in messages], file, pickle.HIGHEST_PROTOCOL)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _path(self, part: int) -> Path:
        return Path(self._folder.name) / str(part)

    def _messages(self, part: int) -> Iterator[Message]:
        if not (path := self._path(part)).exists():
            return
        with path.open("rb") as file:
            while file.peek(1):
                yield from map(Message._make, pickle.load(file))

    def _last(self, part: int) -> Iterator[Told]:
        kept: dict[tuple[int, bytes], list[Message | Told]] = {}
        for message in self._messages(part):
            if message.epoch == self._epochs[message.lane]:
                own = kept.setdefault((message.lane, message.key), [])
                if message.value is None:
                    own.clear()
                else:
                    own.append(message)
                    if len(own) > KEPT:
                        own[:] = [self._merged(own)]
        return (self._merged(messages) for messages in kept.values() if messages)

    def _merged(self, messages: list[Message | Told]) -> Told:
        """The last message, with what it did not send as earlier ones had it."""
        last = self._told(messages[-1])
        row, unsent = last.row, last.unsent
        for message in reversed(messages[:-1]):
            if row is None or not unsent:
                break
            before = self._told(message)
            if before.row is None:
                break
            row = row | {name: before.row.get(name) for name in unsent - before.unsent}
            unsent = unsent & before.unsent
        return Told(row, unsent)

    def _told(self, message: Message | Told) -> Told:
        if isinstance(message, Told):
            return message
        assert message.value is not None
        try:
            return self._read(message.value)
        except DecodeError as error:
            raise foreign(self._name, message.lane, message.place) from error


def foreign(name: str, lane: int, place: int) -> SinkRejected:
    return SinkRejected(f"{name} has a message that is none of this sink's, at {lane}:{place}")


def rows_of(tolds: list[Told], columns: list[str]) -> list[tuple[Any, ...]]:
    """As `verify` compares them. A row from before a column came has null in it."""
    return [tuple(_plain(told.row.get(name)) for name in columns) for told in tolds if told.row is not None]


def _plain(value: Any) -> Any:
    """A value that the same bytes stand for wherever it comes from."""
    match value:
        case None | str() | int() | float() | bytes():
            return value
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(value[name]) for name in sorted(value)}
        case _:
            return str(value)
