"""Tables that are changed at random, with a trigger that notes every change, and what topics tell of them.

A transaction locks the rows that it changes, so the notes of a key are in the order of its changes, and those of what
was rolled back are gone with it. What a topic has of a key has to be the end of that list, change by change; where it
begins, a row that the snapshot read stands for what came before.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg

from support import kafka_reading
from support.kafka_reading import Message
from tailrace.testing.postgres import execute

TABLES = ("full_rows", "keyed")
KEYS = 300

CREATE = """
CREATE TABLE {table} (id int PRIMARY KEY, stamp bigint NOT NULL, pad text);
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION note_change();
"""
NOTES = """
CREATE SCHEMA noted;
CREATE SEQUENCE noted.stamps;
CREATE TABLE noted.changes (
    number bigserial PRIMARY KEY, name text, op text, old_id int, old_stamp bigint, new_id int, new_stamp bigint);
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF tg_op = 'INSERT' THEN
        INSERT INTO noted.changes (name, op, new_id, new_stamp) VALUES (tg_table_name, 'c', new.id, new.stamp);
    ELSIF tg_op = 'UPDATE' THEN
        INSERT INTO noted.changes (name, op, old_id, old_stamp, new_id, new_stamp)
        VALUES (tg_table_name, 'u', old.id, old.stamp, new.id, new.stamp);
    ELSE
        INSERT INTO noted.changes (name, op, old_id, old_stamp) VALUES (tg_table_name, 'd', old.id, old.stamp);
    END IF;
    RETURN NULL;
END $$;
"""


class Step(NamedTuple):
    """What a change is to one key: the stamp that its row has afterwards, or None where it is gone."""

    op: str
    stamp: int | None


def create(url: str, rows: int) -> None:
    execute(url, NOTES, *(CREATE.format(table=table) for table in TABLES))
    execute(url, "ALTER TABLE full_rows REPLICA IDENTITY FULL")
    for table in TABLES:
        execute(
            url,
            f"INSERT INTO {table} SELECT n, nextval('noted.stamps'), repeat('x', 200)"
            f" FROM generate_series(1, {rows}) n",
        )


class Workload(threading.Thread):
    """Random transactions, some of them rolled back, until it is told to stop."""

    def __init__(self, url: str, seed: int, pause: float = 0.05) -> None:
        super().__init__(daemon=True)
        self._url, self._random, self._pause = url, random.Random(seed), pause
        self._stopping = threading.Event()
        self.count = 0

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stopping.wait(self._pause):
                with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    self._transact(connection)

    def _transact(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(self._random.choice([1, 1, 2, 5])):
                connection.execute(self._statement().encode())
            if self._random.random() < 0.1:
                raise psycopg.Rollback
        self.count += 1

    def _statement(self) -> str:
        table, key, other = self._random.choice(TABLES), self._key(), self._key()
        stamp = "nextval('noted.stamps')"
        return self._random.choice(
            [
                f"INSERT INTO {table} VALUES ({key}, {stamp}, 'new') ON CONFLICT (id) DO UPDATE SET stamp = {stamp}",
                f"UPDATE {table} SET stamp = {stamp} WHERE id = {key}",
                f"UPDATE {table} SET stamp = {stamp} WHERE id BETWEEN {key} AND {key + 10}",
                f"UPDATE {table} SET id = {other}, stamp = {stamp} WHERE id = {key}",
                f"DELETE FROM {table} WHERE id = {key}",
            ]
        )

    def _key(self) -> int:
        return self._random.randrange(1, KEYS)

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)


def noted(url: str, table: str) -> dict[int, list[Step]]:
    """The changes of each key of a table, in order."""
    query = "SELECT op, old_id, new_id, new_stamp FROM noted.changes WHERE name = %s ORDER BY number"
    found: dict[int, list[Step]] = defaultdict(list)
    with psycopg.connect(url) as connection:
        for op, old, new, stamp in connection.execute(query, [table]):
            if op == "u" and old != new:
                found[old].append(Step("d", None))
                found[new].append(Step("c", stamp))
            else:
                found[new if new is not None else old].append(Step(op, stamp))
    return found


class Told(NamedTuple):
    """What a topic has: rows that a snapshot read, and changes, of each key in order; and what a replay ends with."""

    reads: dict[int, list[int]]
    steps: dict[int, list[Step]]
    rows: dict[int, int]


def told(servers: str, topic: str) -> Told:
    messages = kafka_reading.read(servers, [topic])
    _assert_a_tombstone_a_delete(messages)
    reads: dict[int, list[int]] = defaultdict(list)
    steps: dict[int, list[Step]] = defaultdict(list)
    rows: dict[int, int] = {}
    for message in messages:
        if message.key is None:
            assert message.value["op"] == "t"
            _begin_anew(messages, message.partition, reads, rows)
            continue
        key = message.key["id"]
        if message.value is None:
            rows.pop(key, None)
            continue
        op, after = message.value["op"], message.value["after"]
        stamp = None if after is None else int(after["stamp"])
        if op == "r":
            assert stamp is not None
            reads[key].append(stamp)
        else:
            steps[key].append(Step(op, stamp))
        if stamp is None:
            rows.pop(key, None)
        else:
            rows[key] = stamp
    _assert_one_partition_a_key(messages)
    return Told(reads, steps, rows)


def _begin_anew(messages: Sequence[Message], partition: int, *told: dict[int, Any]) -> None:
    """A table is copied again: what was told of the keys of a partition does not hold any more."""
    for key in {each.key["id"] for each in messages if each.key is not None and each.partition == partition}:
        for each in told:
            each.pop(key, None)


def _assert_one_partition_a_key(messages: Sequence[Message]) -> None:
    places = {(message.key["id"], message.partition) for message in messages if message.key is not None}
    assert len(places) == len({key for key, _ in places}), "a key is in two partitions"


def _assert_a_tombstone_a_delete(messages: Sequence[Message]) -> None:
    """After each delete of a key comes its tombstone, and there are no others."""
    deleted: set[int] = set()
    for message in messages:
        if message.key is None:
            continue
        key = message.key["id"]
        assert (message.value is None) == (key in deleted), f"key {key} at {message.partition}:{message.offset}"
        deleted.discard(key)
        if message.value is not None and message.value["op"] == "d":
            deleted.add(key)
    assert not deleted, f"{len(deleted)} deletes have no tombstone"


def assert_exactly_once(url: str, servers: str, prefix: str, *, is_resumed: bool) -> None:
    """Every table's topic has each change once; `is_resumed` where a copy was broken off and went on."""
    found = [
        problem
        for table in TABLES
        for problem in differences(url, servers, f"{prefix}.public.{table}", table, is_resumed=is_resumed)
    ]
    assert not found, f"{len(found)} problems, the first: {found[:5]}"


