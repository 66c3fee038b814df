"""The thread that looks at the source's catalog now and then: tables that came, and what the stream does not tell."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.embedded.beginning import BEGIN_ANEW, remarks_of
from tailrace.errors import PositionLost, SourceRefused, TailraceError
from tailrace.model.schema import TableSchema
from tailrace.sources.base import Source, TableFacts

logger = logging.getLogger("tailrace.embedded")
CATALOG = "the source's catalog"
LOOK_SECONDS = 3.0
LOOK_SHARE, LONGEST_SECONDS = 10, 20.0
"""A catalog of many tables is looked at less often: one part in so many of the time, within limits."""


class Followed(NamedTuple):
    """A table of the stream, as it was when it was looked at, and its membership."""

    schema: TableSchema
    membership: str


class Watch:
    """Told by `follow` which tables the stream has.

    One of them that was dropped, or has another name by now, is followed no more: what comes under its name is new.
    One that is there and not, or not all, in the stream is `lost`: raised by whoever polls, until that is mended.
    """

    def __init__(
        self, source: Source, name: str, tables: Mapping[str, TableSchema], memberships: Mapping[str, str]
    ) -> None:
        self._source = source
        self.news: list[TableFacts] | None = None  # all tables, once some of them are news; taken by the stream
        self.follow(tables, memberships)
        self.lost: TailraceError | None = None
        self._stopping = threading.Event()
        self._seconds = LOOK_SECONDS
        self._awaited: dict[str, set[str]] = {}  # tables that wait for the end of those who write to them
        self.troubles: dict[str, str] = {}
        self.remarks: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name=f"tailrace {name} watch", daemon=True)

    def follow(self, tables: Mapping[str, TableSchema], memberships: Mapping[str, str]) -> None:
        """`tables` are those in the stream, as they are now."""
        self.news = None
        self._followed = {table: Followed(schema, memberships[table]) for table, schema in tables.items()}

    def forget(self, table: str) -> None:
        """It lacks something: what is found under its name is news."""
        self._followed.pop(table, None)

    def remark(self, remarks: dict[str, str]) -> None:
        """By table, what of it does not come: said aloud when it is new."""
        for table, words in remarks.items():
            if self.remarks.get(table) != words:
                logger.warning("%s: %s", table, words)
        self.remarks = remarks

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            began = time.monotonic()
            try:
                self.look()
            except PositionLost as error:
                error.hint = BEGIN_ANEW
                self.lost = error
            except Exception as error:  # whatever it is, it is told, and tables that come are looked for again
                if not isinstance(error, TailraceError) or not error.retry:
                    self.troubles = {**self.troubles, CATALOG: str(error) or type(error).__name__}
            self._seconds = min(max(LOOK_SECONDS, LOOK_SHARE * (time.monotonic() - began)), LONGEST_SECONDS)

    def look(self) -> None:
        """Have new tables published, and say so once nobody is left who wrote to them before."""
        published = self._source.publish(lambda table: table in self._followed)
        facts = self._source.facts(published.refused)
        self.remark(remarks_of(facts))
        self.lost = self._missed(facts)
        locked = dict.fromkeys(published.waiting, "somebody holds a lock on it: it is tried again")
        self.troubles = {each.schema.table: each.trouble for each in facts if each.trouble} | locked
        sound = [each for each in facts if not each.trouble]
        changed = [each for each in sound if not self._is_followed(each)]
        settled = [each for each in changed if self._is_settled(each)]
        self.news = sound if changed and len(settled) == len(changed) else None

    def _missed(self, facts: Sequence[TableFacts]) -> SourceRefused | None:
        """Tables that are followed, and of which the stream does not tell all: the first of those there are."""
        present = {each.schema.table: each for each in facts}
        for table, followed in list(self._followed.items()):
            if table not in present:
                absence = self._source.absence(followed.schema)
                if not absence.is_gone:
                    return _lost(table, absence.reason)
                self._followed.pop(table, None)
            elif present[table].trouble:
                return _lost(table, present[table].trouble)
        return None

    def _is_followed(self, facts: TableFacts) -> bool:
        known = self._followed.get(facts.schema.table)
        return known is not None and known.membership == facts.membership

    def _is_settled(self, facts: TableFacts) -> bool:
        place = f"{facts.schema.table} {facts.membership}"
        now = set(self._source.writers(facts))
        self._awaited[place] = now & self._awaited.get(place, now)
        return not self._awaited[place]


def _lost(table: str, reason: str) -> SourceRefused:
    return SourceRefused(
        f"{table} can not be followed any more: {reason}",
        hint=f'mend it, or leave it out: tables=[…, "!{table}"]; what it lacks is read again then',
        table=table,
    )
