"""What the pump has read and nobody has acknowledged: pieces in log order, within a bound of memory.

The pump adds at one end, the consumer cuts batches from the other and releases them once they are acknowledged. While
it is full the pump reads nothing, so that the source waits. The one thing that may not wait is a transaction that has
to stay whole and does not fit: its pieces go on into the spool.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

import msgspec

from tailrace.embedded.pieces import InMemory, Kept, Part, Piece
from tailrace.embedded.spool import Spool
from tailrace.errors import TailraceError
from tailrace.model.frames import Frames
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Source


class Cut(msgspec.Struct, frozen=True):
    """Parts that follow one another. They end with a transaction, or inside of the one that is called `inside`.

    `position` is where the last whole transaction ends. `is_resent`: they begin with a transaction of which a part was
    handed out before, because the source had to send it again.
    """

    parts: tuple[Part, ...]
    position: str
    identity: SourceIdentity
    inside: str = ""
    is_resent: bool = False

    @property
    def last(self) -> int:
        return self.parts[-1].last


class Buffer:
    """Shared by two threads: whoever uses it holds `lock`.

    A signal may raise anywhere in the consumer's thread. So there is no Condition here: its methods are Python, and one
    that is broken off behind its lock would leave that locked, and the pump waiting for ever.
    """

    def __init__(self, source: Source, max_bytes: int, batch_bytes: int, *, splits: bool, position: str) -> None:
        self.lock = threading.RLock()
        self._bell = threading.Lock()  # released when there is something new; one thread waits for it
        self.source, self.max_bytes, self.splits = source, max_bytes, splits
        self._batch_bytes = batch_bytes
        self._pieces: deque[Piece] = deque()
        self._spool = Spool()
        self.memory = self.spooled = 0
        self.last = self.committed = self.given = self.released = 0  # offsets
        self.position = self.received = position  # of the last transaction end; how far the source's log was read
        self.error: TailraceError | None = None  # why no more will come
        self.version = 0  # grows whenever there is something new to look at
        self._is_resent = False
        self.offered: Cut | None = None  # it was cut, and nobody has taken it yet

    # --- the pump's side

    @property
    def is_full(self) -> bool:
        """Nothing more may be taken in before something is acknowledged."""
        is_much = self.memory + self.spooled >= self.max_bytes
        return is_much and (self.splits or self.committed > self.released)

    @property
    def is_hungry(self) -> bool:
        """Nothing waits for the consumer."""
        return self.given >= self.committed

    def add(self, frames: Frames, position: str, identity: SourceIdentity, received: str) -> None:
        """What was taken in. Frames that do not follow on replace what there is of an unfinished transaction."""
        with self.lock:
            if frames.first <= self.last:
                self._forget_unfinished()
        piece = self._piece(frames, position, identity)
        with self.lock:
            self._pieces.append(piece)
            self.memory += piece.bytes if piece.in_memory else 0
            self.spooled += 0 if piece.in_memory else piece.bytes
            self.last = piece.last
            self.committed = max(self.committed, piece.last_end)
            self.position, self.received = position, received
            self.tell()

    def heard(self, received: str) -> None:
        """The source's log was read up to there, and nothing in it was for us."""
        with self.lock:
            if received != self.received:
                self.received = received
                self.tell()

    def begin_again(self) -> int:
        """The stream was lost: what follows the last transaction end comes again. Its first offset."""
        with self.lock:
            self._forget_unfinished()
            return self.last + 1

    def fail(self, error: TailraceError) -> None:
        with self.lock:
            self.error = error
            self.tell()

    def tell(self) -> None:
        """There is something new."""
        with self.lock:
            self.version += 1
            if self._bell.locked():
                self._bell.release()

    def wait(self, seen: int, seconds: float) -> None:
        """Until there is something that was not there at version `seen`; it may be too soon, and never too late."""
        if self.version == seen:
            self._bell.acquire(timeout=seconds)

    def _piece(self, frames: Frames, position: str, identity: SourceIdentity) -> Piece:
        size = len(frames.buffer) + frames.transactions.nbytes
        in_memory = self.splits or self.memory < self.max_bytes
        kept: Kept = InMemory(frames) if in_memory else self._spool.write(frames)
        has_messages = any(True for _ in self.source.messages(frames, frames.first, frames.last))
        told = (frames.transactions, sum(frames.tables.values()), has_messages, kept, in_memory, frames.definitions)
        return Piece(frames.first, frames.last, size, position, identity, *told)

    def _forget_unfinished(self) -> None:
        """Of a transaction whose end has not come; if a part of it was handed out, all of it will come again."""
        while self._pieces and self._pieces[-1].first > self.committed:
            self._drop(self._pieces.pop())
        if self._pieces and self._pieces[-1].last > self.committed:
            self._pieces.append(self._pieces.pop().up_to(self.committed))
        self.last = self.committed
        if self.given > self.committed:
            self.given, self._is_resent = self.committed, True

    # --- the consumer's side

    def cut(self) -> Cut | None:
        """What is handed out next: whole transactions, about as much as a batch should have; None if there is none.

        The same one again while it is `offered`: whoever has taken it clears that. Where transactions may be split, one
        that is larger than a batch is handed out as far as it has come.
        """
        if self.offered is not None:
            return self.offered
        taken: list[Piece] = []
        size, end, at = 0, 0, 0
        for piece in self._pieces:
            if piece.last <= self.given:
                continue
            taken.append(piece)
            size += piece.bytes
            if self.given < (found := min(piece.last_end, self.committed)):
                end, at = found, len(taken)
            if size >= self._batch_bytes and (end or self.splits):
                break
        if end:
            return self._cut(taken[:at], end)
        is_due = size >= self._batch_bytes or (taken and self.is_full)
        return self._cut(taken, taken[-1].last) if self.splits and is_due else None

    def _cut(self, pieces: list[Piece], end: int) -> Cut:
        parts = [Part(p, max(p.first, self.given + 1), min(p.last, end)) for p in pieces]
        last, is_resent = pieces[-1], self._is_resent
        ended = last.last_end >= end
        position = self.source.end_positions(last.ending_at(end))[0] if ended else self._position_before(pieces)
        inside = "" if ended else self._open_in(last)
        cut = Cut(tuple(parts), position, last.identity, inside, is_resent)
        self.given, self._is_resent, self.offered = end, False, cut  # at once: no signal comes in between
        return cut

    def _position_before(self, pieces: list[Piece]) -> str:
        """Where the last whole transaction ends, of pieces that end inside of one."""
        return pieces[-1].position

    def _open_in(self, piece: Piece) -> str:
        found = piece.open_at_end
        return "" if found is None else self.source.transaction_ids(found)[0]

    def release(self, offset: int) -> None:
        """Nobody needs what lies up to there. If a signal breaks it off, it can be done again."""
        with self.lock:
            gone = [piece for piece in self._pieces if piece.last <= offset]
            for piece in gone:
                piece.kept.free()
            left = deque(piece for piece in self._pieces if piece.last > offset)
            memory, spooled = _sizes(left)
            released = max(self.released, offset)
            self._pieces, self.memory, self.spooled, self.released = left, memory, spooled, released

    def _drop(self, piece: Piece) -> None:
        self.memory -= piece.bytes if piece.in_memory else 0
        self.spooled -= 0 if piece.in_memory else piece.bytes
        piece.kept.free()


def _sizes(pieces: Iterable[Piece]) -> tuple[int, int]:
    """The bytes in memory, and in the spool."""
    sizes = [(piece.bytes, piece.in_memory) for piece in pieces]
    return sum(size for size, is_in in sizes if is_in), sum(size for size, is_in in sizes if not is_in)
