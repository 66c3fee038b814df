"""In what the databases differ: names, types, statements, and how rows become bytes.

`SqlSink` does the work; its `Dialect` says how the database spells it and never talks to it by itself, its `Session`
is one connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import SinkError
from tailrace.model.names import table_name
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.staged import Relation, StagedColumn, StagedRows


class Field(NamedTuple):
    """A column of rows that are about to become bytes. `where` names it in errors: `public.orders.amount`."""

    where: str
    type: ColumnType
    array: Any


class Target(msgspec.Struct, frozen=True):
    """A table in the sink, unquoted. Where a database has no schemas, `schema` is the database, or nothing at all."""

    schema: str
    name: str

    def __str__(self) -> str:
        return table_name(self.schema, self.name) if self.schema else self.name


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a table becomes again what it was before a change in place: by names, those of columns unquoted."""

    target: Target
    moved_to: Target
    renamed: dict[str, str]  # the old name, and the new one
    added: tuple[str, ...]


class ExistingColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    is_required: bool  # it has to be given in every row


class ExistingTable(msgspec.Struct, frozen=True):
    """A table as the sink's catalog describes it."""

    columns: tuple[ExistingColumn, ...]
    unique: frozenset[frozenset[str]]  # the sets of columns that are unique together, as far as NULL allows
    note: str  # the table's comment: ours says for whom we made it
    risk: str = ""  # what it is, where that keeps it out of transactions or lets a crash empty it
    remedy: str = ""  # the clause of ALTER TABLE that mends that


class Reference(msgspec.Struct, frozen=True):
    """A foreign key of another table that leads to a table."""

    name: str
    table: str
    has_action: bool  # when a row goes, the rows that refer to it are deleted or changed


class Explanation(msgspec.Struct, frozen=True):
    """What a driver's error means: its kind, and a sentence without values."""

    kind: type[SinkError]
    words: str
    hint: str | None = None
    is_duplicate: bool = False  # a key is there already
    is_about_rows: bool = False  # other rows may be taken
    is_gone: bool = False  # there is nobody to say anything


