"""Copying tables into one sink, in two lanes: the small ones together, the large ones one by one, the smallest first.

Each lane is a thread that waits for one Spark job at a time; Spark shares its slots out between them, and the stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

import msgspec

from tailrace import failpoints
from tailrace.errors import TailraceError
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import COPYING, TableState, TableStatus
from tailrace.pipeline.delivering import deliver, waves
from tailrace.pipeline.evolution import failed
from tailrace.pipeline.follower import SinkFollower
from tailrace.sinks.base import ChunkMark, Documents, Snapshots
from tailrace.sources.base import ExportedSnapshot, TableFacts, TableLocked, TableRewritten
from tailrace.spark.frames import load_chunks_shaped
from tailrace.spark.jobs import in_pool, load_chunks
from tailrace.tasks.load import ChunkWork, Loaded

LARGE_CHUNKS = 4
"""A table of more chunks than that is a large one."""
PAUSE_SECONDS = 0.5
"""How soon a table that was looked at is looked at again."""


class Copies:
    """What the lanes of one sink share: which tables wait, with their facts, and which are being copied."""

    def __init__(self, follower: SinkFollower) -> None:
        self.follower = follower
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._facts: dict[str, TableFacts] = {}
        self.writers: dict[tuple[str, str], dict[str, str]] = {}
        """Of a table, by its membership: who wrote to it when we first looked, and has not ended."""
        self.paused_until: dict[str, float] = {}

    def learn(self, facts: Iterable[TableFacts]) -> None:
        self._facts = {each.schema.table: each for each in facts}

    def bytes_of(self, table: str) -> int:
        found = self._facts.get(table)
        return 0 if found is None else found.bytes

    def take(self, *, large: bool) -> list[TableStatus]:
        """The tables that a lane copies next: all small ones, or the smallest of the large ones."""
        with self._lock:
            states = COPYING | {TableState.NEW}
            free = [s for s in list(self.follower.tables.values()) if s.state in states and self._is_free(s.table)]
            mine = sorted((s for s in free if self._is_large(s.table) is large), key=lambda s: self.bytes_of(s.table))
            chosen = mine[:1] if large else mine
            self._taken |= {status.table for status in chosen}
            return chosen

    def give_back(self, statuses: Iterable[TableStatus]) -> None:
        with self._lock:
            self._taken -= {status.table for status in statuses}

    def is_copying(self, table: str) -> bool:
        with self._lock:
            return table in self._taken

    def _is_free(self, table: str) -> bool:
        return table in self._facts and table not in self._taken and self._is_due(table)

    def _is_due(self, table: str) -> bool:
        return time.monotonic() >= self.paused_until.get(table, 0.0)

    def _is_large(self, table: str) -> bool:
        return self.bytes_of(table) > LARGE_CHUNKS * self.follower.pipeline.source.snapshot.chunk_bytes


class CopyLane:
    """Copies into a sink that can be loaded."""

    def __init__(self, copies: Copies, snapshots: Snapshots, *, large: bool) -> None:
        self.copies, self.follower, self.source = copies, copies.follower, copies.follower.source
        self._snapshots = snapshots
        self._is_large = large
        self._pool = "snapshots of large tables" if large else "snapshots"

    def step(self) -> bool:
        """Copy what waits; false if nothing does."""
        taken = self.copies.take(large=self._is_large)
        try:
            facts = {each.schema.table: each for each in self.source.facts()} if taken else {}
            ready = [status for status in taken if self._is_settled(status, facts)]
            if ready:
                self._copy(ready, facts)
            return bool(ready)
        finally:
            self.copies.give_back(taken)

    def _is_settled(self, status: TableStatus, present: Mapping[str, TableFacts]) -> bool:
        """Whether everybody has ended who was writing to a table when we first looked: then a snapshot sees their rows.

        What they wrote before the table was published is not in the stream. What they have committed may be in it,
        before the table's watermark, and still not be seen: a commit is streamed before anybody sees it, and one that
        waits for a synchronous standby long before. A table that was published before the slot was made needs none of
        this: the server itself has waited then.
        """
        table, facts = status.table, present.get(status.table)
        self.copies.paused_until[table] = time.monotonic() + PAUSE_SECONDS
        if facts is None:
            return False
        if status.state is TableState.NEW and status.membership == facts.membership:
            return True
        now = self.source.writers(facts)
        awaited = self.copies.writers.pop((table, facts.membership), now)
        still = {name: who for name, who in awaited.items() if name in now}
        if not still:
            return True
        self.copies.writers[table, facts.membership] = still
        self._say_waiting(status, sorted(set(still.values())))
        return False

    def _say_waiting(self, status: TableStatus, whom: list[str]) -> None:
        self._pause(status, f"its copy waits for the end of what {' and '.join(whom)} writes to it")

    def _pause(self, status: TableStatus, reason: str) -> None:
        self.copies.paused_until[status.table] = time.monotonic() + PAUSE_SECONDS
        if self.follower.tables[status.table].reason != reason:
            self.follower.became(msgspec.structs.replace(status, reason=reason))

    def _copy(self, statuses: list[TableStatus], before: Mapping[str, TableFacts]) -> None:
        """Copy tables under one exported snapshot, as one Spark job. They were published `before`."""
        with self.follower.lock:
            marks = self.follower.sink.read_state().chunks
        if isinstance(self._snapshots, Documents):
            self._snapshots.begin_build([status.table for status in statuses])
        with self.source.export_snapshot() as snapshot:
            # again: what became of a table in between may be in the snapshot's rows, or not
            present = {facts.schema.table: facts for facts in self.source.facts()}
            same = [status for status in statuses if _is_same(before[status.table], present.get(status.table))]
            work: list[ChunkWork] = []
            for status in same:
                work += self._planned(status, before[status.table], marks.get(status.table, []), snapshot)
            failpoints.reached("snapshot-planned")
            loaded = self._load(work, snapshot.id)
        failpoints.reached("snapshot-finished")
        self._finish([status.table for status in same], snapshot, loaded)

    def _load(self, work: list[ChunkWork], snapshot: str) -> list[Loaded]:
        """Tables with transforms go their own way."""
        spark, expressions = self.follower.spark, self.follower.expressions
        shaped = [item for item in work if item.schema.table in expressions]
        direct = [item for item in work if item.schema.table not in expressions]
        loaded: list[Loaded] = []
        for wave in waves(self._snapshots, direct) if direct else ():
            done = load_chunks(spark, self.source, self._snapshots, snapshot, wave, self._pool)
            loaded += deliver(self.follower, self._snapshots, wave, done)
        if shaped:
            with in_pool(spark.sparkContext, self._pool):
                loaded += load_chunks_shaped(spark, self.source, self._snapshots, snapshot, shaped, expressions)
        return loaded

    def _planned(
        self, status: TableStatus, facts: TableFacts, marks: list[ChunkMark], snapshot: ExportedSnapshot
    ) -> list[ChunkWork]:
        """What is left to copy of a table; nothing of one that can not be planned or prepared."""
        try:
            return self._begin(status, facts, marks, snapshot)
        except TableRewritten:  # it is gone: discovery will see it
            return []
        except TableLocked as error:
            self._pause(status, str(error))
            return []
        except TailraceError as error:
            if not self.follower.is_tables_own(error):
                raise
            self.follower.became(failed(self.follower.tables[status.table], error))
            return []

    def _begin(
        self, status: TableStatus, facts: TableFacts, marks: list[ChunkMark], snapshot: ExportedSnapshot
    ) -> list[ChunkWork]:
        """What is left to copy of a table: what its plan says, or all of it under a new plan."""
        schema = facts.schema
        mine = [mark for mark in marks if mark.generation == status.generation]
        left = [mark for mark in mine if not mark.is_loaded]
        planned = self.source.plan_snapshot(schema, self.follower.pipeline.source.snapshot.chunk_bytes)
        if self._is_resumable(status, facts, planned, mine):
            with self.follower.lock:
                self._snapshots.finish_snapshot(status)
            if left and status.state is not TableState.RESUMED:
                self.follower.became(status.move(TableState.RESUMED))
            return _work(status, left)
        started = status.move(
            TableState.SNAPSHOT,
            generation=status.generation + 1,
            visibility=snapshot.visibility,
            schema=schema,
            rows=0,
            membership=facts.membership,
            stored=facts.stored,
            held_as=self.follower.sink.held_as(schema),
        )
        return self._started(started, planned)

    def _is_resumable(
        self, status: TableStatus, facts: TableFacts, planned: list[Chunk], mine: list[ChunkMark]
    ) -> bool:
        """Whether some of a plan's chunks are in the sink, and the table is still what was planned."""
        files = {chunk.storage for chunk in planned}
        return (
            status.state in COPYING
            and any(mark.is_loaded for mark in mine)
            and bool(facts.schema.key)
            and facts.schema == status.schema
            and facts.membership == status.membership
            and files == {mark.chunk.storage for mark in mine}
        )

    def _started(self, started: TableStatus, planned: list[Chunk]) -> list[ChunkWork]:
        fresh = [ChunkMark(started.generation, chunk) for chunk in planned]
        with self.follower.lock:
            started = self._snapshots.begin_snapshot(started, fresh, clear=True)
            self.follower.tables[started.table] = started
        self.follower.say_table(started)
        return _work(started, fresh)

    def _finish(self, tables: list[str], snapshot: ExportedSnapshot, loaded: list[Loaded]) -> None:
        """Tables whose chunks are all loaded begin to catch up, and torn ones, whose chunks can not be loaded.

        A torn one's changes tell whether it was truncated: then what is missing was to go anyway. A document is not
        torn by what becomes of one of its tables: what is missing is built under a later snapshot, as after a crash.
        """
        torn = {done.table for done in loaded if done.is_rewritten}
        errors = {done.table: done.error for done in loaded if done.error is not None}
        with self.follower.lock:
            chunks = self.follower.sink.read_state().chunks
            now = [self.follower.tables[table] for table in tables if table in self.follower.tables]
        for status in (status for status in now if status.state in COPYING):
            marks = [mark for mark in chunks.get(status.table, []) if mark.generation == status.generation]
            if status.table in errors:
                self._fail(status, errors[status.table])
            elif status.table in torn and isinstance(self._snapshots, Documents):
                self._pause(status, "a table of it was rewritten while it was built: the rest is built now")
            elif marks and (status.table in torn or all(mark.is_loaded for mark in marks)):
                self._copied(status, snapshot, sum(mark.rows for mark in marks), is_torn=status.table in torn)

    def _fail(self, status: TableStatus, error: TailraceError) -> None:
        error.table = status.table
        if not self.follower.is_tables_own(error):
            raise error
        self.follower.became(failed(status, error))

    def _copied(self, status: TableStatus, snapshot: ExportedSnapshot, rows: int, *, is_torn: bool) -> None:
        if is_torn and status.state is TableState.RESUMED:
            self.follower.became(
                status.again(status.watermark, status.schema, reason="it was rewritten while it was copied")
            )
            return
        try:
            with self.follower.lock:
                self._snapshots.finish_snapshot(status)
        except TailraceError as error:
            self._fail(status, error)
            return
        state = TableState.AHEAD if status.state is TableState.RESUMED else TableState.CATCH_UP
        end = self.source.current_position() if is_torn else snapshot.position
        self.follower.became(status.move(TableState.TORN if is_torn else state, snapshot_end=end, rows=rows), rows)


