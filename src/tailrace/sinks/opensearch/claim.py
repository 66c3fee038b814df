"""A run's right to write: the aliases by which it reaches its indexes, and the versions that its documents get.

Whoever claims the sink gets the next epoch, and new aliases in place of all earlier ones: what an earlier run sends
from then on reaches nothing. A document's version is epoch and build: a later build has a later snapshot of the source,
so a document is never replaced by an older one, whatever arrives last.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from tailrace.errors import SinkChanged, SinkRejected, SinkTaken, SinkUnavailable, TailraceError
from tailrace.sinks.opensearch.generations import Generations
from tailrace.sinks.opensearch.naming import Names, memory_of
from tailrace.sinks.opensearch.remembering import gone
from tailrace.sinks.opensearch.sending import Target
from tailrace.sinks.opensearch.state import TRIES, Note, Record, State

BUILD_BITS = 32


class Claim:
    """The claim of `run`. Pickled by a thread that has begun a build, it takes that build's number along."""

    def __init__(self, state: State, generations: Generations, names: Names) -> None:
        self._state, self._generations, self._names = state, generations, names
        self.run, self.epoch = "", 0
        self._targets: dict[str, Target] = {}
        self._aliases = 0  # the number of the last one
        self._builds = 0  # the number of the last one
        self._open: set[str] = set()  # tables that a build writes to which has not come to its commit
        self._lock, self._own = threading.RLock(), threading.local()

    def __getstate__(self) -> dict[str, Any]:
        left_out: dict[str, Any] = {"_lock": None, "_own": None, "_open": set(), "_builds": self._build}
        return self.__dict__ | left_out

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.RLock(), "_own": threading.local()}

    # --- on the driver

    def make(self, run: str) -> None:
        """Earlier runs write no more, when this returns."""
        self._state.create()
        note = self._take_over(run)
        self.run, self.epoch, self._aliases, self._open = run, note.epoch + 1, 0, set()
        self.learn(self._state.records(note))
        self._generations.fence(self._targets.values(), self.epoch)
        self._state.held_by(run)  # another may have been quicker than our fence

    def _take_over(self, run: str) -> Note:
        """The note as the run before has left it: it may be writing the last one meanwhile."""
        for _ in range(TRIES):
            held = self._state.read()
            note = Note() if held is None else held.note
            taken = msgspec.structs.replace(note, run=run, epoch=note.epoch + 1, commits=0)
            if self._state.try_replace(held, taken):
                return note
        raise SinkUnavailable("another run writes to the sink again and again while it is claimed")

    def learn(self, records: Mapping[str, Record]) -> None:
        """Where the tables are now."""
        with self._lock:
            known = {target.index: target for target in self._targets.values()}
            self._targets = {
                table: known.get(record.target) or self._new_target(table, record.target)
                for table, record in records.items()
                if record.target
            }

    def add(self, table: str, index: str) -> Target:
        """An index that is to be made, with the alias that is to be made with it."""
        with self._lock:
            self._targets[table] = self._new_target(table, index)
            return self._targets[table]

    def renew(self, tables: Collection[str]) -> None:
        """What is on its way to these tables does not reach them any more."""
        with self._lock:
            renewed = {t: self._new_target(t, self._targets[t].index) for t in tables if t in self._targets}
            self._targets |= renewed
        self._generations.fence(renewed.values(), self.epoch)

    def begin_build(self, tables: Collection[str]) -> None:
        with self._lock:
            stale = self._open.intersection(tables)
        if stale:
            self.renew(stale)
        with self._lock:
            self._builds += 1
            self._own.build, self._own.tables = self._builds, frozenset(tables)
            self._open |= self._own.tables

    def end_build(self) -> None:
        """All of the build that this thread has begun is acknowledged."""
        with self._lock:
            self._open -= getattr(self._own, "tables", frozenset())
            self._own.tables = frozenset()

    # --- also in tasks

    def target(self, table: str) -> Target:
        if table not in self._targets:
            raise SinkRejected(f"{table} has no index yet: it is copied first", table=table)
        return self._targets[table]

    @property
    def version(self) -> int:
        return (self.epoch << BUILD_BITS) | self._build

    def fenced(self, target: Target) -> TailraceError:
        """Why a write did not reach its index."""
        held = self._state.read()
        if held is not None and held.note.run != self.run:
            return SinkTaken(f"another run writes to {target.table} now; this one must not any more")
        present = self._generations.aliases()
        for index in (each for each in (target.index, memory_of(target.index)) if each not in present):
            return gone(target.table, index)
        return SinkChanged(
            f"alias {target.alias} of index {target.index} is gone: a later attempt took over, or somebody removed it"
        )

    @property
    def _build(self) -> int:
        """The number of this thread's own build; of the last one where it has begun none."""
        return int(getattr(self._own, "build", self._builds))

    def _new_target(self, table: str, index: str) -> Target:
        self._aliases += 1
        alias, memory = (
            self._names.writers_alias(each, self.epoch, self._aliases) for each in (index, memory_of(index))
        )
        return Target(table, index, alias, memory)
