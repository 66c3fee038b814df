"""The source contract: what capture, decoding and snapshots need of a database.

A source never writes to its database, apart from the slot and publication it is told to make. Positions are opaque
strings above this package; `reached` orders them. Opaque as well: what a snapshot sees (a *visibility*), the place of a
chunk, and the columns that a segment has for a transaction besides TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import ClassVar, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.config import Settings
from tailrace.errors import SourceUnavailable
from tailrace.model.changes import Changes
from tailrace.model.chunk import Chunk
from tailrace.model.details import TableDetails
from tailrace.model.event import SourceMessage
from tailrace.model.frames import Frames
from tailrace.model.lifecycle import StoredAs
from tailrace.model.rows import ReadRows, Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One line of `tailrace check`: what was looked at, how it is, and what to do about it."""

    subject: str
    level: Level
    message: str
    fix: str = ""


class ExportedSnapshot(msgspec.Struct, frozen=True):
    """A consistent view that many connections can read under while its owner holds it open."""

    id: str
    visibility: str  # what it sees, in the source's own words
    position: str  # no transaction that it sees ends after this place


class StorageChange(msgspec.Struct, frozen=True):
    """What became of a table's rows without a change event: all of them may differ, or parts were `added`."""

    is_rewritten: bool = False
    added: tuple[str, ...] = ()
    reason: str = ""


class Absence(msgspec.Struct, frozen=True):
    """Why a table that was captured is not any more; one that `is_gone` may come back as another under its name."""

    reason: str
    is_gone: bool = False


class TableFacts(msgspec.Struct, frozen=True):
    """A published table as the source's catalog has it now; `membership` and `stored` as in TableStatus.

    `trouble` says why the stream does not tell all that becomes of it, and what to do; empty for a sound table. A
    `remark` is what its users should know all the same.
    """

    schema: TableSchema
    membership: str
    stored: StoredAs
    bytes: int
    trouble: str = ""
    remark: str = ""


class Published(msgspec.Struct, frozen=True):
    """What a call of `publish` has done.

    A table that `moved` publishes more than it did, or less: from inserts to all, it has to be copied again, because
    updates and deletes before the move were not sent. `waiting` are locked by somebody: the next call tries again.
    `refused` can not be published, or not where they should be: by table, why, and what mends it.
    """

    added: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    refused: dict[str, str] = {}

    @property
    def changed(self) -> tuple[str, ...]:
        return (*self.added, *self.moved, *self.removed)


class LoggedMessage(msgspec.Struct, frozen=True):
    """`transaction` is the row of it among those of the frames."""

    offset: int
    transaction: int
    message: SourceMessage


class TableLocked(SourceUnavailable):
    """Somebody holds a lock on the table that lets nobody read it. Other tables are not concerned."""


class TableRewritten(Exception):
    """The table's storage, or what its columns are called, changed since it was looked at: look and plan again."""


class Capture(Protocol):
    """An open stream of changes. Not thread-safe."""

    identity: SourceIdentity
    """Whom the stream comes from."""

    def poll(self, seconds: float, *wake: object) -> None:
        """Take in what has come, waiting at most `seconds`; returns early when one of `wake` can be read."""

    def idle(self, seconds: float, *wake: object) -> None:
        """Take nothing in, but keep the connection alive. Otherwise as `poll`."""

    @property
    def pending_bytes(self) -> int:
        """Size of what was taken in and not handed out."""

    def take(self) -> tuple[Frames, str] | None:
        """What is pending, and the position of its last transaction end. If it is much it comes in several pieces.

        Frames that begin before the end of those handed out last replace what lies behind the last transaction end.
        """

    @property
    def received(self) -> str:
        """How far the source's log has been read, also where nothing in it was for us."""

    def acknowledge(self, position: str) -> None:
        """The source may forget what lies before `position`."""

    def remarks(self) -> list[str]:
        """What an operator should know of the stream; each is said once."""

    def close(self) -> None: ...