class Session(Protocol):
    """One connection. Outside of `begin` and `commit` every statement is a transaction of its own."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, its parameters marked `%s`, and return its rows. Without parameters `%` is just `%`."""

    def merge(self, statement: str, relation: Relation) -> list[tuple[Any, ...]]:
        """Run a statement that selects from `relation`. Keys that it returns are ready to be read by the source."""

    def relation(self, rows: StagedRows) -> Relation:
        """Staged rows, ready to be selected from in the present transaction."""

    def load(self, table: str, names: Sequence[str], payload: Iterable[bytes | pa.Buffer]) -> None:
        """Bulk-load encoded rows into the columns `names` of a table; all names are quoted."""

    def stream(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query of any size, in flat memory."""

    def lock(self, name: str) -> None:
        """In a transaction: wait until nobody else holds this name, and hold it until the transaction ends."""

    def lock_shared(self, name: str) -> None:
        """In a transaction: hold this name with others who share it, until the transaction ends."""

    def take_over(self, name: str) -> None:
        """As `lock`, but whoever shares or holds the name for long is broken off: his process may never wake."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class StagingFile(Protocol):
    """A file that one task fills and the driver selects from."""

    def load(self, columns: Sequence[StagedColumn], payload: Iterable[bytes | pa.Buffer | pa.RecordBatch]) -> str:
        """Encoded rows as a new table of the file. Returns its name, as the driver's session knows it."""

    def close(self) -> None: ...


class Dialect(ABC):
    """How one database spells what the sink does."""

    name: str
    longest_name: int
    folds_names: bool
    """Names that differ in case only are the same name."""
    ddl_is_transactional: bool
    builds_keys_late: bool = False
    """A table's key is better built after its first load than kept up during it."""
    load_replaces: bool
    """A bulk load into a table replaces the rows whose key is there already, instead of failing."""
    share_lock: str = ""
    """Ends a SELECT of a row that must stay as it is until the transaction ends, where `lock_shared` does not do it."""
    update_lock: str = ""
    """Ends a SELECT of a row that nobody else may select so, or change, until the transaction ends."""
    most_inline_bytes: int = 1 << 20
    """What a receipt may hold and still be merged faster than what is staged."""

    @abstractmethod
    def connect(self, url: str) -> Session: ...

    def connect_in_task(self, url: str) -> Session:
        """For one of several tasks that work at the same time."""
        return self.connect(url)

    def connect_to_read(self, url: str) -> Session:
        """A session that creates and changes nothing, and finds nothing where the database is not there yet."""
        return self.connect(url)

    def is_there(self, url: str) -> bool:
        """False for a database that the first write will make."""
        return True

    def identity(self, session: Session) -> tuple[str, str] | None:
        """The numbers of the server and of the database, where a source of the same kind would name them so."""
        return None

    @abstractmethod
    def server(self, url: str) -> str:
        """Where a URL leads, without its secrets."""

    @abstractmethod
    def check(self, session: Session, url: str, schemas: Iterable[str]) -> None:
        """Raise SinkRejected if the server can not serve as a sink. `schemas` are those that tables will go to."""

    @abstractmethod
    def explain(self, error: BaseException) -> Explanation | None:
        """None if the error is not the driver's."""

    # --- names

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def length(self, name: str) -> int:
        """As the database counts it against `longest_name`."""

    @abstractmethod
    def target(self, schema: TableSchema, schemas: Mapping[str, str], url: str) -> Target:
        """Where a table of the source goes."""

    @abstractmethod
    def own(self, name: str, url: str) -> Target:
        """Where a table of our own is, such as `watermarks`."""

    @abstractmethod
    def is_own(self, target: Target, url: str) -> bool:
        """Whether our own tables are there, or could be."""

    def qualified(self, target: Target) -> str:
        return f"{self.quote(target.schema)}.{self.quote(target.name)}"

    def names(self, names: Iterable[str]) -> str:
        return ", ".join(self.quote(name) for name in names)

    # --- types and values

    @abstractmethod
    def declared(self, schema: TableSchema) -> dict[str, str]:
        """The type of each column in a table that we make."""

    def row_form(self, types: Iterable[ColumnType]) -> str:
        """A form in which rows of such values are loaded as they are, see `model.rows`; empty if there is none."""
        return ""

    @abstractmethod
    def fits(self, declared: str, existing: str) -> bool:
        """Whether all values of a declared type go unchanged into a column of an existing one."""

    def is_exact_key(self, existing: str) -> bool:
        """Whether a column of this type keeps all keys apart that the source keeps apart."""
        return True

    @abstractmethod
    def state_type(self, kind: str) -> str:
        """The type of a column of our own tables: `name`, `text`, `integer`, `flag` or `moment`."""

    def has_misfits(self, type_: ColumnType) -> bool:
        """Whether the source has values of a type that the database can not hold."""
        return False

    def misfits(self, field: Field) -> tuple[npt.NDArray[np.bool_], str] | None:
        """The values that the database can not hold, and what they are; None if there are none."""
        return None

    @abstractmethod
    def encode(self, fields: Sequence[Field]) -> bytes | pa.Buffer | pa.RecordBatch:
        """Rows for a bulk load. Raises SinkRejected for a value that the database can not hold exactly."""

    def encode_large(self, fields: Sequence[Field]) -> Iterable[bytes | pa.Buffer | pa.RecordBatch]:
        """The same for one large row, in pieces: its values should not be copied as a whole."""
        return [self.encode(fields)]

    @abstractmethod
    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        """Rows that travel in a receipt."""

    @abstractmethod
    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        """Whether `encode`'s bytes can go into the table itself: nothing has to be cast on the way."""

    @abstractmethod
    def selected(self, name: str, type_: ColumnType) -> str:
        """SQL that reads a column (given quoted) back."""

    @abstractmethod
    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        """What `selected` gave, as Python values that can be compared and hashed."""

    @abstractmethod
    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        """What `read_values` must give for these values of the source. Made by another way than `encode`."""

    @abstractmethod
    def key_text(self, value: str, type_: ColumnType) -> str:
        """SQL that makes a key's value a text which the source can read."""

    def key_is(self, name: str, type_: ColumnType) -> str:
        """SQL, with one parameter, that is true where a column of a key (quoted) has the value of that `key_text`."""
        return f"{self.key_text(name, type_)} = %s"

    @abstractmethod
    def literal(self, field: Field) -> str | None:
        """SQL of the one value of a field, which is not NULL; None if there is none that is exact."""

    # --- the catalog

    @abstractmethod
    def existing(self, session: Session, target: Target) -> ExistingTable | None: ...

    def references(self, session: Session, target: Target) -> list[Reference]:
        """The foreign keys of other tables that lead to a table, as far as the database heeds them in our sessions."""
        return []

    @abstractmethod
    def has_schema(self, session: Session, name: str) -> bool: ...

    @abstractmethod
    def staging_tables(self, session: Session, url: str, prefix: str) -> list[str]:
        """The staging tables whose names begin with `prefix`, quoted."""

    def count(self, session: Session, table: str, seconds: float) -> int | None:
        """The rows of a table at this moment; None if that takes longer than `seconds`, or is not for the asking."""
        return None

    # --- what is staged

    def staging_file(self, name: str) -> StagingFile | None:
        """A new staging file, where tasks fill files instead of staging tables."""
        return None

    def is_staged(self, session: Session, names: Sequence[str]) -> bool:
        """Whether all of these staging tables (or files) are there, with rows."""
        looks = ", ".join(f"EXISTS (SELECT 1 FROM {name})" for name in names)
        return all(session.execute(f"SELECT {looks}")[0])

    def drop_staged(self, session: Session, name: str, *, is_private: bool = False) -> None:
        session.execute(f"DROP TABLE IF EXISTS {name}")

    # --- statements

    @abstractmethod
    def create_schema(self, name: str) -> str: ...

    @abstractmethod
    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        """Statements that make a table and note for whom. Names are quoted; `key` is empty if the lines have it."""

    def hidden_columns(self, schema: TableSchema) -> dict[str, str]:
        """Columns that a table needs besides the source's own, with their definitions."""
        return {}

    def add_key(self, table: str, key: str) -> str:
        return f"ALTER TABLE {table} ADD PRIMARY KEY ({key})"

    @abstractmethod
    def annotate(self, table: str, note: str) -> list[str]:
        """Statements that note for whom a table is."""

    def can_widen(self, wanted: str, existing: str) -> bool:
        """Whether a column of one type can become one of the other, its values unchanged and all others taken."""
        return False

    def widen(self, table: str, column: str, type_: str) -> str:
        """Change the type of a column. Names are quoted."""
        raise NotImplementedError

    @abstractmethod
    def move(self, target: Target, new_target: Target) -> list[str]:
        """Give a table another name, with all that belongs to it."""

    @abstractmethod
    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        """Put `copy` in the place of `target`, if there is one."""

    def replaced(self, copy: Target) -> Target | None:
        """Where `replace` leaves the table that was replaced, if it does not drop it."""
        return None

    @abstractmethod
    def create_staging(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        """A private one is seen by the session alone, and made in the midst of a transaction."""

    @abstractmethod
    def clear(self, session: Session, table: str) -> None:
        """Empty a table before a new snapshot; nobody counts on what is in it."""

    @abstractmethod
    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        """Insert what `query` gives; where the key is there already, set `others` (name: value). Names are quoted.

        Without a key everything is inserted.
        """

    def exchange(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """The rows of `table` become those of `copy`, which has the same key. Names are quoted."""
        return self.exchange_all(table, copy, names)

    def restate(self, table: str, copy: str, key: Mapping[str, ColumnType]) -> list[str]:
        """After `exchange`: keys (quoted) that are equal and look different are as in `copy`, such as 1.0 and 1.00."""
        return []

    def exchange_by_key(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """The same, where more than the key is unique: rows that stay are changed one by one, which may not succeed."""
        return self.exchange(table, copy, names, key)

    def exchange_all(self, table: str, copy: str, names: Sequence[str]) -> list[str]:
        """The same, whatever is unique in the table: all rows go, and all come."""
        columns = ", ".join(names)
        return [f"DELETE FROM {table}", self.insert(table, columns, f"SELECT {columns} FROM {copy}", [], {})]

    def is_single_key(self, existing: ExistingTable, schema: TableSchema) -> bool:
        """Whether `insert` can be trusted with a table: in some databases any unique index counts as the key."""
        return True

    @abstractmethod
    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        """Delete the rows of `table` whose key (quoted name: value) is that of a row of `relation`.

        With `where`: of those rows of `relation` for which it holds.
        """

    @abstractmethod
    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        """Set columns (quoted) of the rows of `table`, called `t`, that match a row of `relation`."""

    @abstractmethod
    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Of each row of `relation`, as many equal rows of `table` as it counts; NULL is equal to NULL."""


INSERTED_INTO = "_tailrace_target"
"""What an INSERT calls its table: one whose name is `excluded` would be taken for the rows of `on_conflict`."""


def on_conflict(key: Sequence[str], others: Mapping[str, str]) -> str:
    """What PostgreSQL and SQLite do with a row whose key is there already. Names are quoted."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    return f"ON CONFLICT ({', '.join(key)}) DO {action}"


def matching(key: Mapping[str, str], where: str = "") -> str:
    """The condition that a row of the table, called `t`, has this key."""
    return " AND ".join([*(f"t.{name} = {value}" for name, value in key.items()), *([where] if where else [])])
