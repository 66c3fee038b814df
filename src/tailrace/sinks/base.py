"""The sink contract: what *staged* and *committed* mean.

- Staged: written by a task, seen by no reader, gone without a trace if the batch is never committed.
- Committed: data, table statuses, chunk marks and the watermark became durable in one step. A reader sees all or none.
- Claimed: from here on runs that claimed the sink earlier write nothing any more, not even what they had under way.

A commit is: this run's claim is still the last one, the watermark and the tables' own places are those that the batch
started from, then all of the batch, or nothing. `commit` of a batch that was committed before changes nothing, whoever
lost the answer.

What else a sink can do are capabilities, each a protocol of its own that the pipeline asks for: a sink that has its
methods has it, and the contract suites hold it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from tailrace.columns.net import NetChanges
from tailrace.config import Document, Settings, TablePatterns
from tailrace.documents.apart import Refused
from tailrace.documents.touch import Remembered
from tailrace.model.changes import Changes
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity, Watermark

FetchRows = Callable[[TableSchema, pa.RecordBatch], pa.RecordBatch]
"""Reads rows from the source by key, for partial updates whose row the sink does not have."""


class ChunkMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk of a table's snapshot: planned, and loaded or not."""

    generation: int
    chunk: Chunk
    is_loaded: bool = False
    rows: int = 0
    is_beside: bool = False  # where the table's status says so; not remembered with the mark

    @property
    def table(self) -> str:
        return self.chunk.table

    @property
    def number(self) -> int:
        return self.chunk.number


class Rejected(msgspec.Struct, frozen=True):
    """A row that a sink could not take, by the source's names; `key` is empty for a table without one."""

    table: str
    operation: str  # upsert, update, delete; read for a row of a snapshot
    key: dict[str, Any]
    reason: str
    payload: dict[str, Any]


class Quarantined(msgspec.Struct, frozen=True):
    """A rejected row as a sink keeps it. `place` is the end of the batch that it was part of."""

    id: str
    at: str
    rejected: Rejected
    place: Watermark


class SinkState(msgspec.Struct, frozen=True):
    """All that a sink remembers of one pipeline. `commits` are those of the run that claimed it last."""

    watermark: Watermark | None
    tables: dict[str, TableStatus]
    chunks: dict[str, list[ChunkMark]]
    commits: int = 0


class Evolved(msgspec.Struct, frozen=True):
    """A live table whose name or columns change in place: the rows that the sink has of it stay.

    A column is the same one as before if its number is. `fills` has one row: what the rows that are there have in those
    of the new columns that came with a value.
    """

    before: TableSchema
    schema: TableSchema
    fills: pa.RecordBatch


class Concern(msgspec.Struct, frozen=True):
    """What a sink finds in the system that it writes to: it will stop the sink, or one `table`; or else may do harm."""

    subject: str
    message: str
    fix: str = ""
    is_failing: bool = False
    table: str = ""


class Receipt(Protocol):
    """What a task leaves for the commit. It pickles, it is small, and only its own sink reads it."""

    def without(self, tables: Collection[str]) -> Receipt:
        """The same, but for what is staged of these tables: it is held back."""


class Atomic(StrEnum):
    """What a commit makes durable in one step."""

    BATCH = "batch"  # all of it
    TABLE = "table"  # a table with its own place; the sink's watermark follows when all tables are there
    ROW = "row"  # the watermark and all statuses; rows are there before, each by itself, and none is ever older


class Batch(msgspec.Struct, frozen=True):
    """What one commit makes durable. `parts` are what `stage` returned, to be applied in this order.

    The sink's own watermark goes from `before` to `watermark`. Without a `watermark` only the tables' own places move
    (a catch-up step), from those in `places`. Of tables in `evolved` the parts may hold rows of every version from the
    old to the new one. `commits` is how many the run has made before this one, if it knows: a sink that has fewer has
    lost the last ones, and with them perhaps what the run believes of a table that this batch does not name.
    """

    parts: tuple[Receipt, ...] = ()
    watermark: Watermark | None = None
    tables: tuple[TableStatus, ...] = ()
    before: Watermark | None = None
    places: dict[str, Watermark] = {}
    evolved: tuple[Evolved, ...] = ()
    commits: int | None = None