class Source(Protocol):
    """One database. Everything that tasks call is a pure function of the picklable source."""

    settings_type: ClassVar[type[Settings]] = Settings
    """What a source of this kind has of its own in the pipeline file; `Pipeline.source_settings` reads it."""

    @property
    def reads_from(self) -> str:
        """What is captured, as the server names it. Two captures that read from something else have other changes."""
        return ""

    def preflight(self) -> list[Finding]: ...
    def identify(self) -> SourceIdentity: ...
    def check_same(self, known: SourceIdentity, position: str, on_wait: Callable[[], None] = ...) -> SourceIdentity:
        """The present identity, or SourceChanged if what `known` had up to `position` is not this source's past.

        That may take as long as the source needs to read its own log: `on_wait` is called every moment, and may raise.
        """

    def prepare(self, on_wait: Callable[[list[str]], None], on_create: Callable[[], None]) -> str:
        """Make sure that slot and publication are there; the position from which the source can still stream.

        A new slot may have to wait: `on_wait` is told for whom, every moment, and may raise. `on_create` is called
        before a slot is made, so that it can be dropped by `drop_slot` if nothing comes of it.
        """

    def new_start(self, oldest: str, needed: Collection[str] | None) -> str:
        """Where a new log begins, `oldest` being what `prepare` said: it has what follows all places that are `needed`.

        None, where nobody knows what is needed.
        """

    def drop_slot(self) -> bool: ...
    def publish(self, is_known: Callable[[str], bool]) -> Published:
        """Have the tables streamed that came since. One that `is_known` was taken out on purpose, and stays out."""

    def tables(self) -> list[TableSchema]:
        """The tables to capture, as they are now."""

    def readable(self) -> list[TableSchema]:
        """Those that can be read, whether or not they are in the stream."""

    def facts(self, refused: Mapping[str, str] = ...) -> list[TableFacts]:
        """The same tables, with what the stream does not tell of them.

        Those that `publish` has `refused`, and that nobody has published since, are in trouble for that reason.
        """

    def details(self, tables: Iterable[TableSchema]) -> dict[str, TableDetails]:
        """What the catalog knows of these tables besides, by name; without those that it tells nothing of."""

    def index_statement(self, table: TableSchema, columns: Sequence[str]) -> str:
        """How an index on these columns is made, in the source's own words. Asks nobody."""

    def is_founder(self, facts: TableFacts) -> bool:
        """Whether the table was published before our `prepare` made a new beginning, and has been since.

        Whoever wrote to it before has ended: the server waits for that.
        """

    def storage_change(self, schema: TableSchema, old: StoredAs, new: StoredAs) -> StorageChange: ...
    def has_rows(self, schema: TableSchema, relations: Iterable[str]) -> bool:
        """Whether any of these relations of a table, as in StoredAs, has a row. Raises TableLocked."""

    def writers(self, facts: TableFacts) -> dict[str, str]:
        """The transactions under way that may have written to a table: by their own name, who they are."""

    def current_position(self) -> str: ...
    def reached(self, position: str, target: str) -> bool: ...
    def distance(self, position: str, target: str) -> int:
        """Bytes of the source's log between two positions."""

    def end_positions(self, transactions: pa.RecordBatch) -> list[str]:
        """Where each of these transactions of a segment ends, or where a mark stands."""

    def capture(
        self,
        after: str,
        first_offset: int,
        described: Mapping[int, TableSchema],
        known: SourceIdentity | None,
        *,
        messages: bool = ...,
    ) -> Capture:
        """Stream what follows `after`, which was read from `known`; raises SourceChanged, PositionLost.

        `described` are the tables as the log has described them, by their relation. With `messages`, what applications
        wrote into the source's log comes as well; a pipeline has no use for it.
        """

    @staticmethod
    def decode(frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
        """The changes that have the offsets `first … last`, of all tables or of these. Asks nobody."""

    @staticmethod
    def messages(frames: Frames, first: int, last: int) -> Iterator[LoggedMessage]:
        """What applications themselves wrote into the source's log, in the same range. Asks nobody."""

    def transaction_ids(self, transactions: pa.RecordBatch) -> list[str]:
        """What the source calls each of these transactions of a segment; the same when it sends them again."""

    transaction_columns: ClassVar[pa.Schema]
    """What `decode` tells of a transaction; users see it. `_commit_time` at least."""

    def export_snapshot(self) -> AbstractContextManager[ExportedSnapshot]: ...
    def plan_snapshot(self, table: TableSchema, chunk_bytes: int) -> list[Chunk]: ...
    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot: str, form: str = "") -> Iterator[Rows]:
        """In a task: the chunk's rows as the snapshot sees them, encoded in `form` if the source has them so."""

    def read_where(self, table: TableSchema, chunk: Chunk, snapshot: str, where: str) -> Iterator[pa.RecordBatch]:
        """As `read_chunk`: only the rows for which a condition in the source's own words is true."""

    def read_all(self, table: TableSchema, snapshot: str | None = None) -> Iterator[pa.RecordBatch]:
        """All rows of a table, as a snapshot sees them or as they are, to be compared with what a sink has."""

    def absence(self, table: TableSchema) -> Absence:
        """Why a table that was captured is not among `tables` now."""

    def captures(self, table: TableSchema) -> bool:
        """Whether a table of this name is to be captured. Asks nobody."""

    def old_values(self, table: TableSchema, added: list[str], stored: StoredAs | None) -> pa.RecordBatch | None:
        """One row: what rows that were there before have in the columns `added`. None if that can not be told.

        It can not where the table has been rewritten since it was `stored` so.
        """

    def is_shown(self, transactions: Iterable[pa.RecordBatch]) -> bool:
        """Whether everybody sees these transactions now. One that waits for a standby is in the stream before."""

    def seen(self, transactions: pa.RecordBatch, visibility: str) -> pa.BooleanArray:
        """Which of these transactions a snapshot sees; null for a mark of the source's progress, which is none."""

    def unseen(self, changes: Changes, visibility: str) -> npt.NDArray[np.bool_]:
        """The changes whose transaction a snapshot does not see. Asks nobody."""

    def read_written(
        self, table: TableSchema, chunk: Chunk, snapshot: str, visibility: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk that were written by transactions which `visibility` does not see; some others, maybe.

        None, where each change tells the whole row.
        """

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The present rows that have these keys."""

    def reader(self, snapshot: str) -> AbstractContextManager[ReadRows]:
        """In a task: many questions for rows, by any columns, all answered as one exported snapshot sees them.

        A table that was emptied since is read as it is now, if the snapshot can not see its rows any more. Raises
        TableRewritten where a table is not as described. Nothing is kept locked between two questions.
        """

    def drop(self) -> list[str]:
        """Remove what `prepare` made; says what was removed."""
