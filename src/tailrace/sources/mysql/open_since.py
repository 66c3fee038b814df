"""Places of a stream while XA transactions are prepared and not ended, and what was read before is read again.

A place says, behind itself, where the oldest of them was prepared. A stream that goes on from such a place begins
there: it holds the rows of what is still prepared, and tells of nothing else until it is past the place.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tailrace.errors import SourceRefused
from tailrace.model.positions import with_since
from tailrace.sources.mysql.grouping import Groups
from tailrace.sources.mysql.positions import within
from tailrace.sources.mysql.prepared import Turn


class OpenSince:
    """`place` is where the stream goes on, and `since` where it begins, if that is elsewhere."""

    def __init__(self, place: str, since: str) -> None:
        self._place, self._since, self._is_again = place, since or place, bool(since)
        self._open: dict[str, str] = {}  # by XA transaction: the place before it

    def unread(self, groups: Groups, turns: Mapping[int, Turn]) -> Groups:
        """The groups, those marked that were read before; they end nowhere."""
        if not self._is_again:
            return groups
        is_read = within(pa.array(groups.servers, pa.string()), pa.array(groups.numbers), self._place)
        ended = groups.group[groups.ends]
        for row in groups.ends[is_read[ended]].tolist():
            if row in turns:
                self._take(turns[row], self._since)
        self._is_again = bool(is_read[1:].all())
        statements = [(row, query) for row, query in groups.statements if not is_read[groups.group[row]]]
        groups.is_read, groups.ends, groups.statements = is_read, groups.ends[~is_read[ended]], statements
        return groups

    def placed(self, places: pa.Array, groups: Groups, turns: Mapping[int, Turn]) -> pa.Array:
        """The places behind groups, with where to read from. Raises SourceRefused for one whose rows nobody knows."""
        if not self._open and not turns:
            self._place = places[-1].as_py() if len(places) else self._place
            return places
        found = []
        for row, place in zip(groups.ends.tolist(), places.to_pylist(), strict=True):
            turn = turns.get(row)
            if turn is not None and turn.is_unknown:
                raise SourceRefused(
                    f"the XA transaction {turn.xid} was prepared before the stream began: nobody knows its rows",
                    hint="run `tailrace drop`, then `tailrace run`, which copies all tables again",
                )
            if turn is not None:
                self._take(turn, self._place)
            self._place = place
            found.append(self.open_at(place))
        return pa.array(found, pa.string())

    def open_at(self, place: str) -> str:
        """A place, with where the oldest transaction that is open was prepared."""
        return with_since(place, next(iter(self._open.values()), ""))

    def _take(self, turn: Turn, before: str) -> None:
        if turn.is_prepared:
            self._open[turn.xid] = before
        else:
            self._open.pop(turn.xid, None)
