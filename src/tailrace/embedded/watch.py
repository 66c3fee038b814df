"""The thread that looks at the source's catalog now and then: tables that came, and what the stream does not tell."""

from __future__ import annotations

import threading
import time

from tailrace.errors import TailraceError
from tailrace.sources.base import Source, TableFacts

LOOK_SECONDS = 3.0
LOOK_SHARE, LONGEST_SECONDS = 10, 20.0
"""A catalog of many tables is looked at less often: one part in so many of the time, within limits."""


class Watch:
    """`followed` are the tables that the stream has, each with its membership: the caller says so."""

    def __init__(self, source: Source, name: str, followed: dict[str, str]) -> None:
        self._source = source
        self.followed = followed
        self._stopping = threading.Event()
        self._seconds = LOOK_SECONDS
        self._awaited: dict[str, set[str]] = {}  # tables that wait for the end of those who write to them
        self.news: list[TableFacts] | None = None  # all tables, once some of them are news; taken by the stream
        self.troubles: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name=f"tailrace {name} watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            began = time.monotonic()
            try:
                self.look()
            except TailraceError as error:
                if not error.retry:
                    self.troubles["the source's catalog"] = str(error)
            self._seconds = min(max(LOOK_SECONDS, LOOK_SHARE * (time.monotonic() - began)), LONGEST_SECONDS)

    def look(self) -> None:
        """Have new tables published, and say so once nobody is left who wrote to them before."""
        published = self._source.publish(lambda table: table in self.followed)
        facts = self._source.facts(published.refused)
        locked = dict.fromkeys(published.waiting, "somebody holds a lock on it: it is tried again")
        self.troubles = {each.schema.table: each.trouble for each in facts if each.trouble} | locked
        sound = [each for each in facts if not each.trouble]
        changed = [each for each in sound if self.followed.get(each.schema.table) != each.membership]
        settled = [each for each in changed if self._is_settled(each)]
        if changed and len(settled) == len(changed):
            self.news = sound

    def _is_settled(self, facts: TableFacts) -> bool:
        place = f"{facts.schema.table} {facts.membership}"
        now = set(self._source.writers(facts))
        self._awaited[place] = now & self._awaited.get(place, now)
        return not self._awaited[place]
