"""What the stream's Relation and Type messages describe, as the definitions that go into the log.

A message is the truth about its own moment, and we may be behind. The catalog of now only adds what messages leave out:
the numbers of columns, the order of a key, what a type is. What is gone from it since comes from the last version that
we know; a type that is gone is text, under the name that its Type message gave.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import psycopg

from tailrace.errors import SourceUnavailable
from tailrace.model.frames import Definition
from tailrace.model.names import table_name
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.catalog import IDENTITIES, fetch_types, primary_keys, usable_key
from tailrace.sources.postgres.connection import connect, source_errors
from tailrace.sources.postgres.pgoutput import Relation
from tailrace.sources.postgres.types import TypeInfo, column_type, is_built_in
from tailrace.sources.postgres.visibility import is_visible

TypeNames = Mapping[int, tuple[str, str]]
"""Schema and name of the types that the stream has named. Of a domain they are those of its base."""

UNLIKE_ANY = -1
"""The number of columns of which nobody knows which they were: it is no column's."""

_NUMBERS = """
SELECT attname, attnum, attisdropped, xmin::text::bigint FROM pg_attribute WHERE attrelid = %s AND attnum > 0
ORDER BY attnum
"""
_FIRST_XID = 3  # smaller ones are older than all

_NAMED = """
SELECT quote_ident(%(schema)s) || '.' || quote_ident(%(name)s),
    (SELECT oid::bigint FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace
        AND %(schema)s = 'pg_catalog' AND typname = %(name)s)
"""


class CatalogColumn(NamedTuple):
    name: str
    number: int
    is_dropped: bool
    altered: int  # the transaction that did it last


class Descriptions:
    """The definitions of one stream. `known` are the versions that an earlier stream has left in the log."""

    def __init__(self, url: str, known: Mapping[int, TableSchema]) -> None:
        self._url = url
        self._known = dict(known)
        self._type_names: dict[int, tuple[str, str]] = {}
        self._connection: psycopg.Connection[Any] | None = None
        self.definitions: dict[int, Definition] = {}

    def name_type(self, message: bytes, offset: int) -> None:
        oid, schema, name = pgoutput.parse_type(message, offset)
        self._type_names[oid] = (schema, name)

    def resolve(self, message: bytes, offset: int, xid: int) -> TableSchema:
        """What a Relation message in the transaction `xid` describes.

        A server sends a transaction that waits for a synchronous standby before the catalog shows what it did; then
        this raises SourceUnavailable.
        """
        relation = pgoutput.parse_relation(message, offset)
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url)
        with source_errors(self._url, "reading the catalog"):
            schema, is_whole = self._read(self._connection, relation, xid)
            if is_whole:
                return schema
            _require_visible(self._connection, xid, relation)
            return self._read(self._connection, relation, xid)[0]

    def _read(self, connection: psycopg.Connection[Any], relation: Relation, xid: int) -> tuple[TableSchema, bool]:
        return described_schema(connection, relation, xid, self._type_names, self._known.get(relation.id))

    def define(self, schema: TableSchema, offset: int) -> Definition | None:
        """The new definition, or None when the server only repeats what we know."""
        known = self.definitions.get(schema.relation)
        if known is not None and known.schema == schema:
            return None
        self._known[schema.relation] = schema
        self.definitions[schema.relation] = Definition(schema.relation, offset, schema)
        return self.definitions[schema.relation]

    def begin_stream(self) -> None:
        """A new stream describes every relation before its first change."""
        self.definitions.clear()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def described_schema(
    connection: psycopg.Connection[Any], relation: Relation, xid: int, names: TypeNames, known: TableSchema | None
) -> tuple[TableSchema, bool]:
    """The schema that a Relation message describes, and whether the catalog of now bears all of it out."""
    identity = IDENTITIES[relation.identity]
    types, has_types = _types(connection, {oid for _, _, oid, _ in relation.columns}, names)
    present, numbers = _numbers(connection, relation, xid, known)
    keys = primary_keys(connection, [relation.id])
    present_key = keys.get(relation.id, ()) if present else None
    key, has_key = _described_key(relation, identity, present_key, known.key if known else None)
    columns = tuple(
        Column(name, column_type(oid, modifier, types), name not in key, number)
        for (_, name, oid, modifier), number in zip(relation.columns, numbers, strict=True)
    )
    is_whole = has_types and has_key and UNLIKE_ANY not in numbers and all(column.name in present for column in columns)
    return TableSchema(relation.schema, relation.name, columns, key, identity, relation.id), is_whole