def _is_same(before: TableFacts, now: TableFacts | None) -> bool:
    """Whether nothing became of a table between two looks, but that it grew."""
    return now is not None and msgspec.structs.replace(now, bytes=before.bytes) == before


def _work(status: TableStatus, marks: Iterable[ChunkMark]) -> list[ChunkWork]:
    return [
        ChunkWork(status.schema, msgspec.structs.replace(mark, is_beside=status.is_beside, is_loaded=False))
        for mark in marks
    ]


class UncopiedLane:
    """For a sink that can not be loaded: its tables begin with the changes that come from now on."""

    def __init__(self, copies: Copies) -> None:
        self.copies, self.follower = copies, copies.follower

    def step(self) -> bool:
        taken = [*self.copies.take(large=False), *self.copies.take(large=True)]
        try:
            facts = {each.schema.table: each for each in self.follower.source.facts()} if taken else {}
            begun = [status for status in taken if status.table in facts]
            for status in begun:
                self._begin(status, facts[status.table])
            return bool(begun)
        finally:
            self.copies.give_back(taken)

    def _begin(self, status: TableStatus, facts: TableFacts) -> None:
        known = {"schema": facts.schema, "membership": facts.membership, "stored": facts.stored}
        begun = status.move(TableState.SNAPSHOT, generation=status.generation + 1, **known)
        end = self.follower.source.current_position()
        held_as = self.follower.sink.held_as(facts.schema)
        self.follower.became(begun.move(TableState.CATCH_UP, snapshot_end=end, held_as=held_as))


def lanes(copies: Copies) -> list[CopyLane] | list[UncopiedLane]:
    """Each is to be stepped by a thread of its own."""
    snapshots = copies.follower.snapshots
    if snapshots is None:
        return [UncopiedLane(copies)]
    return [CopyLane(copies, snapshots, large=False), CopyLane(copies, snapshots, large=True)]
