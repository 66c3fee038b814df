"""The life of tables in one sink: NEW → SNAPSHOT → CATCH_UP → LIVE, each by itself, while the others stay live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from tailrace import failpoints
from tailrace.errors import SourceError, TailraceError
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.pipeline.applying import SinkPipeline, lost, said_by
from tailrace.pipeline.evolution import again, has_renamed_labels, is_behind, is_in_place
from tailrace.sinks.base import Batch, ChunkMark
from tailrace.sources.base import ExportedSnapshot
from tailrace.spark.snapshot import ChunkWork, load_chunks

DISCOVER_SECONDS = 5.0
UNKNOWN_SECONDS = 0.5
IDLE_SECONDS = 0.05
BACKOFF_SECONDS = (0.5, 30.0)


class TableKeeper:
    """A thread of the driver. It finds tables, copies them, catches up, and hands them to the streaming query."""

    def __init__(self, sink: SinkPipeline, say: Callable[..., None]) -> None:
        self.sink, self._say = sink, say
        self.source = sink.source
        self._stopping = threading.Event()
        self._discovered_at = 0.0
        self.error: TailraceError | None = None
        self.is_settled = False  # the source's tables have been looked at once
        self._thread = threading.Thread(target=self._run, name=f"tables of {sink.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        backoff, losses = BACKOFF_SECONDS[0], 0
        while not self._stopping.is_set():
            try:
                self._step()
                backoff, losses = BACKOFF_SECONDS[0], 0
            except Exception as error:
                if self._stopping.is_set():
                    return
                losses += not isinstance(error, TailraceError)
                trouble = error if isinstance(error, TailraceError) else self._lost(error, losses)
                if not trouble.retry:
                    self.error = trouble
                    return
                kind = "source-retry" if isinstance(trouble, SourceError) else "sink-retry"
                self._say(kind, sink=self.sink.name, message=str(trouble), retry_seconds=backoff)
                self._stopping.wait(backoff)
                backoff = min(backoff * 2, BACKOFF_SECONDS[1])

    def _lost(self, error: Exception, times: int) -> TailraceError:
        return lost(f"the copy of tables into sink {self.sink.name} stopped: {said_by(error)}", times)

    def copy_tables(self) -> bool:
        """Find the tables that wait for their copy, and copy them; false if there are none."""
        self._discover()
        copying = self._in(TableState.NEW, TableState.SNAPSHOT)
        if copying:
            self._snapshot(copying)
        return bool(copying)

    def _step(self) -> None:
        copying = self.copy_tables()
        catching = self._in(TableState.CATCH_UP)
        if catching:
            self._catch_up(catching)
        if not copying and not catching:
            self._stopping.wait(IDLE_SECONDS)

    def _in(self, *states: TableState) -> list[TableStatus]:
        return [status for status in list(self.sink.tables.values()) if status.state in states]

    def _discover(self) -> None:
        """Take in the tables that the publication has and the sink has not, and those that are not what they were."""
        age = time.monotonic() - self._discovered_at
        if age < (UNKNOWN_SECONDS if self.sink.unknown.is_set() else DISCOVER_SECONDS):
            return
        self.sink.unknown.clear()
        for schema in self.source.tables():
            known = self.sink.tables.get(schema.table)
            if known is None or known.schema.relation != schema.relation:
                with self.sink.lock:
                    self.sink.tables[schema.table] = self._new(schema, known)
            elif known.state is TableState.LIVE and is_behind(known.schema, schema):
                self._evolve(schema)
        self._discovered_at = time.monotonic()
        self.is_settled = True

    def _new(self, schema: TableSchema, known: TableStatus | None) -> TableStatus:
        """A table to be copied from the beginning: never seen, or made again under the name of one we knew."""
        if known is None:
            return TableStatus(schema.table, TableState.NEW, self.sink.watermark, schema)
        start = self.sink.watermark if known.state is TableState.LIVE else known.watermark
        return again(known, start, schema)

    def _evolve(self, schema: TableSchema) -> None:
        """Take in what was altered and has not been changed since: the stream has not told, and may never tell."""
        with self.sink.lock:
            known = self.sink.tables[schema.table]
            if known.state is not TableState.LIVE or not is_behind(known.schema, schema):
                return  # the stream was faster
            if is_in_place(self.source, known.schema, schema) and not has_renamed_labels(known.schema, schema):
                now = msgspec.structs.replace(known, schema=schema)
                self.sink.sink.begin_snapshot(now, [], clear=False)
            else:
                now = again(known, self.sink.watermark, schema)
            self.sink.tables[schema.table] = now

    def _snapshot(self, statuses: list[TableStatus]) -> None:
        """Copy all tables that wait for it under one exported snapshot, as one Spark job."""
        with self.sink.lock:
            marks = self.sink.sink.read_state().chunks
        with self.source.export_snapshot() as snapshot:
            # only now: a column that the snapshot's rows have a value in must not be missing
            present = {schema.table: schema for schema in self.source.tables()}
            work: list[ChunkWork] = []
            for status in statuses:
                if status.table not in present:
                    self._forget_vanished(status)
                    continue
                work += self._begin(status, present[status.table], marks.get(status.table, []), snapshot)
            failpoints.reached("snapshot-planned")
            loaded = load_chunks(self.sink.spark, self.source, self.sink.sink, snapshot.id, work) if work else []
        failpoints.reached("snapshot-finished")
        self._finish_snapshots(snapshot, {done.table for done in loaded if done.is_rewritten})

    def _begin(
        self, status: TableStatus, schema: TableSchema, marks: list[ChunkMark], snapshot: ExportedSnapshot
    ) -> list[ChunkWork]:
        """What is left to copy of a table: what its plan says, or all of it under a new plan."""
        mine = [mark for mark in marks if mark.generation == status.generation]
        left = [mark for mark in mine if not mark.is_loaded]
        planned = self.source.plan_snapshot(schema, self.sink.pipeline.source.snapshot.chunk_bytes)
        is_resumed = (
            status.state is TableState.SNAPSHOT
            and len(left) < len(mine)
            and bool(schema.key)
            and schema == status.schema
            and {chunk.storage for chunk in planned} == {mark.chunk["storage"] for mark in mine}
        )
        if is_resumed:
            with self.sink.lock:
                self.sink.sink.finish_snapshot(schema)
            if left:
                self._write(msgspec.structs.replace(status, is_ahead=True))
            return [ChunkWork(schema, mark) for mark in left]
        started = status.move(
            TableState.SNAPSHOT,
            generation=status.generation + 1,
            visibility=snapshot.visibility.snapshot,
            schema=schema,
            rows=0,
            is_torn=False,
            is_ahead=False,
        )
        fresh = [
            ChunkMark(chunk.table, started.generation, chunk.number, msgspec.structs.asdict(chunk)) for chunk in planned
        ]
        with self.sink.lock:
            self.sink.sink.begin_snapshot(started, fresh, clear=True)
        self._became(started)
        return [ChunkWork(schema, mark) for mark in fresh]

    def _finish_snapshots(self, snapshot: ExportedSnapshot, torn: set[str]) -> None:
        """Tables whose chunks are all loaded begin to catch up, and torn ones, whose chunks can not be loaded.

        A torn one's changes tell whether it was truncated: then what is missing was to go anyway.
        """
        with self.sink.lock:
            chunks = self.sink.sink.read_state().chunks
        for status in self._in(TableState.SNAPSHOT):
            marks = [mark for mark in chunks.get(status.table, []) if mark.generation == status.generation]
            is_torn = status.table in torn
            if marks and (is_torn or all(mark.is_loaded for mark in marks)):
                with self.sink.lock:
                    self.sink.sink.finish_snapshot(status.schema)
                rows = sum(mark.rows for mark in marks)
                end = self.source.current_position() if is_torn else snapshot.position
                self._write(status.move(TableState.CATCH_UP, snapshot_end=end, rows=rows, is_torn=is_torn))

    def _catch_up(self, statuses: list[TableStatus]) -> None:
        """Apply what happened since the tables' start; live once past everything that a snapshot saw."""
        sink = self.sink
        statuses = [self._bounded(status) if status.is_ahead else status for status in statuses]
        first, end = min(status.watermark.offset for status in statuses), sink.watermark.offset
        limit = sink.log.limit(first, sink.settings.max_rows, sink.settings.max_bytes)
        is_past = all(
            self.source.reached(sink.watermark.position, status.snapshot_end) and not status.is_ahead
            for status in statuses
        )
        if limit < end or (first < end and not is_past):
            sink.catch_up_to(statuses, min(limit, end), finish=False)
            sink.on_commit()  # a full log makes room for what the snapshot saw
            return
        if not is_past:
            self._stopping.wait(IDLE_SECONDS)
            return
        with sink.lock:
            if sink.is_stopping:
                return
            sink.catch_up_to(statuses, sink.watermark.offset, finish=True)
            failpoints.reached("table-live")
        for status in statuses:
            now = sink.tables[status.table]
            is_live = now.state is TableState.LIVE
            state = str(now.state) if is_live else "is copied again"
            self._say("table", table=now.table, sink=sink.name, state=state, rows=now.rows if is_live else None)
        sink.on_commit()

    def _bounded(self, status: TableStatus) -> TableStatus:
        """A table that is ahead, with the position up to which it is; no longer ahead once its changes are there."""
        if status.table in self.sink.fetched:
            self.sink.fetched.discard(status.table)
            status = msgspec.structs.replace(status, snapshot_end=self.source.current_position())
        elif self.source.reached(status.watermark.position, status.snapshot_end):
            status = msgspec.structs.replace(status, is_ahead=False)
        self.sink.tables[status.table] = status
        return status

    def _forget_vanished(self, status: TableStatus) -> None:
        """A table that left the publication before it was ever copied is none of ours."""
        with self.sink.lock:
            self.sink.tables.pop(status.table, None)
        self._say("table", table=status.table, sink=self.sink.name, state="is no longer published", rows=None)

    def _write(self, status: TableStatus) -> None:
        with self.sink.lock:
            self.sink.sink.commit(Batch(tables=(status,)), self.source.read_rows)
        self._became(status)

    def _became(self, status: TableStatus) -> None:
        self.sink.tables[status.table] = status
        rows = status.rows if status.state is TableState.CATCH_UP else None
        self._say("table", table=status.table, sink=self.sink.name, state=str(status.state), rows=rows)
