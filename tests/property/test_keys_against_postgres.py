"""Keys that move: whatever PostgreSQL lets a statement do to a key, the net changes of any runs end at its rows."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from support.capturing import Captured
from tailrace.columns.net import NetChanges, net_changes
from tailrace.model.changes import Changes

pytestmark = [pytest.mark.server]

Row = tuple[Any, ...]

TABLES = {
    "at_once": "k int PRIMARY KEY, v text",
    "at_once_full": "k int PRIMARY KEY, v text",
    "deferrable_full": "k int PRIMARY KEY DEFERRABLE, v text",
    "deferred_full": "k int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text",
    "composite_deferred_full": "k int, v text, PRIMARY KEY (v, k) DEFERRABLE INITIALLY DEFERRED",
    "chosen_index": "k int NOT NULL UNIQUE, v text, d int UNIQUE DEFERRABLE",
}
STATEMENTS = [
    "UPDATE {0} SET k = k + 1",
    "UPDATE {0} SET k = k - 1 WHERE k > 3",
    "UPDATE {0} SET k = 11 - k",
    "UPDATE {0} SET k = k + 100 WHERE k % 2 = 0",
    "UPDATE {0} SET k = -k",
    "UPDATE {0} SET v = v || '.' WHERE k % 3 = 0",
    "UPDATE {0} SET k = (SELECT max(k) FROM {0}) + 1 WHERE k = (SELECT min(k) FROM {0})",
    "DELETE FROM {0} WHERE k % 5 = 0",
    "INSERT INTO {0} SELECT n, 'new' FROM generate_series(1, 10) n ON CONFLICT DO NOTHING",
    "INSERT INTO {0} SELECT max(k) + 1, 'top' FROM {0}",
]


def write(connection: psycopg.Connection[Any], table: str, chance: random.Random) -> None:
    """One transaction of some statements; one that would repeat a key is not made."""
    try:
        with connection.transaction():
            for statement in chance.choices(STATEMENTS, k=chance.randint(1, 4)):
                connection.execute(statement.format(table).encode())
    except (psycopg.errors.UniqueViolation, psycopg.errors.ObjectNotInPrerequisiteState):
        return  # an INSERT … ON CONFLICT does not go with a deferrable key


class Replica:
    """Applies net changes as their docstring says; by key if there is one, else as a multiset."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def apply(self, net: NetChanges) -> None:
        assert not net.truncate
        assert not net.partials
        places = net.schema.key_indexes
        if places:
            gone = set(as_rows(net.deletes)) | {tuple(row[at] for at in places) for row in as_rows(net.upserts)}
            self.rows = [row for row in self.rows if tuple(row[at] for at in places) not in gone]
        else:
            rest = Counter(self.rows)
            rest.subtract(dict(zip(as_rows(net.deletes), net.delete_counts.tolist(), strict=True)))
            assert min(rest.values(), default=0) >= 0
            self.rows = list(rest.elements())
        self.rows += as_rows(net.upserts)


def as_rows(batch: pa.RecordBatch) -> list[Row]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def cut(pieces: Sequence[Changes], chance: random.Random) -> Iterator[list[Changes]]:
    """Runs of any length: transactions are cut in the middle, as large ones are."""
    for changes in pieces:
        places = sorted({0, len(changes), *(chance.randint(0, len(changes)) for _ in range(8))})
        for begin, end in itertools.pairwise(places):
            yield [changes.slice(begin, end)]


@pytest.mark.parametrize("seed", range(3))
def test_keys_that_move_within_a_statement_or_a_transaction_end_where_the_source_s_do(
    postgres_url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})".encode())
            if table.endswith("full"):
                connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
        connection.execute("ALTER TABLE chosen_index REPLICA IDENTITY USING INDEX chosen_index_k_key")
        captured = Captured(postgres_url, tmp_path)
        with captured.follow():
            for table in TABLES:
                connection.execute(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, 6) n".encode())
                for _ in range(12):
                    write(connection, table, chance)
        present = {schema.name: schema for schema in captured.source.tables()}
        for table in TABLES:
            replica = Replica()
            pieces = list(captured.changes(f"public.{table}"))
            assert {changes.schema for changes in pieces} == {present[table]}
            for run in cut(pieces, chance):
                for net in net_changes(run):
                    replica.apply(net)
            rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
            assert Counter(replica.rows) == Counter(rows), table
        captured.source.drop()
