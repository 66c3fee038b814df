"""The tables that a stream tells of: the maps that are in force, and the schema that each of them means.

A map says all that rows are made of. The catalog knows more (what a type is called), and may have moved on since: its
schema is taken where names and kinds agree with the map, else the schema is made of the map itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pymysql
from pymysql.connections import Connection

from tailrace.errors import DecodeError, SourceRefused
from tailrace.model.frames import Definition
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType
from tailrace.sources.mysql import decode_maps as maps
from tailrace.sources.mysql.catalog import table_numbers, table_schemas
from tailrace.sources.mysql.connection import connect, read_server, rows, source_errors
from tailrace.sources.mysql.decode_maps import MapColumn, TableMap, code_of
from tailrace.sources.mysql.events import BODY, HEADER, Events, Integers
from tailrace.sources.mysql.identity import relation_of
from tailrace.sources.mysql.types import ZeroDates, base_of, collation_of, column_type
from tailrace.sources.mysql.values import binlog_texts
from tailrace.sources.mysql.values.binlog_texts import decoded

_DUMMY = 0xFFFFFF
"""The number of no table: an event with it only ends a statement."""
_NAMES = {
    maps.TINY: "tinyint",
    maps.SHORT: "smallint",
    maps.INT24: "mediumint",
    maps.LONG: "int",
    maps.LONGLONG: "bigint",
    maps.FLOAT: "float",
    maps.DOUBLE: "double",
    maps.YEAR: "year",
    maps.DATE: "date",
    maps.NEWDATE: "date",
    maps.TIMESTAMP2: "timestamp",
    maps.DATETIME2: "datetime",
    maps.TIME2: "time",
    maps.BIT: "bit",
    maps.JSON: "json",
    maps.GEOMETRY: "geometry",
    maps.NEWDECIMAL: "decimal",
    maps.ENUM: "enum",
    maps.SET: "set",
    maps.VECTOR: "vector",
}
_BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_BINARY = 63
"""The collation of bytes."""
_FOREIGN = {"uuid", "inet4", "inet6"}
"""Types of MariaDB that maps call BINARY."""


class Wanted(Protocol):
    def matches(self, schema: str, name: str) -> bool: ...


class Maps:
    """The maps in force, by the server's number of a table. `messages` holds the body of each, by its code."""

    def __init__(self, *, is_mariadb: bool) -> None:
        self._is_mariadb = is_mariadb
        self._in_force: dict[int, int] = {}
        self._codes: dict[bytes, int] = {}
        self.messages: dict[int, bytes] = {}
        self.tables: dict[int, TableMap] = {}

    def codes_of(self, events: Events, mapped: Integers, changed: Integers) -> Integers:
        """The code of the map that holds for each of the row events `changed`; -1 for one of no table."""
        ids, wanted = events.number(mapped, HEADER, 6), events.number(changed, HEADER, 6)
        found = np.full(len(changed), -1, np.int64)
        noted = self._noted(events, mapped, ids)
        for number in np.unique(wanted).tolist():
            chosen = np.flatnonzero(wanted == number)
            places, codes = mapped[ids == number], noted[ids == number]
            before = self._in_force.get(number, -1)
            if number == _DUMMY and not len(places) and before < 0:
                continue
            found[chosen] = np.concatenate([[before], codes])[np.searchsorted(places, changed[chosen])]
            if (found[chosen] < 0).any():
                raise DecodeError("rows of a table came without its Table_map event")
        for number in np.unique(ids).tolist():
            self._in_force[number] = int(noted[ids == number][-1])
        return found

    def _noted(self, events: Events, mapped: Integers, ids: Integers) -> Integers:
        """The code of each map. Those of one table are nearly always the same bytes."""
        codes = np.zeros(len(mapped), np.int64)
        for number in np.unique(ids).tolist():
            chosen = np.flatnonzero(ids == number)
            starts = events.starts[mapped[chosen]] + BODY
            sizes = events.ends[mapped[chosen]] - events.trailers[mapped[chosen]] - starts
            size = int(sizes[0])
            if (sizes == size).all():
                window = np.ndarray((len(events.buffer) - size + 1, size), np.uint8, events.buffer, 0, (1, 1))
                if (window[starts] == window[starts[0]]).all():
                    codes[chosen] = self._note(events.body(int(mapped[chosen[0]])))
                    continue
            codes[chosen] = [self._note(events.body(row)) for row in mapped[chosen].tolist()]
        return codes

    def _note(self, body: bytes) -> int:
        key = body[8:]
        if key not in self._codes:
            code = code_of(body)
            if code in self.messages:
                raise DecodeError("two tables have maps with the same checksum: change a column's name")
            self._codes[key], self.messages[code] = code, body
            self.tables[code] = maps.parse(body, is_mariadb=self._is_mariadb)
        return self._codes[key]