def differences(url: str, servers: str, topic: str, table: str, *, is_resumed: bool) -> list[str]:
    """Every key whose messages are not exactly what happened to it. Empty if all is well."""
    expected, found = noted(url, table), told(servers, topic)
    problems: list[str] = []
    for key in sorted(expected.keys() | found.steps.keys() | found.reads.keys()):
        changes, steps = expected.get(key, []), found.steps.get(key, [])
        seen = len(changes) - len(steps)
        if seen < 0 or changes[seen:] != steps:
            problems.append(f"{table} {key}: {len(steps)} messages are not the end of {len(changes)} changes")
            continue
        states = [None, *(step.stamp for step in changes)]  # after none, after the first, ...
        possible = states[seen:] if is_resumed else states[seen : seen + 1]
        reads = found.reads.get(key, [])
        if (not reads and None not in possible) or any(stamp not in possible for stamp in reads):
            problems.append(f"{table} {key}: its snapshot read {reads}, and {seen} changes came before")
        if not is_resumed and len(reads) > 1:
            problems.append(f"{table} {key}: its snapshot read it {len(reads)} times")
    with psycopg.connect(url) as connection:
        rows = dict(connection.execute(f"SELECT id, stamp FROM {table}".encode()).fetchall())
    if rows != found.rows:
        wrong = {key for key in rows.keys() | found.rows.keys() if rows.get(key) != found.rows.get(key)}
        problems.append(f"{table}: a replay differs from the source in {len(wrong)} of {len(rows)} rows: {wrong}")
    return problems
