"""Documents on their way into one index, in bounded pieces, each with its part of the memory beside.

An older version than the one that is there is no error: somebody wrote the document anew meanwhile.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from tailrace import failpoints
from tailrace.errors import SinkRejected
from tailrace.sinks.base import Rejected
from tailrace.sinks.opensearch.bodies import Piece
from tailrace.sinks.opensearch.client import Client
from tailrace.sinks.opensearch.memory import Memory
from tailrace.sinks.opensearch.sending import CONFLICT, Fenced, Sender, Target, Trouble

AT_ONCE = 2
"""Requests of a task that are under way together: the server has something to do while the next is made."""
MOST_REJECTED = 1_000
"""Beyond this many the documents are not the problem."""
PAYLOAD_CHARACTERS = 1 << 17

_FIELD = re.compile(r"field \[([^\]]+)\](?: of type \[([^\]]+)\])?|introduction of \[([^\]]+)\]|field=\"([^\"]+)\"")


class Writer:
    """Writes documents of one table, some requests at a time; a context, at whose end all of them are acknowledged.

    A document comes once: requests may overtake each other. With `is_fatal` the first that is refused is raised;
    otherwise they are `rejected`.
    """

    def __init__(
        self, client: Client, target: Target, fenced: Fenced, *, is_fatal: bool, is_seed: bool = False
    ) -> None:
        self._target, self._is_fatal, self._is_seed = target, is_fatal, is_seed
        self._sender = Sender(client, target, target.alias, fenced)
        self._memory = Memory(client, target, fenced)
        self.rejected: list[Rejected] = []
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)  # waits for those that have begun

    def wait(self) -> None:
        """All that was sent is acknowledged, or refused for good."""
        while self._under_way:
            self._under_way.popleft().result()

    def send(self, pieces: Iterable[Piece]) -> int:
        """How many documents there are. While requests are under way, whoever makes the next ones goes on."""
        count = 0
        for piece in pieces:
            if len(self._under_way) >= AT_ONCE:
                self._under_way.popleft().result()
            self._pool = self._pool or ThreadPoolExecutor(AT_ONCE, "bulk")
            self._under_way.append(self._pool.submit(self._send, piece))
            count += len(piece)
        return count

    def _send(self, piece: Piece) -> None:
        """The order that matters is the memory's: what is to be used, the document, what is not used any more."""
        if piece.rows is None:
            troubles = self._sender.send(piece)
            self._memory.drop(piece, troubles)
        else:
            troubles = self._write(piece)
        for place, trouble in troubles.items():
            if trouble.kind != CONFLICT:
                self._keep(piece, place, trouble)

    def _write(self, piece: Piece) -> dict[int, Trouble]:
        more, unheld = self._memory.add(piece, is_seed=self._is_seed)
        failpoints.reached("documents-remembered")
        held = [place for place in range(len(piece)) if place not in unheld]
        some = piece.take(held) if unheld else piece
        troubles = {held[place]: trouble for place, trouble in self._sender.send(some).items()}
        failpoints.reached("documents-written")
        self._memory.leave_out(piece, more, troubles | unheld)
        return troubles | unheld

    def _keep(self, piece: Piece, place: int, trouble: Trouble) -> None:
        table, reason = self._target.table, explained(trouble)
        if self._is_fatal:
            raise refusal(table, reason)
        if len(self.rejected) >= MOST_REJECTED:
            raise SinkRejected(
                f"more than {MOST_REJECTED} documents of {table} are refused, the last because {reason}", table=table
            )
        payload: dict[str, Any] = {"document": "", "key": [] if piece.keys is None else piece.keys[place].as_py()}
        if piece.keys is not None:
            payload["document"] = piece.lines[place].as_py()[:PAYLOAD_CHARACTERS].partition("\n")[2]
        operation = "delete" if piece.keys is None else "upsert"
        self.rejected.append(Rejected(table, operation, {"id": piece.ids[place].as_py()}, reason, payload))


def refusal(table: str, reason: str) -> SinkRejected:
    """Of a document, where that is to stop the others of its description."""
    hint = "mend the description or the row; with `on_error: quarantine` such documents are set aside"
    return SinkRejected(f"a document of {table} is refused: {reason}", hint=hint, table=table)


def explained(trouble: Trouble) -> str:
    """Why a document is refused, by its field; the server's own words quote the value."""
    kind = trouble.kind
    if not kind:
        return trouble.reason
    found = _FIELD.search(trouble.reason)
    if found is None:
        return f"the server says {kind}"
    named, type_, unknown, other = found.groups()
    if unknown is not None:
        return f"its field {unknown} is not in the index's mapping ({kind})"
    return f"its field {named or other}{f' can not be held as {type_}' if type_ else ' can not be held'} ({kind})"