class Descriptions:
    """The definitions of one stream. `known` are the versions that an earlier stream has left in the log."""

    def __init__(
        self, url: str, known: Mapping[int, TableSchema], zero_dates: str = ZeroDates.STOP, *, is_mariadb: bool = False
    ) -> None:
        self._url, self._zero_dates, self._is_mariadb = url, zero_dates, is_mariadb
        self._connection: Connection[Any] | None = None
        self._collations: dict[int, str] = {}
        self._schemas: dict[int, TableSchema] = {}  # by the code of their map
        self._latest = dict(known)
        self.definitions: dict[int, Definition] = {}

    def schema_of(self, table: TableMap) -> TableSchema:
        if table.code not in self._schemas:
            if not table.has_names:
                raise SourceRefused(
                    f"the binary log tells no names of the columns of {table.schema}.{table.name}",
                    hint="run: SET GLOBAL binlog_row_metadata = 'FULL'",
                )
            self._schemas[table.code] = self._resolve(table)
        return self._schemas[table.code]

    def _resolve(self, table: TableMap) -> TableSchema:
        name = (table.schema, table.name)
        with source_errors(self._url, "reading the catalog"):
            found = table_schemas(self._connected(), [name], self._zero_dates, is_mariadb=self._is_mariadb).get(name)
            own = self._made(table)
        relation = relation_of(*name)
        for schema in (found, self._latest.get(relation)):
            if schema is not None and agrees(schema, own):
                return schema
        return own

    def latest(self, schema: str, name: str) -> TableSchema | None:
        """The table as it was described last, or as the catalog has it."""
        relation = relation_of(schema, name)
        if relation not in self._latest:
            with source_errors(self._url, "reading the catalog"):
                found = table_schemas(
                    self._connected(), [(schema, name)], self._zero_dates, is_mariadb=self._is_mariadb
                )
            if (schema, name) not in found:
                return None
            self._latest[relation] = found[schema, name]
        return self._latest[relation]

    def define(self, schema: TableSchema, offset: int) -> Definition:
        """The definition that holds at an offset: a new one if it is another than before."""
        known = self.definitions.get(schema.relation)
        if known is None or known.schema != schema:
            known = self.definitions[schema.relation] = Definition(schema.relation, offset, schema)
            self._latest[schema.relation] = schema
        return known

    def forget(self, names: Iterable[tuple[str, str]]) -> None:
        """These tables were altered: what their maps mean is asked for again."""
        gone = {relation_of(*name) for name in names}
        self._schemas = {code: schema for code, schema in self._schemas.items() if schema.relation not in gone}

    def sees_numbers(self) -> bool:
        """Whether the catalog tells us that a table, or a partition of it, is another one."""
        with source_errors(self._url, "reading the catalog"):
            connection = self._connected()
            return bool(table_numbers(connection, read_server(connection)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> Connection[Any]:
        if self._connection is not None:
            try:
                self._connection.ping(reconnect=False)
            except pymysql.MySQLError:  # it was idle for too long
                self._connection = None
        if self._connection is None:
            self._connection = connect(self._url)
        return self._connection

    def _made(self, table: TableMap) -> TableSchema:
        """The schema that a map tells by itself."""
        if any(column.collation not in {*self._collations, 0} for column in table.columns):
            listed = rows(self._connected(), "SELECT id, collation_name FROM information_schema.collations")
            self._collations = {int(number): str(name) for number, name in listed if number is not None}
        columns = tuple(
            Column(
                column.name,
                column_type(
                    type_text(column, self._collations.get(column.collation, "")),
                    self._collations.get(column.collation),
                    is_mariadb=self._is_mariadb,
                    zero_dates=self._zero_dates,
                ),
            )
            for column in table.columns
        )
        return TableSchema(
            table.schema, table.name, columns, table.key, Identity.FULL, relation_of(table.schema, table.name)
        )


def agrees(schema: TableSchema, told: TableSchema) -> bool:
    """Whether a schema has the columns that a map tells, by name, kind and order."""
    if len(schema.columns) != len(told.columns) or (told.key and schema.key != told.key):
        return False
    return all(
        one.name == other.name
        and (
            one.type == other.type
            or base_of(one.type.name) in _FOREIGN
            or (one.type.kind is other.type.kind and _is_loose(other) and _is_read_alike(one.type, other.type))
        )
        for one, other in zip(schema.columns, told.columns, strict=True)
    )


def _is_read_alike(one: ColumnType, told: ColumnType) -> bool:
    """Whether bytes mean the same: the digits of a decimal, the character set of a text, where it is told."""
    sets = [binlog_texts.charset_of(collation_of(each)) for each in (one, told)]
    return (one.precision, one.scale) == (told.precision, told.scale) and (sets[0] == sets[1] or not collation_of(told))


def _is_loose(column: Column) -> bool:
    """Types of which a map does not tell all: lengths in characters, kinds of geometries, and dimensions."""
    loose = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "geometry", "vector")
    return base_of(column.type.name) in (*loose, "binary", "varbinary", "double", "float", "decimal", "bit", "blob")


def type_text(column: MapColumn, collation: str = "") -> str:
    """What information_schema would call the type, as far as a map tells."""
    is_bytes = column.collation == _BINARY
    match column.type:
        case maps.VARCHAR:
            return f"{'varbinary' if is_bytes else 'varchar'}({column.length})"
        case maps.STRING:
            return f"{'binary' if is_bytes else 'char'}({column.length})"
        case maps.BLOB:
            return _BLOBS[column.prefix] + ("blob" if is_bytes else "text")
        case maps.NEWDECIMAL:
            text = f"decimal({column.length},{column.scale})"
        case maps.TIMESTAMP2 | maps.DATETIME2 | maps.TIME2:
            return _NAMES[column.type] + (f"({column.length})" if column.length else "")
        case maps.BIT:
            return f"bit({column.length})"
        case maps.ENUM | maps.SET:
            texts = decoded(pa.array(column.labels, pa.binary()), collation, column.name).to_pylist()
            labels = ",".join("'" + text.replace("'", "''") + "'" for text in texts)
            return f"{_NAMES[column.type]}({labels})"
        case _:
            if column.type not in _NAMES:
                raise DecodeError(f"the binlog type {column.type} of column {column.name} is not known")
            text = _NAMES[column.type]
    return f"{text} unsigned" if column.is_unsigned and column.type != maps.YEAR else text
