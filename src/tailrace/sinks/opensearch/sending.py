"""Bulk requests on their way to one alias: what the server is too busy for is sent again, in order.

A write that does not reach its index is one of a run that was replaced, or the index is gone; whoever sends it finds
out which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tailrace.errors import SinkUnavailable, TailraceError
from tailrace.sinks.opensearch.bodies import Piece
from tailrace.sinks.opensearch.client import BLOCKED, BUSY, Answer, BodyRefused, Busy, Client, blocked

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""How long is waited before what the server was too busy for is sent again; after that it is the pipeline's turn."""
CONFLICT, NOT_THERE = "version_conflict_engine_exception", "index_not_found_exception"


class Target(msgspec.Struct, frozen=True):
    """Where the documents of a table are written: an index, and the aliases by which this run reaches it and its
    memory."""

    table: str
    index: str
    alias: str
    memory: str


Fenced = Callable[[Target], TailraceError]
"""Why a write did not reach its index."""


class Trouble(msgspec.Struct, frozen=True):
    """Why the server did not take a document, in its own words, which may quote values. Without a kind: the request."""

    kind: str
    reason: str


class Sender:
    """Sends to one of a target's two aliases. For any number of threads."""

    def __init__(self, client: Client, target: Target, alias: str, fenced: Fenced) -> None:
        self._client, self._target, self._alias, self._fenced = client, target, alias, fenced
        self._doing = f"writing {target.table}"

    def send(self, piece: Piece) -> dict[int, Trouble]:
        """What was refused for good, by its place in the piece; all else is acknowledged."""
        troubles: dict[int, Trouble] = {}
        if not len(piece):
            return troubles
        left: Sequence[int] = range(len(piece))
        for pause in (0.0, *PAUSES):
            time.sleep(pause)
            left = self._try(piece, left, troubles)
            if not left:
                return troubles
        raise SinkUnavailable(f"{self._doing}: the server was too busy for {len(left)} documents, again and again")

    def _try(self, piece: Piece, places: Sequence[int], troubles: dict[int, Trouble]) -> list[int]:
        """Those that the server had no time for."""
        some = piece if len(places) == len(piece) else piece.take(places)
        try:
            answer = self._client.bulk(self._alias, some.body, doing=self._doing)
        except Busy as error:
            if error.hint is not None:  # not for a second or two
                raise
            return list(places)
        except BodyRefused as error:
            return self._try_halves(piece, places, troubles, error)
        self._refuse_made(answer)
        busy: list[int] = []
        for place, item in zip(places, answer["items"], strict=True) if answer["errors"] else ():
            (result,) = item.values()
            if "error" in result and self._is_busy(result):
                busy.append(place)
            elif "error" in result:
                troubles[place] = Trouble(result["error"]["type"], result["error"].get("reason", ""))
        return busy

    def _try_halves(
        self, piece: Piece, places: Sequence[int], troubles: dict[int, Trouble], error: BodyRefused
    ) -> list[int]:
        """A request that the server does not take as such: it is one document, if it is one, that it means."""
        if len(places) == 1:
            troubles[places[0]] = Trouble("", str(error))
            return []
        half = len(places) // 2
        return [each for part in (places[:half], places[half:]) for each in self._try(piece, part, troubles)]

    def _refuse_made(self, answer: Answer) -> None:
        """An index that a deletion has made goes again: see `Client.bulk`."""
        if any(self._alias == item["delete"].get("_index") for item in answer["items"] if "delete" in item):
            self._client.ask("DELETE", self._alias, doing="dropping what was made by mistake", allow=(404,))
            raise self._fenced(self._target)

    def _is_busy(self, item: dict[str, object]) -> bool:
        """Raises where it will not pass by itself in a moment, or the documents do not reach their index."""
        error = item["error"]
        assert isinstance(error, dict)
        if error["type"] == NOT_THERE:
            raise self._fenced(self._target)
        if error["type"] == BLOCKED:
            raise blocked(f"index {self._target.index}", self._doing, str(error["reason"]))
        return item["status"] in BUSY
