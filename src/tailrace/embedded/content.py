"""What a batch holds: a stretch of the stream, or rows of a snapshot. It can be read any number of times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.embedded.events import Told, events_of, is_news
from tailrace.embedded.pieces import Part, Piece, first_transaction
from tailrace.embedded.runs import NOTHING, Counted, Flags, Numbering, Run
from tailrace.model.changes import Changes
from tailrace.model.event import Event
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import LoggedMessage, Source


class Survey(msgspec.Struct, frozen=True):
    """How many events there are, and which version each table has behind them."""

    events: int
    tables: dict[str, str]


class Content(Protocol):
    """Read by the consumer, in its own thread."""

    def arrow(self) -> Iterator[tuple[str, pa.RecordBatch]]: ...
    def events(self) -> Iterator[Event]: ...
    def survey(self) -> Survey: ...


class Place(msgspec.Struct, frozen=True):
    """Where a part of a batch's events ends: in front of the transaction at `position`, `skip` of its events aside.

    `begin` is the offset at which what is left has to be read from.
    """

    position: str
    begin: int
    skip: int = 0
    transaction: str = ""
    tables: dict[str, str] = {}


@dataclass(slots=True)
class Stretch:
    """Parts of the stream that follow one another, ready to be decoded.

    Of its first transaction `counted` lie before it, and of all that it has of that one those up to number `consumed`
    are left out. Of tables in `filters` the changes are left out that their snapshot has seen. `tables` are
    the versions that were delivered before; `begins_at` is the position where the last transaction before it ends.
    """

    source: Source
    parts: tuple[Part, ...]
    begins_at: str
    filters: Mapping[str, str]
    tables: Mapping[str, str]
    counted: Counted = NOTHING
    consumed: int = 0
    inside: str = ""  # the transaction that it ends inside of
    _survey: Survey | None = None  # known once it was read to its end

    @property
    def last(self) -> int:
        return self.parts[-1].last

    @property
    def identity(self) -> SourceIdentity:
        return self.parts[-1].piece.identity

    @property
    def _first_begin(self) -> int:
        """The offset at which its first transaction begins."""
        begin: int = first_transaction(self.parts).column("begin")[0].as_py()
        return begin

    # --- reading

    def arrow(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        known, count = dict(self.tables), self._count_messages()
        for changes in self._each_changes():
            count += len(changes) + is_news(known, changes.schema)
            yield changes.schema.table, changes.to_arrow()
        self._survey = Survey(count, known)

    def events(self) -> Iterator[Event]:
        known, count = dict(self.tables), 0
        for run in self._runs():
            if len(run):
                found, events = events_of(run, self.told_of(run.part), known)
                count += found
                yield from events
        self._survey = Survey(count, known)

    def survey(self) -> Survey:
        if self._survey is None:
            known, count = dict(self.tables), self._count_messages()
            for changes in self._each_changes():
                count += len(changes) + is_news(known, changes.schema)
            self._survey = Survey(count, known)
        return self._survey

    def _count_messages(self) -> int:
        """Of applications; where some are left out, all is decoded to tell."""
        if not any(part.piece.has_messages for part in self.parts):
            return 0
        return sum(len(run.logged) for run in self._runs())

    def numbered(self) -> Counted:
        """What the transaction that it ends inside of has so far, also what is left out."""
        numbering = Numbering(self._first_begin, self.counted)
        for _ in self._runs(numbering):
            pass
        return numbering.counted

    def is_empty(self) -> bool:
        """Whether nothing is left to be delivered. Costs as much as it takes to find the first event."""
        if not self.has_events:
            return True
        if self.leaves_out:
            return not any(len(run) for run in self._runs())
        return not (any(self._each_changes()) or self._count_messages())

    @property
    def leaves_out(self) -> bool:
        """Whether some of its events were consumed before."""
        return self.consumed > self.counted.events

    @property
    def has_events(self) -> bool:
        return any(part.piece.has_events for part in self.parts)

    @property
    def changes(self) -> int:
        """At most so many."""
        return sum(part.piece.changes for part in self.parts)

    def _each_changes(self) -> Iterator[Changes]:
        if self.leaves_out:
            for run in self._runs():
                yield from run.changes
        else:
            for part in self.parts:
                yield from self._new(part)

    def of_table(self, table: str) -> Iterator[Changes]:
        """A table's changes. Those that were consumed before may be among them."""
        for part in self.parts:
            yield from self._new(part, table)

    def _decoded(self, part: Part, only: str = "") -> Iterator[Changes]:
        frames, source = part.piece.kept.frames(), self.source
        wanted = (each.schema for each in frames.definitions if not only or each.schema.table == only)
        names = {schema.table for schema in wanted if source.captures(schema)}
        yield from source.decode(frames, part.first, part.last, names) if names else ()

    def _unseen(self, changes: Changes) -> Flags | None:
        """Those that the table's snapshot has not seen; None if it has none."""
        visibility = self.filters.get(changes.schema.table)
        return None if visibility is None else self.source.unseen(changes, visibility)

    def _new(self, part: Part, only: str = "") -> Iterator[Changes]:
        """A part's changes, without those that a snapshot has seen."""
        for changes in self._decoded(part, only):
            unseen = self._unseen(changes)
            kept = changes if unseen is None else changes.keep(unseen)
            if len(kept):
                yield kept

    def _runs(self, numbering: Numbering | None = None) -> Iterator[Run]:
        """Events are counted whether or not a snapshot has seen them: which has, a restart may change."""
        begin = self._first_begin
        numbering = numbering or Numbering(begin, self.counted)
        for part in self.parts:
            run = Run(part, [each for each in self._decoded(part) if len(each)], self._logged(part), numbering)
            run = run.without(begin, self.consumed) if self.leaves_out else run
            yield run.only(map(self._unseen, run.changes)) if self.filters else run

    def _logged(self, part: Part) -> list[LoggedMessage]:
        if not part.piece.has_messages:
            return []
        return list(self.source.messages(part.piece.kept.frames(), part.first, part.last))

    def told_of(self, part: Part) -> Told:
        """What a part's transactions are called, where they end and when."""
        transactions = part.piece.transactions
        positions = self.source.end_positions(transactions)
        if part.piece.open_at_end is not None:
            positions[-1] = self._end_of_open(part.piece)
        times = transactions.column("time_us").to_pylist()
        return Told(self.source.transaction_ids(transactions), positions, times)

    def _end_of_open(self, piece: Piece) -> str:
        """Where the transaction ends that goes on behind a piece; where it begins, if its end has not come."""
        after = False
        for part in self.parts:
            if after and (end := _first_end(part)) is not None:
                return self.source.end_positions(end)[0]
            after = after or part.piece is piece
        return self.begins_at

    # --- acknowledging

    def place_of(self, count: int) -> Place:
        """Where its first `count` events end; there are more than that."""
        known, left = dict(self.tables), count
        runs = self._runs()
        for run in runs:
            learnt = dict(known)
            news = _places_of_news(run, learnt)
            if len(run) + len(news) < left:
                left -= len(run) + len(news)
                known = learnt
                continue
            taken, tables = _taken(run, news, left, known)
            if not taken:
                return self._inside(int(run.begins[run.transaction[0]]), int(run.number[0]) - 1, run, tables)
            return self._behind(run, taken, tables)
        raise AssertionError("a batch has fewer events than it had")

    def _behind(self, run: Run, taken: int, tables: dict[str, str]) -> Place:
        """Behind the first `taken` events of a run."""
        row, number = int(run.transaction[taken - 1]), int(run.number[taken - 1])
        begin = int(run.begins[row])
        ended = self._ended(begin)
        if ended is not None and self._is_last(begin, number):
            position = self.source.end_positions(ended)[0]
            return Place(position, int(ended.column("end")[0].as_py()) + 1, tables=tables)
        return self._inside(begin, number, run, tables)

    def _inside(self, begin: int, number: int, run: Run, tables: dict[str, str]) -> Place:
        row = int(np.searchsorted(run.begins, begin, side="right")) - 1
        name = self.source.transaction_ids(run.part.piece.transactions.slice(row, 1))[0]
        first = max(begin, self.parts[0].first)
        return Place(self._position_before(begin), first, number, name if number else "", tables)

    def _is_last(self, begin: int, number: int) -> bool:
        counts = [run.number[run.begins[run.transaction] == begin] for run in self._runs()]
        return max(int(found.max(initial=0)) for found in counts) == number

    def _ended(self, begin: int) -> pa.RecordBatch | None:
        """The transaction that begins there, if its end is among the parts."""
        for part in self.parts:
            begins, ends = (part.piece.transactions.column(name).to_numpy() for name in ("begin", "end"))
            found = np.flatnonzero((begins == begin) & (ends > 0) & (ends <= part.last))
            if len(found):
                return part.piece.transactions.slice(int(found[0]), 1)
        return None

    def _position_before(self, begin: int) -> str:
        position = self.begins_at
        for part in self.parts:
            ends = part.piece.transactions.column("end").to_numpy()
            found = np.flatnonzero((ends >= part.first) & (ends < begin))
            if len(found):
                position = self.source.end_positions(part.piece.transactions.slice(int(found[-1]), 1))[0]
        return position

    def rest(self, place: Place) -> Stretch:
        """What is left behind a place."""
        parts = tuple(
            Part(part.piece, max(part.first, place.begin), part.last) for part in self.parts if part.last >= place.begin
        )
        is_first = place.begin == max(self._first_begin, self.parts[0].first)
        counted = self.counted if is_first else NOTHING
        return Stretch(self.source, parts, place.position, self.filters, place.tables, counted, place.skip, self.inside)


