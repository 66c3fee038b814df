"""pg2any's table, a ledger of all that happens to it, and what a topic told of it: compared by the database itself.

Triggers note each change, a statement at a time, so that millions of rows cost little. The messages of a topic are
copied beside the notes. A message belongs to the scenario that had begun where its transaction ended (`source.lsn`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import psycopg

from support import kafka_reading
from tailrace.testing.postgres import execute

PARTITIONS = 50
TOMBSTONE = "-"

TABLE = f"""
CREATE TABLE t1 (id serial PRIMARY KEY, val int, col1 uuid, col2 uuid) PARTITION BY HASH (id);
DO $$ BEGIN FOR i IN 0..{PARTITIONS - 1} LOOP
    EXECUTE format('CREATE TABLE t1_%s PARTITION OF t1 FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER %s)', i, i);
END LOOP; END $$;
"""
LEDGER = """
CREATE SCHEMA ledger;
CREATE TABLE ledger.begun (lsn pg_lsn, scenario int);
CREATE TABLE ledger.noted (
    number bigserial, scenario int, op text, id int, val int, col1 uuid, col2 uuid);
CREATE UNLOGGED TABLE ledger.told (
    partition int, place bigint, scenario int, op text, id int, val int, col1 uuid, col2 uuid);
CREATE FUNCTION ledger.note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE scenario int := (SELECT b.scenario FROM ledger.begun b ORDER BY b.lsn DESC LIMIT 1);
BEGIN
    IF tg_op = 'DELETE' THEN
        INSERT INTO ledger.noted (scenario, op, id) SELECT scenario, 'd', c.id FROM changed c;
    ELSE
        INSERT INTO ledger.noted (scenario, op, id, val, col1, col2)
        SELECT scenario, CASE tg_op WHEN 'INSERT' THEN 'c' ELSE 'u' END, c.* FROM changed c;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER inserted AFTER INSERT ON t1 REFERENCING NEW TABLE AS changed EXECUTE FUNCTION ledger.note();
CREATE TRIGGER updated AFTER UPDATE ON t1 REFERENCING NEW TABLE AS changed EXECUTE FUNCTION ledger.note();
CREATE TRIGGER deleted AFTER DELETE ON t1 REFERENCING OLD TABLE AS changed EXECUTE FUNCTION ledger.note();
"""
UNLIKE = f"""
WITH expected AS (
    SELECT number, 0 AS behind, scenario, op, id, val, col1, col2 FROM ledger.noted
    UNION ALL
    SELECT number, 1, scenario, '{TOMBSTONE}', id, NULL, NULL, NULL FROM ledger.noted WHERE op = 'd'
), noted AS (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY number, behind) AS step FROM expected
), told AS (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY partition, place) AS step FROM ledger.told
)
SELECT coalesce(noted.scenario, told.scenario), noted.op, told.op, count(*) FROM noted
FULL JOIN told USING (id, step)
WHERE (noted.op, noted.val, noted.col1, noted.col2) IS DISTINCT FROM (told.op, told.val, told.col1, told.col2)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
"""By the step of a key: what was noted and not told, or told and not noted, or is another one."""


def create(url: str) -> None:
    execute(url, TABLE, LEDGER)


def begin(url: str, scenario: int) -> None:
    """What is committed from now on belongs to it."""
    execute(url, f"INSERT INTO ledger.begun VALUES (pg_current_wal_insert_lsn(), {scenario})")


def copy_messages(url: str, servers: str, topic: str) -> None:
    """What a consumer that reads what is committed gets, into the ledger."""
    begun = _query(url, "SELECT (lsn - '0/0')::bigint, scenario FROM ledger.begun ORDER BY lsn")
    places, scenarios = [place for place, _ in begun], [scenario for _, scenario in begun]
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY ledger.told FROM STDIN") as copy:
            for lsn, row in _messages(servers, topic):
                copy.write_row((*row[:2], scenarios[bisect_left(places, lsn) - 1], *row[2:]))
        connection.execute("ANALYZE ledger.told, ledger.noted")


def _messages(servers: str, topic: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Where the transaction of a message ended, and what it tells. A tombstone is of the delete before it."""
    ended: dict[int, int] = {}
    for message in kafka_reading.each(servers, [topic]):
        key, value, partition = message.key, message.value, message.partition
        if value is not None:
            ended[partition] = value["source"]["lsn"]
        row = (value and value["after"]) or {}
        values = [row.get(name) for name in ("val", "col1", "col2")]
        op = TOMBSTONE if value is None else value["op"]
        yield ended[partition], (partition, message.offset, op, key and key["id"], *values)


def unlike(url: str) -> list[tuple[Any, ...]]:
    """Scenario, what was noted, what was told, and how often. Empty if each change is there once, in its order."""
    return _query(url, UNLIKE)


def noted(url: str, scenario: int) -> dict[str, int]:
    """How many changes of each kind a scenario has."""
    return dict(_query(url, f"SELECT op, count(*) FROM ledger.noted WHERE scenario = {scenario} GROUP BY op"))


def told(url: str, scenario: int) -> dict[str, int]:
    """How many messages of each kind a scenario has."""
    return dict(_query(url, f"SELECT op, count(*) FROM ledger.told WHERE scenario = {scenario} GROUP BY op"))


def keys_in_several_partitions(url: str) -> int:
    ids = "SELECT id FROM ledger.told GROUP BY id HAVING min(partition) <> max(partition)"
    return len(_query(url, ids))


def rows_told(url: str, scenario: int, where: str) -> int:
    """How many rows a replay of a scenario ends with."""
    last = f"SELECT DISTINCT ON (id) * FROM ledger.told WHERE scenario = {scenario} ORDER BY id, place DESC"
    [(count,)] = _query(url, f"SELECT count(*) FROM ({last}) AS last WHERE op IN ('c', 'u') AND {where}")
    return int(count)


def _query(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()