class Sink(Protocol):
    """One system written to, for one pipeline. It pickles: connections are made where they are used.

    A sink is a RowSink or a ChangeSink.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    """What a sink of this kind has of its own in the pipeline file; `Pipeline.sink_settings` reads it."""
    name: str
    max_parts: int
    """The most parts that a batch may be staged in."""
    atomic: Atomic
    """With TABLE, `tables` of a batch has the new place of every table that it changes, and `read_state` gives it back:
    after a crash, changes up to there are not staged again."""
    is_local_only: bool
    """It can be written on the driver's machine only: it is a file there, and tasks stage beside it."""

    def check(self) -> None:
        """Raise if the sink can not be used."""

    def is_database(self, identity: SourceIdentity) -> bool:
        """Whether the sink is the very database that a source calls so."""

    def read_state(self) -> SinkState:
        """Empty where the sink, or what it remembers, is not there yet. Creates and changes nothing."""

    def claim(self, run: str) -> None:
        """On the driver, before anything is written: this run writes to the sink from now on, and no earlier one.

        What an earlier run has under way is waited for, or broken off. The sink takes the claim along when it pickles.
        """

    def check_claim(self) -> None:
        """Raise SinkTaken after another run's claim. Changes nothing."""

    def held_as(self, schema: TableSchema) -> str:
        """Under which names the sink holds a table, by its settings of this moment."""

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        """On the driver, once: apply the parts in order. Returns how many rows were touched.

        Raises SinkTaken after another run's claim, SinkChanged where the sink is not as it was before the batch. An
        error that is one table's own says which (`error.table`); nothing of the batch is applied then, either.
        """

    def clean(self) -> None:
        """Remove what dead batches left staged."""

    def forget(self) -> None:
        """Remove all that the sink remembers of the pipeline; the tables stay."""

    def close(self) -> None: ...


@runtime_checkable
class RowSink(Sink, Protocol):
    """Takes what changes amount to, key by key: its tables are what the source's are."""

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> Receipt:
        """In a task: write `changes` where no reader sees them."""


@runtime_checkable
class ChangeSink(Sink, Protocol):
    """Takes every change, in the order of the log."""

    def stage_changes(self, batch: str, part: int, changes: Iterable[Changes]) -> Receipt:
        """In a task: write `changes` where no reader sees them. Those of one table come in order."""


@runtime_checkable
class Numbered(Protocol):
    """May want to know the place of each change among those of its table in its transaction."""

    wants_table_numbers: bool


@runtime_checkable
class Examines(Protocol):
    """Can tell before a run what would go wrong in it."""

    def examine(self, tables: Sequence[TableSchema]) -> list[Concern]:
        """Once `check` is content: what it takes to write these tables, and is missing. Changes nothing."""


@runtime_checkable
class Beats(Protocol):
    """Tells its readers that the stream lives, also while nothing changes."""

    def beat(self) -> None:
        """On the driver, every moment in which the source is captured and the sink follows. Returns at once."""


class TopicEnd(msgspec.Struct, frozen=True):
    """The topic of a table, and where what is committed of it ends, summed over its partitions; None: it is gone."""

    topic: str
    end: int | None


@runtime_checkable
class HasTopics(Protocol):
    """Has a topic a table."""

    def topic_ends(self, schemas: Collection[TableSchema]) -> dict[str, TopicEnd]:
        """By table. Changes nothing."""