def _numbers(
    connection: psycopg.Connection[Any], relation: Relation, xid: int, known: TableSchema | None
) -> tuple[set[str], list[int]]:
    """The columns that the catalog of now has, and the numbers of the columns of the message."""
    rows = [CatalogColumn(*row) for row in connection.execute(_NUMBERS, [relation.id])]
    names = [name for _, name, _, _ in relation.columns]
    if not rows:  # the table is gone
        before = {column.name: column.number for column in known.columns} if known else {}
        return set(), [before.get(name, 0) for name in names]
    numbers = numbers_then(rows, names, xid)
    if known is not None and is_remade(known, names, numbers):
        numbers = [UNLIKE_ANY] * len(names)
    return {column.name for column in rows if not column.is_dropped}, numbers


def is_remade(known: TableSchema, names: list[str], numbers: list[int]) -> bool:
    """Whether a name is another column's than it was.

    Nobody knows since when: numbers of transactions are in the order of their first writes, and not of their commits.
    """
    before = {column.name: column.number for column in known.columns}
    return any(before.get(name, 0) not in (0, number) for name, number in zip(names, numbers, strict=True))


def numbers_then(rows: list[CatalogColumn], names: list[str], xid: int) -> list[int]:
    """The numbers that columns had when the transaction `xid` wrote, by the catalog of now.

    A row of the catalog that is older than the transaction was there then, with this name. The others may have had any
    name; but a message lists columns by their numbers, so that where as many could be meant as are named, each is the
    one in its place. Where they are more, nobody knows.
    """
    sure = {c.name: c.number for c in rows if not c.is_dropped and _is_older(c.altered, xid)}
    gone = {c.number for c in rows if c.is_dropped and _is_older(c.altered, xid)}
    open_ = [c.number for c in rows if c.number not in {*gone, *(sure[name] for name in names if name in sure)}]
    numbers: list[int] = []
    for is_sure, together in itertools.groupby(names, lambda name: name in sure):
        run = list(together)
        if is_sure:
            numbers += [sure[name] for name in run]
            continue
        following = next((sure[name] for name in names[len(numbers) + len(run) :] if name in sure), math.inf)
        place = [number for number in open_ if max([0, *numbers]) < number < following]
        if len(place) != len(run):
            return [UNLIKE_ANY] * len(names)
        numbers += place
    return numbers if numbers == sorted(numbers) else [UNLIKE_ANY] * len(names)


def _is_older(altered: int, xid: int) -> bool:
    """Whether one transaction began before another: numbers are given out in a circle."""
    return altered < _FIRST_XID or (xid - altered) % (1 << 32) in range(1, 1 << 31)


def _types(
    connection: psycopg.Connection[Any], oids: Collection[int], names: TypeNames
) -> tuple[dict[int, TypeInfo], bool]:
    """What is known of these types, and whether the catalog still has them all."""
    types = fetch_types(connection, oids)
    gone = [oid for oid in oids if not is_built_in(oid) and oid not in types and oid in names]
    for oid in gone:
        schema, name = names[oid]
        row = connection.execute(_NAMED, {"schema": schema, "name": name}).fetchone()
        assert row is not None
        quoted, base = row
        types[oid] = TypeInfo(oid, quoted, "b") if base is None else TypeInfo(oid, quoted, "d", base)
        types |= fetch_types(connection, [] if base is None else [base])
    return types, not gone


def _described_key(
    relation: Relation, identity: Identity, present: tuple[str, ...] | None, known: tuple[str, ...] | None
) -> tuple[tuple[str, ...], bool]:
    """The columns that identify a row, and whether the `present` key of the catalog says so.

    A message flags the columns of the identity that it lists, in the order of the table; with FULL it flags them all. A
    key that explains the flags says whether they are all of it, and in which order.
    """
    names = [name for _, name, _, _ in relation.columns]
    if identity is Identity.NOTHING:
        return (), True
    if identity is Identity.FULL:
        return usable_key(names, present if present is not None else known or ()), False
    flagged = [name for is_key, name, _, _ in relation.columns if is_key]
    for key in (present or (), known or ()):
        if set(flagged) == set(key).intersection(names):
            return usable_key(names, key), key == (present or ())
    return tuple(flagged), False


def _require_visible(connection: psycopg.Connection[Any], xid: int, relation: Relation) -> None:
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    if not is_visible(np.array([xid], np.int64), row[0]).all():
        table = table_name(relation.schema, relation.name)
        raise SourceUnavailable(f"the catalog does not show yet what the transaction {xid} made of {table}")
