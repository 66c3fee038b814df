"""A backlog of changes waiting in a logical slot: the work that every streaming contender is given."""

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import LiteralString

import psycopg

from tailrace.testing.postgres import PostgresServer

SETTINGS = {
    "wal_sender_timeout": "0",
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",  # no checkpoint in the middle of a measurement
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}
TABLE: LiteralString = "measured"
PUBLICATION: LiteralString = "measured_publication"
COLUMNS: LiteralString = """
    id bigint PRIMARY KEY, n integer, label text, amount numeric(12,2), at timestamptz, flag boolean
"""
NEW_ROW: LiteralString = """
    i, mod(i, 1000), 'payload text number ' || i, mod(i, 1000000) / 100.0,
    timestamptz '2026-01-01' + i * interval '1 second', mod(i, 2) = 0
"""
CHANGES: LiteralString = f"""
CREATE PROCEDURE make_changes(inserts bigint, updates bigint, deletes bigint, per_transaction bigint)
LANGUAGE plpgsql AS $$
BEGIN
    FOR lowest IN 1..inserts BY per_transaction LOOP
        INSERT INTO {TABLE} SELECT {NEW_ROW}
        FROM generate_series(lowest, least(lowest + per_transaction - 1, inserts)) i;
        COMMIT;
    END LOOP;
    FOR lowest IN 1..updates BY per_transaction LOOP
        UPDATE {TABLE} SET n = n + 1, amount = amount + 0.01, label = label || ', updated'
        WHERE id BETWEEN lowest AND least(lowest + per_transaction - 1, updates);
        COMMIT;
    END LOOP;
    FOR lowest IN inserts - deletes + 1..inserts BY per_transaction LOOP
        DELETE FROM {TABLE} WHERE id BETWEEN lowest AND least(lowest + per_transaction - 1, inserts);
        COMMIT;
    END LOOP;
END $$
"""


FINGERPRINT: LiteralString = "SELECT count(*), sum(id), sum(n) FROM measured"
_numbers = count(1)


class Backlog:
    """The changes between the start of slot `backlog` and `end_lsn`. Every `fresh_slot` begins at that same start."""

    def __init__(self, server: PostgresServer, inserts: int, updates: int, deletes: int) -> None:
        self.server = server
        self.table, self.publication = TABLE, PUBLICATION
        self.inserts, self.updates, self.deletes = inserts, updates, deletes
        self.changes = inserts + updates + deletes
        with psycopg.connect(server.url) as connection:
            self.end_lsn: str = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()[0][0]
            self.fingerprint = tuple(map(int, connection.execute(FINGERPRINT).fetchall()[0]))

    @contextlib.contextmanager
    def fresh_slot(self) -> Iterator[str]:
        """The name of a slot that has the whole backlog before it; dropped afterwards, whoever still reads it."""
        name = f"contender_{next(_numbers)}"
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_copy_logical_replication_slot('backlog', %s)", [name])
            try:
                yield name
            finally:
                _drop_slot(connection, name)


def make_backlog(
    server: PostgresServer,
    scale: float = 1.0,
    per_transaction: int = 1_000,
    prepare: Callable[[str], None] | None = None,
) -> Backlog:
    """500,000 inserts, 250,000 updates and 100,000 deletes, times `scale`, in transactions of `per_transaction` rows.

    `prepare` is given the server's URL when table, publication and slot are there and no change has been made.
    """
    inserts, updates, deletes = (round(rows * scale) for rows in (500_000, 250_000, 100_000))
    with psycopg.connect(server.url, autocommit=True) as connection:
        make_published_table(connection)
        if prepare is not None:
            prepare(server.url)
        connection.execute(CHANGES)
        connection.execute("SET synchronous_commit = off")
        connection.execute("CALL make_changes(%s, %s, %s, %s)", [inserts, updates, deletes, per_transaction])
        connection.execute("CHECKPOINT")
    return Backlog(server, inserts, updates, deletes)


def make_published_table(connection: psycopg.Connection) -> None:
    """The empty table, its publication, and a slot named `backlog` that sees all that is done to it from now on."""
    connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}")
    connection.execute("SELECT pg_create_logical_replication_slot('backlog', 'pgoutput')")


def _drop_slot(connection: psycopg.Connection, name: str) -> None:
    found: LiteralString = "FROM pg_replication_slots WHERE slot_name = %s"
    connection.execute(f"SELECT pg_terminate_backend(active_pid, 10000) {found} AND active", [name])
    connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {found}", [name])
