"""The schema history of a stream: a version of a table is durable before anything is handed out that has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from os import PathLike, fspath

import numpy as np

from tailrace.embedded.content import Stretch
from tailrace.embedded.deliveries import Delivery, ReadDelivery, StreamDelivery
from tailrace.embedded.pieces import Part
from tailrace.history.schema_history import HistoryStore, SchemaHistory, Told
from tailrace.history.stores import FileHistory
from tailrace.model.frames import Definition
from tailrace.sources.base import Source


def open_history(history: HistoryStore | str | PathLike[str] | None) -> HistoryStore | None:
    """A store as it is; a path: one JSON file."""
    return FileHistory(fspath(history)) if isinstance(history, str | PathLike) else history


class Remembering:
    """Opened when a stream starts, and closed when it stops: what it has read may still be asked for then."""

    def __init__(self, store: HistoryStore, source: Source) -> None:
        self._source = source
        self.history = SchemaHistory(store, source.reached)

    def remember(self, delivery: Delivery, position: str) -> None:
        """What is about to be handed out; `position` is how far the stream was consumed. May be repeated."""
        if isinstance(delivery, ReadDelivery):
            reads = delivery.read.reads
            since = position if delivery.read.copy.visibility else reads.position  # no change of it comes before
            self.history.learn([(reads.schema, since, datetime.now(UTC))])
        elif isinstance(delivery, StreamDelivery) and self._has_news(delivery.content):
            self.history.learn(self._told(delivery.content))

    def _has_news(self, stretch: Stretch) -> bool:
        found = (definition for part in stretch.parts for definition in self._definitions(part))
        return not all(self.history.is_latest(definition.schema) for definition in found)

    def _told(self, stretch: Stretch) -> Iterator[Told]:
        for part in stretch.parts:
            told, begins = stretch.told_of(part), part.piece.transactions.column("begin").to_numpy()
            for definition in self._definitions(part):
                since = max(definition.since, part.first)
                row = max(int(np.searchsorted(begins, since, side="right")) - 1, 0)
                yield definition.schema, told.positions[row], told.times[row] or datetime.now(UTC)

    def _definitions(self, part: Part) -> list[Definition]:
        """Those in force in it, in the order of the log."""
        found: list[Definition] = []
        begun: dict[int, Definition] = {}
        for each in sorted(part.piece.definitions, key=lambda each: each.since):
            if each.since <= part.first:
                begun[each.relation] = each
            elif each.since <= part.last:
                found.append(each)
        own = [*begun.values(), *found]
        return [each for each in own if not each.root and self._source.captures(each.schema)]
