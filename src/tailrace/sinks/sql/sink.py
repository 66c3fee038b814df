"""A SQL database as a sink: one sink for all of them, the differences being in its dialect.

Tasks stage rows in parallel; the driver merges all tables, with their statuses and the watermark, in one transaction.
A batch of few rows takes a shorter way with the same promise: its rows travel in the receipts, and there is nothing to
create or drop.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tailrace import config, failpoints
from tailrace.columns.net import NetChanges, drained
from tailrace.config import Misfits, OnError
from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import CATCHING_UP, COPYING, TableState, TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.sinks.base import (
    Atomic,
    Batch,
    ChunkMark,
    DatabaseSink,
    Evolved,
    FetchRows,
    Quarantined,
    Rejected,
    SinkState,
)
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql.bookkeeping import JUST_READ, Bookkeeping
from tailrace.sinks.sql.chunks import ChunkLoader
from tailrace.sinks.sql.composing import composed, few_of
from tailrace.sinks.sql.dialect import Dialect, Field, Session, Target
from tailrace.sinks.sql.merging import Stale, TableMerge
from tailrace.sinks.sql.naming import refuse_collision
from tailrace.sinks.sql.places import COPIES, Places
from tailrace.sinks.sql.quarantine.isolation import Refused, delete_again, replayable
from tailrace.sinks.sql.quarantine.sifting import Sieve
from tailrace.sinks.sql.sessions import Sessions, transaction
from tailrace.sinks.sql.staged import StagedChanges, StagedPart, adapted
from tailrace.sinks.sql.staging import (
    Inline,
    Staging,
    StagingInFile,
    StagingTables,
    Writer,
    columns_of,
    stage_changes,
)
from tailrace.sinks.sql.tables import SinkTables, gone

INLINE_BYTES = 1 << 20
"""What a task's receipt may hold; more goes into staging tables."""
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""What Python raises where code does not expect what it finds."""


class Ready(NamedTuple):
    """A table that takes rows of this version."""

    schema: TableSchema
    is_single_key: bool


class SqlSink(DatabaseSink):
    """Picklable: connections are made where they are used. Several threads may use it at once."""

    max_parts = 64
    atomic = Atomic.BATCH
    is_local_only = False

    def __init__(self, dialect: Dialect, pipeline: config.Pipeline, name: str) -> None:
        self.dialect = dialect
        self.settings = pipeline.sinks[name]
        self.name = name
        self.url = self.settings.url
        self.owner = f"{pipeline.name}/{name}"
        self.run = ""  # the run that claimed the sink with this object
        self._places = Places(dialect, self.settings, self.owner)
        self._notes = Bookkeeping(dialect, self.url, self.owner)
        self._tables = SinkTables(dialect, self.owner, self._notes.is_active)
        self._sessions = Sessions(dialect, self.url, name)
        self._map = SchemaMapping(self.settings.columns, self._is_text)
        self._versions: dict[Target, Ready] = {}
        self._has_notes = False
        self._litter: list[str] = []  # staging tables that could not be dropped when it was time
        self._is_settled = dialect.ddl_is_transactional  # see `_settle`

    # --- what it remembers

    def check(self) -> None:
        """Changes nothing: what is missing is made by the first snapshot."""
        with self._sessions.look("being checked") as session:
            self.dialect.check(session, self.url, self.settings.schemas.values())

    def is_database(self, identity: SourceIdentity) -> bool:
        with self._sessions.look("being asked who it is") as session:
            is_there = self.dialect.is_there(self.url)
            return is_there and self.dialect.identity(session) == (identity.system, identity.database)

    def read_state(self) -> SinkState:
        with self._sessions.look("reading its state") as session:
            return self._notes.read(session) if self._notes.exists(session) else SinkState(None, {}, {})

    def claim(self, run: str) -> None:
        with self._sessions.use("being claimed") as session:
            self._create_notes(session)
            with transaction(session):
                session.take_over(self.owner)
                session.take_over(self._run_lock)
                self._notes.claim(session, run)
        self.run = run

    def check_claim(self) -> None:
        with self._sessions.use("being asked who writes to it") as session:
            self._notes.check_claim(session, self.run)

    def _check_claim(self, session: Session) -> None:
        """In a transaction: it is ours until the transaction ends."""
        session.lock_shared(self._run_lock)
        self._notes.check_claim(session, self.run)

    def _lock_before(self, session: Session) -> None:
        """Before DDL that is no part of a transaction: nobody can claim the sink without breaking this session off.

        The locks are held until the next transaction ends, or the session does.
        """
        session.lock(self.owner)
        self._check_claim(session)

    @property
    def _run_lock(self) -> str:
        return f"{self.owner}/run"

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        with self._sessions.look(f"counting {schema.table}") as session:
            return self.dialect.count(session, self.dialect.qualified(self._places.table(schema)), seconds)

    def held_as(self, schema: TableSchema) -> str:
        renames = self.settings.columns.get(schema.table, {})
        return msgspec.json.encode([str(self._places.table(schema)), sorted(renames.items())]).decode()

    def forget(self) -> None:
        with self._sessions.use("forgetting the pipeline") as session:
            if self.dialect.is_there(self.url) and self._notes.exists(session):
                known = [status.table for status in self._notes.statuses(session) if status.is_beside]
                for copy in (self._places.copy_of(table) for table in known):
                    session.execute(f"DROP TABLE IF EXISTS {self.dialect.qualified(copy)}")
                self._drop_copies(session, self._left_copies(session))
                with transaction(session):
                    session.lock(self.owner)
                    self._notes.forget(session)
        self._versions.clear()
        self.clean()

    def clean(self) -> None:
        """Drop the staging tables of dead batches, once no commit of a dead driver is under way any more."""
        with self._sessions.use("removing what was staged") as session:
            if self.dialect.is_there(self.url):
                with transaction(session):
                    session.lock(self.owner)
                self._drop_copies(session, self._left_copies(session))
            self._drop(session, self.dialect.staging_tables(session, self.url, self._places.staging_prefix))

    def _left_copies(self, session: Session) -> set[str]:
        """Copies that were given up, or that have taken their place."""
        known = self._notes.statuses(session) if self._notes.exists(session) else []
        copies = {self.dialect.qualified(self._places.copy_of(status.table)): status for status in known}
        there = {
            *self.dialect.staging_tables(session, self.url, COPIES),
            *(n for n, s in copies.items() if s.is_beside),
        }
        wanted = COPYING | CATCHING_UP | {TableState.LIVE}
        given_up = {n for n, s in copies.items() if n in there and not (s.is_beside and s.state in wanted)}
        return given_up | {n for s in known for n in self._replaced(self._places.copy_of(s.table)) if n in there}

    def _replaced(self, copy: Target) -> list[str]:
        """The table whose place a copy took, where it was not dropped by that. Quoted."""
        old = self.dialect.replaced(copy)
        return [] if old is None else [self.dialect.qualified(old)]

    def _drop_copies(self, session: Session, names: Iterable[str]) -> None:
        """What somebody else's foreign key or view holds fast is left for the next `clean`."""
        for name in names:
            with suppress(SinkRejected), self._sessions.errors("removing a copy"):
                session.execute(f"DROP TABLE IF EXISTS {name}")

    def close(self) -> None:
        self._sessions.close()

    # --- batches

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> StagedPart:
        sieve = Sieve(self.dialect)
        pieces = self._sifted(composed(changes), sieve)
        few, more = few_of(pieces, min(INLINE_BYTES, self.dialect.most_inline_bytes))
        if not more:
            inline = Inline(self.dialect)
            staged = tuple(self._stage_changes(inline, piece) for piece in few)
            return StagedPart(staged, rejected=tuple(sieve.rejected))
        with self._staging() as staging:
            staged = tuple(self._stage_changes(staging, piece) for piece in drained(few, pieces))
        return StagedPart(staged, tuple(staging.names), tuple(sieve.rejected))

    def _stage_changes(self, writer: Writer, piece: NetChanges) -> StagedChanges:
        table = piece.schema.table
        with _trouble_of(table), self._sessions.errors(f"staging {table}"):
            return stage_changes(writer, piece, self._map)

    def _sifted(self, pieces: Iterator[NetChanges], sieve: Sieve) -> Iterator[NetChanges]:
        return map(sieve.net, pieces) if self.settings.misfits is Misfits.QUARANTINE else pieces

    def _is_text(self, type_: ColumnType) -> bool:
        return self.settings.misfits is Misfits.TEXT and self.dialect.has_misfits(type_)

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        """The order that matters: may we, is it new, apply, remember, commit. What was staged goes, in any case."""
        staged = [table for part in _parts(batch) for table in part.tables]
        with self._sessions.use("committing a batch") as session, self._leaving(session, staged):
            self._create_notes(session)
            self._refuse_unsettled(session, batch)
            if not self.dialect.ddl_is_transactional:
                self._remember_undo(session, batch)
                self._lock_before(session)
                if not self._notes.is_committed(session, batch):
                    self._change_tables(session, batch)
            with transaction(session):
                session.lock(self.owner)
                self._check_claim(session)
                is_done = self._notes.is_committed(session, batch)
                self._notes.count_commit(session)
                if is_done:
                    return 0
                self._require(session, staged)
                if self.dialect.ddl_is_transactional:
                    self._change_tables(session, batch)
                touched, refused = self._apply_all(session, batch, fetch)
                self._set_aside(session, batch, refused)
                self._end_changes(session, batch)
                taken = self._write_statuses(session, batch.tables)
                if batch.watermark is not None:
                    self._notes.write_watermark(session, batch.watermark)
                failpoints.reached("sink-before-commit")
            failpoints.reached("sink-committed")
            self._drop_copies(session, taken)
            self._settle_after(session)
            return touched

    def _change_tables(self, session: Session, batch: Batch) -> None:
        """All DDL of a batch. Without transactional DDL it is done before the transaction, and `_settle` undoes it."""
        for evolved in batch.evolved:
            with (
                _trouble_of(evolved.before.table),
                self._sessions.errors(f"changing the table of {evolved.schema.table}"),
            ):
                self._take_in(session, evolved)
        newest = {evolved.schema.table: evolved.schema for evolved in batch.evolved}
        beside = self._beside(session, batch)
        for schema in (changes.schema for part in _parts(batch) for changes in part.changes):
            with _trouble_of(schema.table), self._sessions.errors(f"changing the table of {schema.table}"):
                target = self._places.table(schema, is_beside=schema.table in beside)
                self._evolve(session, newest.get(schema.table, schema), target)
        for status in batch.tables:
            if status.state is TableState.LIVE and status.table in beside:
                with _trouble_of(status.table), self._sessions.errors(f"changing the table of {status.table}"):
                    self._make_room(session, status)

    def _make_room(self, session: Session, status: TableStatus) -> None:
        """The table can take the rows of its copy, or be replaced by it."""
        schema, target = self._map.schema(status.schema), self._places.table(status.schema)
        if not self._tables.make_room(session, schema, target):
            self._tables.refuse_replacing(session, schema, target, self._places.copy_of(status.table))

    def _remember_undo(self, session: Session, batch: Batch) -> None:
        """Before DDL that is no part of a transaction: how it is undone if the commit does not come."""
        if not batch.evolved:
            return
        self._is_settled = False
        with transaction(session):
            session.lock(self.owner)
            self._check_claim(session)
            if not self._notes.is_committed(session, batch):
                for evolved in batch.evolved:
                    undo = self._tables.undo_of(session, *self._versions_of(evolved))
                    self._notes.write_undo(session, evolved.before.table, undo)

    def _end_changes(self, session: Session, batch: Batch) -> None:
        for evolved in batch.evolved:
            self._notes.write_undo(session, evolved.before.table, None)
        self._notes.rename(session, {e.before.table: e.schema.table for e in batch.evolved})

    def _beside(self, session: Session, batch: Batch) -> set[str]:
        """The tables of a batch of which a copy grows beside the table that readers see."""
        stored = (self._notes.status(session, status.table) for status in batch.tables)
        return {status.table for status in stored if status is not None and status.is_beside}

    def _apply_all(self, session: Session, batch: Batch, fetch: FetchRows) -> tuple[int, Refused]:
        refused = Refused(self.dialect, session, self._map, is_fatal=self.settings.on_error is OnError.STOP)
        ahead = {status.table for status in batch.tables if status.state is TableState.AHEAD}
        ahead |= self._notes.ahead(session).keys()
        newest = {evolved.schema.table: evolved.schema for evolved in batch.evolved}
        known_as = {evolved.schema.table: evolved.before.table for evolved in batch.evolved}  # in our notes, as yet
        beside = self._beside(session, batch)
        touched = 0
        for changes in (changes for part in _parts(batch) for changes in part.changes):
            table = changes.schema.table
            known = known_as.get(table, table)
            if table in newest:
                changes = adapted(changes, newest[table], self._map)
            target = self._places.table(changes.schema, is_beside=table in beside)
            with _trouble_of(table), self._sessions.errors(f"merging {table}"):
                is_single_key = self._evolve(session, newest.get(table, changes.schema), target)
                stale = Stale(changes.schema, self._notes.quarantined_keys(session, known) if changes.partials else ())
                merge = self._merge(session, changes.schema, target, refused, stale, is_single_key=is_single_key)
                merge.apply(changes, fetch, is_ahead=known in ahead)
            if merge.has_fetched:
                ahead.add(known)
                self._notes.mark_ahead(session, known)
            touched += changes.count
        return touched, refused

    def _merge(
        self,
        session: Session,
        source: TableSchema,
        target: Target,
        refused: Refused,
        stale: Stale,
        *,
        is_single_key: bool,
    ) -> TableMerge:
        table = self.dialect.qualified(target)
        return TableMerge(
            *(self.dialect, session, self._map, refused, source, table), is_single_key=is_single_key, stale=stale
        )

    def _set_aside(self, session: Session, batch: Batch, refused: Refused) -> None:
        """Not the rows of a table that is to be copied again, of which nothing in this batch is applied."""
        again = {status.table for status in batch.tables if status.state is TableState.SNAPSHOT}
        rejected = [item for part in _parts(batch) for item in part.rejected if item.table not in again] + refused.rows
        if rejected:
            places = [batch.watermark] if batch.watermark is not None else [s.watermark for s in batch.tables]
            self._notes.write_rejected(session, rejected, places[0])

    def _require(self, session: Session, staged: list[str]) -> None:
        """A server that crashed has emptied its unlogged tables: what is not there must be staged again."""
        if staged and not self.dialect.is_staged(session, staged):
            raise SinkUnavailable(f"sink {self.name}: what was staged for this batch is gone, as after a crash")

    # --- snapshots

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        with (
            _trouble_of(status.table),
            self._sessions.use(f"preparing the table {status.table}") as session,
            self._leaving(session, []),
        ):
            self._create_notes(session)
            self._settle(session)
            is_beside = clear and self._is_known_to_readers(session, status)
            status = msgspec.structs.replace(status, is_beside=is_beside)
            if not self.dialect.ddl_is_transactional:
                self._prepare_first(session, status, clear=clear)
            with transaction(session):
                session.lock(self.owner)
                self._check_claim(session)
                if self.dialect.ddl_is_transactional:
                    self._prepare(session, status, clear=clear)
                if clear:
                    self._notes.drop_quarantined(session, source_table=status.table)
                self._notes.replace_marks(session, status.table, chunks)
                self._notes.write_status(session, status)
                self._notes.write_undo(session, status.table, None)
            self._versions.clear()
        return status

    def _is_known_to_readers(self, session: Session, status: TableStatus) -> bool:
        """Whether the table has rows already, other than those of a first copy that has not come to its end."""
        stored = self._notes.status(session, status.table)
        if stored is not None and stored.state in COPYING and stored.visibility and not stored.is_beside:
            return False
        target = self._places.table(status.schema)
        if self.dialect.existing(session, target) is None:
            return False
        return bool(session.execute(f"SELECT 1 FROM {self.dialect.qualified(target)} LIMIT 1"))

    def _prepare(self, session: Session, status: TableStatus, *, clear: bool) -> None:
        self._refuse_collision(session, status)
        known = self._notes.status(session, status.table)
        is_known = known is not None and known.held_as in ("", status.held_as)  # under this very name
        if clear and (unknown := self._map.unknown(status.schema)):
            raise SinkRejected(
                f"sinks.{self.name}.columns renames {', '.join(unknown)}, which {status.table} does not have"
            )
        schema, target = self._map.schema(status.schema), self._places.table(status.schema)
        if status.is_beside:
            copy = self._places.copy_of(status.table)
            self._tables.prepare_beside(session, schema, target, copy, is_known=is_known)
        else:
            self._tables.prepare(session, schema, target, clear=clear, is_known=is_known)

    def _refuse_collision(self, session: Session, status: TableStatus) -> None:
        """Another table that has rows in the sink, or will have, keeps its name to itself."""
        others = [
            each for each in self._notes.statuses(session) if not _is_gone(each) and self._places.has(each.schema)
        ]
        places = ((each.table, str(self._places.table(each.schema))) for each in others)
        mine = str(self._places.table(status.schema))
        refuse_collision(status.table, mine, places, folds=self.dialect.folds_names)

    def _prepare_first(self, session: Session, status: TableStatus, *, clear: bool) -> None:
        """Without transactional DDL: a table that is being cleared must not pass for a copied one after a crash.

        First the status without any chunk, which means that the snapshot begins anew; then the table.
        """
        known = self._notes.status(session, status.table)
        if clear and known is not None:
            begun = msgspec.structs.replace(status, state=TableState.SNAPSHOT, held_as=known.held_as)
            with transaction(session):
                session.lock(self.owner)
                self._check_claim(session)
                self._notes.replace_marks(session, status.table, [])
                self._notes.write_status(session, begun)
                self._notes.write_undo(session, status.table, None)
        self._lock_before(session)
        self._prepare(session, status, clear=clear)

    def _write_statuses(self, session: Session, statuses: Iterable[TableStatus]) -> list[str]:
        """Write them, and put copies in their place; returns the copies that are of no use any more."""
        taken = []
        for status in statuses:
            placed = self._placed(session, status)
            self._notes.write_status(session, placed)
            if placed is not status and not placed.is_beside:
                taken.append(self.dialect.qualified(self._places.copy_of(status.table)))
        return taken

    def _placed(self, session: Session, status: TableStatus) -> TableStatus:
        """A table that becomes live takes the place of what readers saw of it until now, if its copy is beside that."""
        stored = self._notes.status(session, status.table)
        if status.state is not TableState.LIVE or stored is None:
            return status
        if not stored.is_beside:
            return msgspec.structs.replace(status, is_beside=False) if status.is_beside else status
        copy, target = self._places.copy_of(status.table), self._places.table(status.schema)
        with _trouble_of(status.table), self._sessions.errors(f"putting the copy of {status.table} in its place"):
            if self._tables.take_rows(session, self._map.schema(status.schema), target, copy):
                return msgspec.structs.replace(status, is_beside=False)
            if self.dialect.ddl_is_transactional:
                self._replace(session, target, copy)
                return msgspec.structs.replace(status, is_beside=False)
        self._is_settled = False
        return msgspec.structs.replace(status, is_beside=True)

    def _replace(self, session: Session, target: Target, copy: Target) -> None:
        if self.dialect.existing(session, copy) is not None:  # or else it was done already
            has_table = self.dialect.existing(session, target) is not None
            for statement in self.dialect.replace(target, copy, has_table=has_table):
                session.execute(statement)
        self._versions.clear()

    # --- where DDL is no part of a transaction

    def _settle(self, session: Session) -> dict[str, SinkRejected]:
        """Undo changes whose commit never came, and put copies in their place whose commit did; also after a crash.

        Returns what keeps live tables from it, by table. One that is not live is copied again, in any case.
        """
        if self._is_settled:
            return {}
        statuses = {status.table: status for status in self._notes.statuses(session)}
        live = {table: status for table, status in statuses.items() if status.state is TableState.LIVE}
        trouble: dict[str, SinkRejected] = {}
        for table, undo in self._notes.undos(session).items():
            with self._gathered(trouble, table, f"undoing a change of {table}"):
                self._lock_before(session)
                self._tables.take_back(session, undo)
            if table not in trouble or table not in live:
                self._write_settled(session, statuses[table])
        for table, status in live.items():
            if status.is_beside:
                with self._gathered(trouble, table, f"putting the copy of {table} in its place"):
                    self._put_in_place(session, status)
        self._versions.clear()
        self._is_settled = not trouble
        return {table: error for table, error in trouble.items() if table in live}

    def _put_in_place(self, session: Session, status: TableStatus) -> None:
        copy, target = self._places.copy_of(status.table), self._places.table(status.schema)
        self._lock_before(session)
        if self.dialect.existing(session, copy) is not None:
            self._tables.refuse_replacing(session, status.schema, target, copy)
        self._replace(session, target, copy)
        self._write_settled(session, msgspec.structs.replace(status, is_beside=False))
        self._drop_copies(session, self._replaced(copy))

    def _write_settled(self, session: Session, status: TableStatus) -> None:
        with transaction(session):
            session.lock(self.owner)
            self._check_claim(session)
            self._notes.write_status(session, status)
            self._notes.write_undo(session, status.table, None)

    @contextmanager
    def _gathered(self, trouble: dict[str, SinkRejected], table: str, doing: str) -> Iterator[None]:
        """What is refused inside is the table's own trouble, and keeps nobody else waiting."""
        try:
            with _trouble_of(table), self._sessions.errors(doing):
                yield
        except SinkRejected as error:
            trouble[table] = error

    def _refuse_unsettled(self, session: Session, batch: Batch) -> None:
        """Raise the trouble of a live table, unless the batch sets it aside."""
        aside = {status.table for status in batch.tables if status.state is not TableState.LIVE}
        for table, error in self._settle(session).items():
            if table not in aside:
                raise error

    def _settle_after(self, session: Session) -> None:
        """After a commit, which must not pass for a refused one: trouble is the next one's, and to be met soon."""
        for error in self._settle(session).values():
            raise SinkUnavailable(str(error), hint=error.hint) from error

    def chunk_form(self, schema: TableSchema) -> str:
        types = [column.type for column in schema.columns]
        is_sifted = self.settings.misfits is Misfits.QUARANTINE
        is_mapped = types != [column.type for column in self._map.schema(schema).columns]
        return "" if is_sifted or is_mapped else self.dialect.row_form(types)

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        source, target = schema, self._places.table(schema, is_beside=mark.is_beside)
        schema = self._map.schema(source)
        sieve = Sieve(self.dialect)
        if self.settings.misfits is Misfits.QUARANTINE:
            batches = map(functools.partial(sieve.rows, source, operation="read"), batches)
        with self._sessions.open(f"loading {schema.table}") as session:
            existing = self.dialect.existing(session, target)
            if existing is None:
                raise gone(schema, target)
            isolates = self.settings.on_error is OnError.QUARANTINE
            refused = Refused(self.dialect, session, self._map, is_fatal=not isolates)
            merge = functools.partial(refused.merge, source, "read")
            loader = ChunkLoader(self.dialect, session, self._places.new_staging, merge)
            mapped = map(functools.partial(self._map.arriving, source), batches)
            with loader.gathered(schema, mapped) as rows:
                failpoints.reached("chunk-before-load")
                with transaction(session):
                    self._check_claim(session)
                    if self._notes.is_loaded(session, mark):
                        return 0
                    loader.load(self.dialect.qualified(target), schema, existing, rows, isolates=isolates)
                    self._notes.write_rejected(session, sieve.rejected + refused.rows, Watermark("", 0, ""))
                    self._notes.mark_loaded(session, mark, loader.rows)
            failpoints.reached("chunk-loaded")
            return loader.rows

    def finish_snapshot(self, status: TableStatus) -> None:
        schema = status.schema
        target = self._places.table(schema, is_beside=status.is_beside)
        with (
            _trouble_of(schema.table),
            self._sessions.use(f"building the key of {schema.table}") as session,
            transaction(session),
        ):
            session.lock(self.owner)
            self._check_claim(session)
            self._tables.build_key(session, self._map.schema(schema), target)

    # --- rows that were set aside

    def quarantined(self) -> list[Quarantined]:
        with self._sessions.look("reading its quarantine") as session:
            return self._notes.quarantined(session) if self._notes.exists(session) else []

    def drop_quarantined(self, entries: Sequence[Quarantined]) -> None:
        with self._sessions.use("emptying its quarantine") as session, transaction(session):
            for entry in entries:
                self._notes.drop_quarantined(session, id=entry.id)

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        """Nobody else commits meanwhile, so what is read now is at least as new as what the sink has of these rows.

        What the pipeline has yet to apply of them comes after, and ends at the same rows; till then the table is ahead.
        """
        with self._sessions.use("replaying its quarantine") as session, transaction(session):
            session.lock(self.owner)
            done = [entry for entry in entries if self._write_again(session, entry.rejected, fetch)]
            for table in {entry.rejected.table for entry in done}:
                self._notes.mark_ahead(session, table)
            for entry in done:
                self._notes.drop_quarantined(session, id=entry.id)
        return len(done)

    def _write_again(self, session: Session, rejected: Rejected, fetch: FetchRows) -> bool:
        """False if the row is still refused. One that is gone from the source goes from the sink."""
        status = self._notes.status(session, rejected.table)
        source = replayable(rejected, status)
        target = self._places.table(source, is_beside=status is not None and status.is_beside)
        key = pa.RecordBatch.from_pydict({name: [str(value)] for name, value in rejected.key.items()})
        sieve = Sieve(self.dialect)
        rows = fetch(source, key)
        if not rows.num_rows:
            texts = [str(rejected.key[name]) for name in source.key]
            return delete_again(session, self.dialect, self.dialect.qualified(target), self._map.schema(source), texts)
        if self.settings.misfits is not Misfits.TEXT:
            rows = sieve.rows(source, rows, "upsert")
        refused = Refused(self.dialect, session, self._map, is_fatal=False)
        if rows.num_rows:
            upserts = Inline(self.dialect).write(columns_of(self._map.schema(source), self._map.rows(source, rows)))
            changes = StagedChanges(source, truncate=False, deletes=None, upserts=upserts, partials=(), count=1)
            with _trouble_of(source.table), self._sessions.errors(f"merging {source.table}"):
                is_single_key = self._evolve(session, source, target)
                merge = self._merge(session, source, target, refused, Stale(source), is_single_key=is_single_key)
                merge.apply(changes, fetch)
        return not sieve.rejected and not refused.rows

    def tend_ahead(self, tend: Callable[[str, str], str]) -> None:
        with self._sessions.use("looking for tables that are ahead") as session:
            self._create_notes(session)
            marks = self._notes.ahead(session)
        places = {table: "" if mark.startswith(JUST_READ) else mark for table, mark in marks.items()}
        changed = {table: now for table, place in places.items() if (now := tend(table, place)) != place}
        if not changed:
            return
        with self._sessions.use("marking tables that are ahead") as session, transaction(session):
            session.lock(self.owner)
            self._check_claim(session)
            for table, now in changed.items():
                self._notes.tend_ahead(session, table, marks[table], now)

    # --- reading back

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        table = self.dialect.qualified(self._places.table(schema))
        schema = self._map.schema(schema)
        columns = ", ".join(self.dialect.selected(self.dialect.quote(c.name), c.type) for c in schema.columns)
        query = f"SELECT {columns} FROM {table}"
        types = [column.type for column in schema.columns]
        with self._sessions.open(f"reading {schema.table}") as session:
            for rows in session.stream(query):
                read = [
                    self.dialect.read_values(values, type_)
                    for values, type_ in zip(zip(*rows, strict=True), types, strict=True)
                ]
                yield list(zip(*read, strict=True))

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        mapped = zip(self._map.rows(schema, batch).columns, self._map.schema(schema).columns, strict=True)
        columns = [self.dialect.expected_values(array, column.type) for array, column in mapped]
        return list(zip(*columns, strict=True))

    # --- tables

    def takes_in_place(self, evolved: Evolved) -> bool:
        looking = f"looking at the table of {evolved.schema.table}"
        if not self._is_settled:
            with self._sessions.use(looking) as session:
                self._create_notes(session)
                self._settle(session)
        with self._sessions.look(looking) as session:
            return self._tables.can_take_in(session, *self._versions_of(evolved), self._fills(evolved))

    def _take_in(self, session: Session, evolved: Evolved) -> None:
        self._tables.take_in(session, *self._versions_of(evolved), self._fills(evolved))
        self._versions.clear()

    def _versions_of(self, evolved: Evolved) -> tuple[TableSchema, TableSchema, Target, Target]:
        """Before and after, in the sink's names; and where the table is."""
        schemas = self._map.schema(evolved.before), self._map.schema(evolved.schema)
        return *schemas, self._places.table(evolved.before), self._places.table(evolved.schema)

    def _fills(self, evolved: Evolved) -> dict[str, str | None]:
        """By column of the sink: the value of old rows as SQL, None where there is no SQL of it."""
        fills = self._map.rows(evolved.schema, evolved.fills)
        types = {column.name: column.type for column in self._map.schema(evolved.schema).columns}
        return {
            name: self.dialect.literal(Field(f"{evolved.schema.table}.{name}", types[name], array))
            for name, array in zip(fills.schema.names, fills.columns, strict=True)
            if not array.null_count
        }

    def _evolve(self, session: Session, schema: TableSchema, target: Target) -> bool:
        """Make the table ready for this version; whether its key is all that can be there already."""
        ready = self._versions.get(target)
        schema = self._map.schema(schema)
        if ready is None or ready.schema != schema:
            status = self._notes.status(session, schema.table)
            if status is not None:
                status = msgspec.structs.replace(status, schema=self._map.schema(status.schema))
            before = None if ready is None else ready.schema
            ready = Ready(schema, self._tables.evolve(session, schema, target, status, before))
            self._versions[target] = ready
        return ready.is_single_key

    def _create_notes(self, session: Session) -> None:
        """Our own tables, made once; tasks take it from the driver that they are there."""
        if self._has_notes:
            return
        if not self._notes.is_complete(session):
            with transaction(session):
                session.lock("tailrace")
                self._notes.create(session)
        self._has_notes = True

    # --- staging

    @contextmanager
    def _staging(self) -> Iterator[Staging]:
        """Where a task writes what is too much for its receipt."""
        name = self._places.new_staging()
        if (file := self.dialect.staging_file(name)) is not None:
            with self._sessions.errors("staging a batch"), closing(file):
                yield StagingInFile(self.dialect, file, name)
            return
        with self._sessions.open("staging a batch") as session:
            self._create_notes(session)
            with transaction(session):
                yield StagingTables(self.dialect, session, self._places.new_staging)

    @contextmanager
    def _leaving(self, session: Session, staged: list[str]) -> Iterator[None]:
        """Whatever happens inside: staging tables are dropped, and what is known of tables is as true as before."""
        try:
            yield
        except BaseException as error:
            self._versions.clear()
            self._has_notes, self._is_settled = False, self.dialect.ddl_is_transactional
            found = self.dialect.explain(error)
            is_lost = isinstance(error, SinkUnavailable) or (found is not None and found.kind is SinkUnavailable)
            if is_lost:
                self._litter += staged
            else:
                self._drop(session, staged)
            raise
        litter, self._litter = self._litter, []
        self._drop(session, staged + litter)

    def _drop(self, session: Session, staged: list[str]) -> None:
        """What can not be dropped is left for the next `clean`: a commit that was done must not fail for it."""
        for name in staged:
            with suppress(SinkRejected), self._sessions.errors("removing what was staged"):
                self.dialect.drop_staged(session, name)


def _is_gone(status: TableStatus) -> bool:
    """Whether a table is not at the source any more, nor under its name, or never came: another may have its name."""
    has_left = status.state is TableState.PAUSED and not status.membership
    return has_left or (status.state is TableState.FAILED and status.stored is None)


@contextmanager
def _trouble_of(table: str) -> Iterator[None]:
    """What is refused inside is this table's own trouble; so is a fault of ours, which stops no other table."""
    try:
        yield
    except SinkRejected as error:
        error.table = error.table or table
        raise
    except FAULTS as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"  # its words may show a value
        hint = "this is a fault of tailrace; please report it, with what is particular about the table in the sink"
        raise SinkRejected(
            f"{table} met with an error that nobody expected: {where}", hint=hint, table=table
        ) from error


def _parts(batch: Batch) -> list[StagedPart]:
    """The receipts of a batch, which are our own."""
    return [part for part in batch.parts if isinstance(part, StagedPart)]
