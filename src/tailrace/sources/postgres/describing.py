"""What the stream's Relation and Type messages describe, as the definitions that go into the log.

A message is the truth about its own moment, and we may be behind. The catalog of now only adds what messages leave out:
the numbers of columns, the order of a key, what a type is. What is gone from it since comes from the last version that
we know; a type that is gone is text, under the name that its Type message gave.

The number of a column comes from what the log knew before, from those rows of the catalog that are older than the
message's transaction, and from the order of the columns. Where that leaves a choice the table is copied again, once: a
transaction that commits after the look at the catalog is sure again, because who alters a table waits for its writers.
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
from tailrace.sources.postgres.connection import connect, current_position, source_errors
from tailrace.sources.postgres.pgoutput import Relation
from tailrace.sources.postgres.positions import parse_lsn
from tailrace.sources.postgres.types import TypeInfo, column_type, is_built_in
from tailrace.sources.postgres.visibility import is_visible

TypeNames = Mapping[int, tuple[str, str]]
"""Schema and name of the types that the stream has named. Of a domain they are those of its base."""

UNLIKE_ANY = -1
"""The number of columns of which nobody knows which they were: it is no column's."""

_NUMBERS = """
SELECT a.attname, a.attnum, a.attisdropped, a.attgenerated <> '',
    CASE WHEN (a.xmin::text::bigint - c.relfrozenxid::text::bigint) & 4294967295 < 2147483648
        THEN a.xmin::text::bigint ELSE 0 END
FROM pg_attribute a, pg_class c
WHERE a.attrelid = %s AND a.attnum > 0 AND c.oid = 'pg_catalog.pg_attribute'::regclass
ORDER BY a.attnum
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
    is_generated: bool  # and so may not be published
    altered: int  # the transaction that did it last; 0 if that is long ago


class Transaction(NamedTuple):
    xid: int
    position: int  # of its commit


class Known(NamedTuple):
    """What a table was at an earlier moment of the stream: its columns' numbers by their names, and its key.

    With `is_sure` false nobody knows which columns its last description meant.
    """

    numbers: Mapping[str, int]
    key: tuple[str, ...]
    is_sure: bool = True


class Doubt(NamedTuple):
    """A Relation message that is not sure. Transactions that commit after `until` are: they know the catalog of then.

    Whoever alters a table waits for those who have written to it, and lets nobody write before he has committed. The
    message is empty if it is not what the table is now: then another one comes before the next change.
    """

    message: bytes
    offset: int
    until: int


class Descriptions:
    """The definitions of one stream. `known` are the versions that an earlier stream has left in the log.

    Transactions before the `horizon` had ended when the stream's first one committed.
    """

    def __init__(self, url: str, known: Mapping[int, TableSchema], horizon: int) -> None:
        self._url, self._horizon = url, horizon
        self._known = {relation: known_of(schema) for relation, schema in known.items()}
        self._doubts: dict[int, Doubt] = {}
        self._type_names: dict[int, tuple[str, str]] = {}
        self._connection: psycopg.Connection[Any] | None = None
        self.definitions: dict[int, Definition] = {}

    def name_type(self, message: bytes, offset: int) -> None:
        oid, schema, name = pgoutput.parse_type(message, offset)
        self._type_names[oid] = (schema, name)

    def resolve(self, message: bytes, offset: int, transaction: Transaction) -> TableSchema:
        """What a Relation message in a transaction describes.

        A server sends a transaction that waits for a synchronous standby before the catalog shows what it did; then
        this raises SourceUnavailable.
        """
        relation = pgoutput.parse_relation(message, offset)
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url)
        with source_errors(self._url, "reading the catalog"):
            schema, is_whole = self._read(self._connection, relation, transaction)
            if not is_whole:
                _require_visible(self._connection, transaction.xid, relation)
                schema, _ = self._read(self._connection, relation, transaction)
            self._doubts.pop(relation.id, None)
            if not known_of(schema).is_sure:
                self._doubt(self._connection, message, offset, relation)
            return schema

    def _read(
        self, connection: psycopg.Connection[Any], relation: Relation, transaction: Transaction
    ) -> tuple[TableSchema, bool]:
        known, doubt = self._known.get(relation.id), self._doubts.get(relation.id)
        if known is not None and doubt is not None and transaction.position <= doubt.until:
            known = known._replace(is_sure=False)
        return described_schema(connection, relation, transaction.xid, self._type_names, known, self._horizon)

    def _doubt(self, connection: psycopg.Connection[Any], message: bytes, offset: int, relation: Relation) -> None:
        """First what the table is, then since when at the latest."""
        known = self._known.get(relation.id)
        numbers = {column.name: column.number for column in _columns(connection, relation.id) if not column.is_dropped}
        self._known[relation.id] = Known(numbers, known.key if known else ())
        is_present = all(name in numbers for _, name, _, _ in relation.columns)
        until = parse_lsn(current_position(connection))
        self._doubts[relation.id] = Doubt(message if is_present else b"", offset, until)

    @property
    def has_doubts(self) -> bool:
        return bool(self._doubts)

    def settle(self, transaction: Transaction) -> list[TableSchema]:
        """Tables whose last description was not sure, as they are in a transaction that begins, and that may be."""
        open_ = [doubt for doubt in self._doubts.values() if doubt.message and doubt.until < transaction.position]
        return [self.resolve(doubt.message, doubt.offset, transaction) for doubt in open_ if transaction.xid]

    def define(self, schema: TableSchema, offset: int, root: int = 0) -> Definition | None:
        """The new definition, or None when the server only repeats what we know."""
        known = self.definitions.get(schema.relation)
        if known is not None and (known.schema, known.root) == (schema, root):
            return None
        if (now := known_of(schema)).is_sure:
            self._known[schema.relation] = now
        self.definitions[schema.relation] = Definition(schema.relation, offset, schema, root)
        return self.definitions[schema.relation]

    def begin_stream(self) -> None:
        """A new stream describes every relation before its first change."""
        self.definitions.clear()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def known_of(schema: TableSchema) -> Known:
    numbers = {column.name: column.number for column in schema.columns if column.number > 0}
    return Known(numbers, schema.key, is_sure=all(column.number != UNLIKE_ANY for column in schema.columns))


def described_schema(
    connection: psycopg.Connection[Any],
    relation: Relation,
    xid: int,
    names: TypeNames,
    known: Known | None,
    horizon: int,
) -> tuple[TableSchema, bool]:
    """The schema that a Relation message describes, and whether the catalog of now bears all of it out."""
    identity = IDENTITIES[relation.identity]
    types, has_types = _types(connection, {oid for _, _, oid, _ in relation.columns}, names)
    present, numbers = _numbers(connection, relation, xid, known, horizon)
    keys = primary_keys(connection, [relation.id])
    present_key = keys.get(relation.id, ()) if present else None
    key, has_key = _described_key(relation, identity, present_key, known.key if known else None)
    columns = tuple(
        Column(name, column_type(oid, modifier, types), number)
        for (_, name, oid, modifier), number in zip(relation.columns, numbers, strict=True)
    )
    is_whole = has_types and has_key and UNLIKE_ANY not in numbers and all(column.name in present for column in columns)
    return TableSchema(relation.schema, relation.name, columns, key, identity, relation.id), is_whole


def _numbers(
    connection: psycopg.Connection[Any], relation: Relation, xid: int, known: Known | None, horizon: int
) -> tuple[set[str], list[int]]:
    """The columns that the catalog of now has, and the numbers of the columns of the message."""
    rows = _columns(connection, relation.id)
    names = [name for _, name, _, _ in relation.columns]
    if not rows:  # the table is gone
        return set(), [known.numbers.get(name, 0) if known else 0 for name in names]
    present = {column.name for column in rows if not column.is_dropped}
    if known is None:
        return present, numbers_at_first(rows, names, xid, horizon)
    if not known.is_sure:
        return present, [UNLIKE_ANY] * len(names)
    return present, numbers_since(known.numbers, rows, names, xid)


def _columns(connection: psycopg.Connection[Any], relation: int) -> list[CatalogColumn]:
    return [CatalogColumn(*row) for row in connection.execute(_NUMBERS, [relation])]


def numbers_since(known: Mapping[str, int], rows: list[CatalogColumn], names: list[str], xid: int) -> list[int]:
    """As `numbers_then`, of a message that is younger than what is `known`.

    Numbers of transactions are in the order of their first writes, and not of their commits. So where a name is another
    column's than it was, nobody knows since when; and where a name is new, and a column that came since has gone from
    under such a name or has another one, nobody knows which of them was meant.
    """
    present = {column.name: column.number for column in rows if not column.is_dropped}
    kept = [known[name] for name in names if name in known and present.get(name) == known[name]]
    if len(kept) == len(names) and kept == sorted(kept):
        return kept
    numbers = numbers_then(rows, names, xid)
    is_remade = any(known.get(name, number) != number for name, number in zip(names, numbers, strict=True))
    last = max(known.values(), default=0)
    has_new = any(name not in known for name in names)
    is_vague = _is_vague([column for column in rows if column.number > last], names, xid)
    return [UNLIKE_ANY] * len(names) if is_remade or (has_new and is_vague) else numbers


def numbers_at_first(rows: list[CatalogColumn], names: list[str], xid: int, horizon: int) -> list[int]:
    """As `numbers_since`, of the first message about a table: what was altered before the `horizon` is known."""
    recent = [column for column in rows if not _is_older(column.altered, horizon)]
    return [UNLIKE_ANY] * len(names) if _is_vague(recent, names, xid) else numbers_then(rows, names, xid)


def _is_vague(came: list[CatalogColumn], names: list[str], xid: int) -> bool:
    """Whether one of the columns that came looks older than the transaction, and was not there under its name."""
    there = (column for column in came if _is_older(column.altered, xid) and not column.is_generated)
    return any(column.is_dropped or column.name not in names for column in there)


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
