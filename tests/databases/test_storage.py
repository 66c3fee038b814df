"""What a look at the catalog tells of rows that changed without an event, and of what changes none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
import pytest

from tailrace.model.lifecycle import StoredAs
from tailrace.model.schema import Column, TableSchema
from tailrace.pipeline.evolution import has_other_text
from tailrace.sources.base import StorageChange
from tailrace.sources.postgres import storage
from tailrace.sources.postgres.catalog import fetch_types
from tailrace.sources.postgres.types import column_type
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires

pytestmark = pytest.mark.server

CHOSEN = "CREATE UNIQUE INDEX chosen_id ON chosen (id); ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_id"
TABLES = f"""
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE word (id varchar(10) PRIMARY KEY, v text);
CREATE TABLE whole (id int PRIMARY KEY, v text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE chosen (id int NOT NULL, v text);
{CHOSEN};
CREATE TABLE heir (id int PRIMARY KEY, v text);
CREATE TABLE root (id int PRIMARY KEY, v text NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE UNIQUE INDEX leaf_v ON leaf (v);
CREATE TABLE middle PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE deep PARTITION OF middle FOR VALUES FROM (10) TO (20);
CREATE TABLE other (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
"""
AGAIN = "ALTER TABLE {0} DETACH PARTITION {1}; ALTER TABLE {0} ATTACH PARTITION {1} FOR VALUES FROM ({2}) TO ({3})"
REKEYED = "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey; UPDATE {0} SET id = id; ALTER TABLE {0} ADD PRIMARY KEY (id)"
FULL, DEFAULT = "ALTER TABLE {0} REPLICA IDENTITY FULL", "ALTER TABLE {0} REPLICA IDENTITY DEFAULT"
LENT = "ALTER TABLE other ATTACH PARTITION plain DEFAULT; ALTER TABLE other DETACH PARTITION plain"

TOLD = {
    "leaf": ("root", "detached and attached", AGAIN.format("root", "leaf", 0, 10)),
    "middle": ("root", "detached and attached", AGAIN.format("root", "middle", 10, 20)),
    "deep": ("root", "detached and attached", AGAIN.format("middle", "deep", 10, 20)),
    "attached": (
        "plain",
        "was a partition",
        f"{LENT}; ALTER TABLE plain ADD COLUMN more int",
    ),
    "full": ("plain", "key was dropped", "; ".join((FULL, REKEYED)).format("plain")),
    "full for a time": ("plain", "key was dropped", "; ".join((FULL, REKEYED, DEFAULT)).format("plain")),
    "full before": ("whole", "key was dropped", "; ".join((REKEYED, DEFAULT)).format("whole")),
    "full all the time": ("whole", "key was dropped", REKEYED.format("whole")),
    "an index": (
        "chosen",
        "key was dropped",
        f"{FULL.format('chosen')}; DROP INDEX chosen_id; {CHOSEN}",
    ),
    "identity": (
        "root",
        "another replica identity",
        f"ALTER TABLE leaf REPLICA IDENTITY USING INDEX leaf_v; {DEFAULT.format('leaf')}",
    ),
}
UNTOLD = {
    "cleaning": "VACUUM FULL plain; VACUUM (FREEZE, ANALYZE); VACUUM FULL pg_inherits; VACUUM FULL pg_class;"
    "VACUUM FULL pg_attribute; VACUUM FULL pg_index; REINDEX TABLE CONCURRENTLY plain; REINDEX TABLE CONCURRENTLY leaf",
    "grants": "GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC",
    "a wider key": "ALTER TABLE word ALTER id TYPE varchar(20)",
    "an altered column": "ALTER TABLE plain ALTER v SET DEFAULT 'x'; ALTER TABLE plain SET (fillfactor = 90)",
    "inheritance": "CREATE TABLE parent (id int NOT NULL); ALTER TABLE heir INHERIT parent;"
    "ALTER TABLE heir NO INHERIT parent",
    "new indexes": "CREATE UNIQUE INDEX root_id_v ON root (id, v); CREATE UNIQUE INDEX CONCURRENTLY leaf_x ON leaf (v);"
    "DROP INDEX root_id_v",
}


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, version=request.param, settings=FAST) as started:
        yield started


@pytest.fixture
def connection(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    url = server.create_database("stored")
    with psycopg.connect(url, autocommit=True) as opened:
        opened.execute(TABLES.encode())
        yield opened
    server.drop_database("stored")


def look(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, StoredAs]]:
    query = "SELECT relname, oid::bigint FROM pg_class WHERE relkind IN ('r', 'p') AND relname = ANY (%s)"
    names = ["plain", "word", "whole", "chosen", "heir", "root", "other"]
    oids: dict[str, int] = dict(connection.execute(query, [names]).fetchall())
    stored = storage.stored_as(connection, list(oids.values()))
    return {name: (oid, stored[oid]) for name, oid in oids.items()}


def changes(before: dict[str, tuple[int, StoredAs]], after: dict[str, tuple[int, StoredAs]]) -> dict[str, str]:
    """By table, why it has to be copied again."""
    found = {name: storage.change_of(oid, old, after[name][1]) for name, (oid, old) in before.items()}
    return {name: change.reason for name, change in found.items() if change != StorageChange()}


@pytest.mark.parametrize(("table", "reason", "statements"), TOLD.values(), ids=TOLD)
def test_what_was_undone_again_still_shows(
    connection: psycopg.Connection[Any], table: str, reason: str, statements: str
) -> None:
    before = look(connection)
    connection.execute(statements.encode())  # one transaction
    found = changes(before, look(connection))
    assert found.keys() == {table}
    assert reason in found[table]


@pytest.mark.parametrize("statements", UNTOLD.values(), ids=UNTOLD)
def test_what_changes_no_row_is_no_reason_for_a_copy(connection: psycopg.Connection[Any], statements: str) -> None:
    before = look(connection)
    for statement in statements.split(";"):
        connection.execute(statement.encode())
    assert changes(before, look(connection)) == {}


@pytest.mark.parametrize(
    ("statements", "is_other"),
    [
        ("ALTER TYPE mood RENAME VALUE 'a' TO 'z'; ALTER TYPE mood RENAME VALUE 'z' TO 'a'", True),
        ("ALTER TYPE pair ADD ATTRIBUTE z int; ALTER TYPE pair DROP ATTRIBUTE z", True),
        ("ALTER TYPE mood ADD VALUE 'c'; ALTER TYPE pair RENAME ATTRIBUTE x TO w; VACUUM FULL pg_enum", False),
    ],
)
def test_that_a_type_had_other_labels_or_attributes_for_a_time_still_shows(
    connection: psycopg.Connection[Any], statements: str, is_other: bool
) -> None:
    connection.execute("CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TYPE pair AS (x int, y mood)")

    def look() -> TableSchema:
        row = connection.execute("SELECT 'pair'::regtype::oid::bigint").fetchone()
        assert row is not None
        return TableSchema("public", "t", (Column("p", column_type(row[0], -1, fetch_types(connection, row))),))

    before = look()
    for statement in statements.split(";"):
        connection.execute(statement.encode())
    assert has_other_text(before, look()) is is_other


def test_a_new_partition_is_looked_into_and_the_others_are_what_they_were(connection: psycopg.Connection[Any]) -> None:
    before = look(connection)
    connection.execute("CREATE TABLE fresh PARTITION OF root FOR VALUES FROM (20) TO (30)")
    oid, now = look(connection)["root"]
    change = storage.change_of(oid, before["root"][1], now)
    assert (change.is_rewritten, len(change.added)) == (False, 1)
    assert not storage.has_rows(connection, [int(each) for each in change.added])
    connection.execute("INSERT INTO root VALUES (20, 'x')")
    assert storage.has_rows(connection, [int(each) for each in change.added])


def test_a_partition_that_is_told_of_before_it_is_looked_at_is_a_reason_for_a_copy_whatever_became_of_it(
    connection: psycopg.Connection[Any],
) -> None:
    oid, before = look(connection)["root"]
    assert before.told_of(map(int, before.files)) == before
    connection.execute("CREATE TABLE brief PARTITION OF root FOR VALUES FROM (20) TO (30)")
    row = connection.execute("SELECT 'brief'::regclass::oid::bigint").fetchone()
    assert row is not None
    told = before.told_of(row)
    for statement in ("SELECT", "TRUNCATE brief", "DROP TABLE brief"):
        connection.execute(statement.encode())
        assert "before anybody looked" in storage.change_of(oid, told, look(connection)["root"][1]).reason


def test_a_new_partition_that_was_emptied_is_a_reason_for_a_copy(connection: psycopg.Connection[Any]) -> None:
    """Its rows may be told of after the look."""
    before = look(connection)
    connection.execute("CREATE TABLE brief PARTITION OF root FOR VALUES FROM (20) TO (30)")
    connection.execute("TRUNCATE brief")
    assert changes(before, look(connection)) == {"root": "a partition was truncated or rewritten"}


def test_a_partition_whose_detaching_was_not_ended_is_none(
    server: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    before = look(connection)
    with psycopg.connect(server.url_of("stored")) as reader, suppress(psycopg.errors.QueryCanceled):
        reader.execute("SELECT FROM root")
        connection.execute("SET statement_timeout = '1s'")
        connection.execute("ALTER TABLE root DETACH PARTITION leaf CONCURRENTLY")
    pending = look(connection)
    assert changes(before, pending) == {"root": "a partition was dropped or detached"}
    connection.execute("ALTER TABLE root DETACH PARTITION leaf FINALIZE")
    assert changes(pending, look(connection)) == {}


def test_what_an_earlier_version_has_noted_is_no_reason_for_a_copy(connection: psycopg.Connection[Any]) -> None:
    before = look(connection)
    noted = {name: (oid, msgspec.structs.replace(stored, marks={})) for name, (oid, stored) in before.items()}
    assert changes(noted, before) == {}
