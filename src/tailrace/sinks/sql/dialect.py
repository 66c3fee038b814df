"""In what the databases differ, as data: names, types, statements, and how rows travel.

`ServerSink` does the work; a `Dialect` says how a database spells it, a `Session` how its driver is spoken to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from tailrace.errors import SinkError
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType


class Target(msgspec.Struct, frozen=True):
    """A table in the sink, unquoted. Where a database has no schemas of its own, `schema` is the database."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class StagedColumn(msgspec.Struct, frozen=True):
    """A column of staged rows: `label` is what the merge calls it, a column's name or something of ours."""

    label: str
    type: ColumnType


class StagedRows(msgspec.Struct, frozen=True):
    """Rows waiting for their commit: in a staging table, or in `inline` when they are few.

    Column number n is called `c<n>`, whatever its label.
    """

    columns: tuple[StagedColumn, ...]
    rows: int
    table: str = ""
    inline: tuple[bytes, ...] = ()


class StagedPartial(msgspec.Struct, frozen=True):
    unchanged: tuple[str, ...]
    rows: StagedRows
    moves: bool


class StagedChanges(msgspec.Struct, frozen=True):
    """The net changes of one run of one table."""

    schema: TableSchema
    truncate: bool
    deletes: StagedRows | None
    upserts: StagedRows | None
    partials: tuple[StagedPartial, ...]
    count: int

    @property
    def all_rows(self) -> list[StagedRows]:
        found = [self.deletes, self.upserts, *(partial.rows for partial in self.partials)]
        return [rows for rows in found if rows is not None]


class StagedPart(msgspec.Struct, frozen=True):
    """One task's receipt: what it staged, in the order to apply."""

    changes: tuple[StagedChanges, ...]
    tables: tuple[str, ...] = ()  # every staging table of the task, also of changes that are held back


class Relation(msgspec.Struct, frozen=True):
    """Staged rows as something to select from: SQL that calls them `s`, its parameters, and each label's value."""

    sql: str
    values: Mapping[str, str]
    parameters: tuple[Any, ...] = ()


class ExistingColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    is_required: bool  # has to be given in every row


class ExistingTable(msgspec.Struct, frozen=True):
    """A table as the sink's catalog describes it."""

    columns: tuple[ExistingColumn, ...]
    unique: frozenset[frozenset[str]]  # sets of columns that a unique index makes a key of
    is_ours: bool  # tailrace made it


class Session(Protocol):
    """One connection. Statements outside of `begin` and `commit` are committed at once."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement (parameters are marked `%s`) and return its rows."""

    def merge(self, statement: str, relation: Relation) -> list[tuple[Any, ...]]:
        """Run a statement that reads `relation`."""

    def relation(self, rows: StagedRows) -> Relation:
        """Staged rows, ready to be merged in the present transaction."""

    def create_staging(self, table: str, columns: Sequence[StagedColumn]) -> None: ...
    def load(self, table: str, names: Sequence[str], payload: Iterable[bytes | pa.Buffer]) -> None:
        """Bulk-load encoded rows into a table (quoted), whose columns `names` are."""

    def existing(self, target: Target) -> ExistingTable | None: ...
    def stream(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a query of any size, in flat memory."""

    def lock(self, name: str) -> None:
        """Inside of a transaction: wait until no other session holds this name; held until the transaction ends."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    @property
    def is_usable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database spells what the sink does."""

    name: str
    connect: Callable[[str], Session]
    explain: Callable[[BaseException], tuple[type[SinkError], str] | None]
    """What a driver's error means, in a sentence without values; None for errors of others."""

    # names
    quote: Callable[[str], str]
    measure: Callable[[str], int]
    longest_name: int
    folds_names: bool
    target: Callable[[str, str, Mapping[str, str], str], Target]
    """Where a source's table goes: of its schema and name, the configured schemas, and the sink's URL."""
    state: Callable[[str], Target]
    """Where our own tables are: of a table's bare name and the URL."""

    # types
    declared: Callable[[ColumnType, bool], str]
    """The type of a column; keys may need another one."""
    fits: Callable[[str, str], bool]
    """Whether every value of a declared type goes unchanged into an existing column's type."""
    state_types: Mapping[str, str]
    encode: Callable[[Sequence[tuple[ColumnType, pa.Array]]], bytes | pa.Buffer]
    pack: Callable[[Sequence[tuple[ColumnType, pa.Array]]], tuple[bytes, ...]]
    """Rows as bytes: for a bulk load, and for travelling in a receipt."""
    loads_directly: Callable[[TableSchema], bool]
    """Whether `encode`'s bytes can go straight into the table, without a cast on the way."""
    selected: Callable[[str, ColumnType], str]
    """SQL for a column (given quoted) as `read_table` reads it."""
    shown: Callable[[list[Any], ColumnType], list[Any]]
    """What was read of a column, as comparable Python values."""
    expected: Callable[[pa.Array, ColumnType], list[Any]]
    """What `shown` must give for these values of the source."""
    key_text: Callable[[str, ColumnType], str]
    """SQL for a key's value as text that the source can read."""

    # statements
    create_schema: Callable[[Session, str], None]
    create_table: Callable[[str, Sequence[str], Sequence[str]], str]
    """Of the table, the column lines and the key, all quoted."""
    is_empty: str
    clear: Callable[[Session, str], None]
    on_conflict: Callable[[Sequence[str], Sequence[tuple[str, str]]], str]
    delete_matching: Callable[[str, str, str], str]
    update_matching: Callable[[str, str, str, Sequence[tuple[str, str]]], str]
    delete_copies: Callable[[str, Relation, Sequence[tuple[str, str, ColumnType]]], str]
    ddl_is_transactional: bool
    list_staging: Callable[[Session, str, str], list[str]]
    """The quoted names of staging tables that begin with a prefix."""