def _first_end(part: Part) -> pa.RecordBatch | None:
    """The transaction that ends first in a part."""
    ends = part.piece.transactions.column("end").to_numpy()
    found = np.flatnonzero((ends >= part.first) & (ends <= part.last))
    return part.piece.transactions.slice(int(found[0]), 1) if len(found) else None


def _places_of_news(run: Run, known: dict[str, str]) -> dict[int, tuple[str, str]]:
    """New versions of tables in a run: each by the place, in commit order, of its first change."""
    found: dict[int, tuple[str, str]] = {}
    at, inverse = 0, np.empty(len(run), np.int64)
    inverse[run.order] = np.arange(len(run))
    for changes in run.changes:
        table = changes.schema.table
        if is_news(known, changes.schema):
            found[int(inverse[at])] = (table, known[table])
        at += len(changes)
    return found


def _taken(
    run: Run, news: Mapping[int, tuple[str, str]], count: int, known: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    """How many changes are among the first `count` events of a run, and the versions that were delivered by then."""
    tables, places = dict(known), 0
    table_of = np.concatenate([np.full(len(c), index) for index, c in enumerate(run.changes)] or [np.zeros(0, int)])
    while count:
        if places in news:
            table, version = news[places]
            tables[table] = version
            count -= 1
            if not count:
                break
        place = int(run.order[places])
        if place < len(table_of):
            schema = run.changes[int(table_of[place])].schema
            is_news(tables, schema)
        places += 1
        count -= 1
    return places, tables