@runtime_checkable
class Snapshots(Protocol):
    """Can be loaded with the rows that are there already. Where a sink can not, tables begin with their next change."""

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        """Make room for a copy and remember the plan, in one step; with `clear` false, for more rows in the table.

        A table that readers know already keeps its rows: the copy grows beside it (`is_beside` in the status that is
        returned and remembered) and takes its place in the commit that makes the table LIVE.
        """

    def chunk_form(self, schema: TableSchema) -> str:
        """The form in which `load_chunk` takes a table's rows as they are; empty if it wants Arrow columns only."""

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        """In a task: the chunk's rows and its mark, in one step; nothing if it is marked already. Returns the rows.

        Two attempts at the same chunk at the same time load it once. Raises SinkTaken after another run's claim.
        """

    def finish_snapshot(self, status: TableStatus) -> None:
        """On the driver, once all chunks of a plan are loaded, and before a plan is resumed: whatever is better done
        after the load than during it. May be repeated.
        """


@runtime_checkable
class Delivers(Snapshots, Protocol):
    """Snapshots in two steps: in tasks, `load_chunk` writes a chunk where no reader sees it, and `deliver` sends it."""

    def deliver(self, mark: ChunkMark) -> int:
        """On the driver: a chunk's rows and its mark, in one step; returns the rows.

        Nothing if it is marked already, or if nobody has loaded it: it is not marked then.
        """


@runtime_checkable
class Evolves(Protocol):
    """Changes names and columns of a table in place. Where a sink can not, the table is copied again."""

    def takes_in_place(self, evolved: Evolved) -> bool:
        """Whether a commit can change the table so; after False the table is copied again.

        Changes nothing, but for what a change left whose commit never came.
        """


@runtime_checkable
class Verifies(Protocol):
    """Can be read back."""

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        """The rows of a table at this moment; None if the sink can not tell within `seconds`. Changes nothing."""

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        """The table's rows as the sink holds them."""

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """What `read_table` must give for these source rows."""


@runtime_checkable
class Quarantines(Protocol):
    """Sets rows aside that it can not take."""

    def quarantined(self) -> list[Quarantined]:
        """The rows that were set aside, the oldest first."""

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        """Write rows that were set aside as the source has them now; how many of the entries are done with."""

    def drop_quarantined(self, entries: Sequence[Quarantined]) -> None:
        """Forget rows that were set aside."""


@runtime_checkable
class Fetches(Protocol):
    """Reads rows from the source where a change did not send the whole of one."""

    def tend_ahead(self, tend: Callable[[str, str], str]) -> None:
        """Rows that a commit fetched, or `replay` wrote, are newer than the watermark: their table is ahead of it.

        `tend` is asked for each such table, by name, up to which position that is so, and gets the position that it
        said last, at first an empty one. Once it says an empty one again, the table is not ahead any more.
        """


@runtime_checkable
class Documents(Protocol):
    """Holds documents that are built of rows of several tables: a document is a row of a virtual table."""

    documents: Mapping[str, Document]
    """The descriptions of those that it holds, by name."""
    flat: TablePatterns | None
    """Which tables it holds as they are, a document a row."""

    def flat_name(self, schema: TableSchema) -> str:
        """What the document of such a table is called."""

    def begin_build(self, tables: Collection[str] = ()) -> None:
        """On the driver, before the snapshot is exported under which documents are built.

        The sink, pickled by this thread, takes the build's number along: what a later build has written, an earlier one
        does not replace. Of virtual tables that are named, what a build that never came to its commit, or to the end of
        its copy, still has under way is fenced first.
        """

    def set_aside(self, schema: TableSchema, refused: Sequence[Refused]) -> None:
        """In a task: documents that can not be built. Raises SinkRejected where such a one is to stop the others."""

    def remembered(self, schema: TableSchema) -> Remembered:
        """In a task: what the documents of a virtual table remember, with all that was acknowledged before."""


@runtime_checkable
class DatabaseSink(RowSink, Snapshots, Evolves, Verifies, Quarantines, Fetches, Protocol):
    """A sink with every capability, as a SQL database has them."""
