"""Tables that are not what they seem: keys that may repeat, keys that are not published whole, heirs, and odd names.

One database, one life of one pipeline, two sinks; compared by content, and copied once each.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.pipelines import RunningPipeline, run_until_current, tailrace, write_pipeline
from support.sinks import wait_until_current
from tailrace.model.names import table_name
from tailrace.testing import PostgresServer, content
from tailrace.testing.rendering import quote, tables_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

KEYS = """
CREATE TABLE may_be_deferred (k int PRIMARY KEY DEFERRABLE, v text);
CREATE TABLE deferred (k int, v text, PRIMARY KEY (v, k) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE deferrable_default (k int PRIMARY KEY DEFERRABLE, v text);
ALTER TABLE may_be_deferred REPLICA IDENTITY FULL;
ALTER TABLE deferred REPLICA IDENTITY FULL;
CREATE TABLE at_once (k int PRIMARY KEY, v text);
CREATE TABLE in_other_order (c text, b int, a int, PRIMARY KEY (b, c));
CREATE TABLE in_other_order_full (c text, b int, a int, PRIMARY KEY (b, c));
ALTER TABLE in_other_order_full REPLICA IDENTITY FULL;
CREATE TABLE with_included (v text, b int NOT NULL, a int NOT NULL);
CREATE UNIQUE INDEX identity ON with_included (b, a) INCLUDE (v);
ALTER TABLE with_included REPLICA IDENTITY USING INDEX identity;
CREATE TABLE lost_index (k int NOT NULL, v text);
CREATE UNIQUE INDEX lost ON lost_index (k);
ALTER TABLE lost_index REPLICA IDENTITY USING INDEX lost;
DROP INDEX lost;
CREATE TABLE generated (g int GENERATED ALWAYS AS (k * 2) STORED, k int PRIMARY KEY, v text);
CREATE TABLE generated_key (g int GENERATED ALWAYS AS (k % 2) STORED, k int, v text, PRIMARY KEY (k, g));
"""

LISTED = """
CREATE TABLE part_of_key (a int, secret text, b int, v text, PRIMARY KEY (a, b));
CREATE TABLE whole_key (v text, secret text, b int, a int, PRIMARY KEY (a, b));
CREATE PUBLICATION tailrace_under_test
    FOR TABLE part_of_key (a, v), whole_key (a, b, v) WITH (publish_via_partition_root = true);
"""

HEIRS = """
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child (PRIMARY KEY (id), extra int) INHERITS (parent);
CREATE TABLE grandchild (PRIMARY KEY (id)) INHERITS (child);
"""

NAMES = [
    ("a.b", "c"),
    ("a", "b.c"),
    ("a.b.c", "d.e"),
    ('quo"ted', 'say "hi".'),
    ("public", "odd.name"),
    ("public", "new\nline\t"),
    ("public", " "),
    ("public", "UPPER and lower"),
    ("public", "100%s {0} $1 ? :x"),
    ("größe 🌊", "ü" * 31),
    ("s" * 63, "n" * 63),
    ("public", "select"),
    ("public", "../../slash\\back"),
]
TABLE = 'id int PRIMARY KEY, "a.b" text, "we""ird\n" text, "Größe %s" int'
RENAMED = ("public", "odd.name")


def full_names() -> list[str]:
    return [f"{quote(schema)}.{quote(name)}" for schema, name in NAMES]


def fill(connection: psycopg.Connection[Any]) -> None:
    connection.execute((KEYS + LISTED + HEIRS).encode())
    for schema, _ in NAMES:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}".encode())
    for number, name in enumerate(full_names()):
        connection.execute(f"CREATE TABLE {name} ({TABLE})".encode())
        insert = f"INSERT INTO {name} VALUES (1, 'of {number}', 'old', 1), (2, 'of {number}', 'old', 2)"
        connection.execute(insert.encode())
    for table in ("may_be_deferred", "deferred", "deferrable_default", "at_once", "lost_index"):
        connection.execute(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, 5) n".encode())
    for table in ("in_other_order", "in_other_order_full", "with_included"):
        connection.execute(f"INSERT INTO {table} SELECT 'x', n, -n FROM generate_series(1, 5) n".encode())
    for table in ("generated", "generated_key"):
        connection.execute(f"INSERT INTO {table} (k, v) SELECT n, 'old' FROM generate_series(1, 5) n".encode())
    for table in ("part_of_key", "whole_key"):
        connection.execute(
            f"INSERT INTO {table} (a, b, v) SELECT n / 2, n, 'old' FROM generate_series(1, 6) n".encode()
        )
    connection.execute("INSERT INTO parent SELECT n, 'parent' FROM generate_series(1, 5) n")
    connection.execute("INSERT INTO child SELECT n, 'child', n FROM generate_series(3, 8) n")
    connection.execute("INSERT INTO grandchild SELECT n, 'grandchild', n FROM generate_series(4, 9) n")


CHANGES = [
    "UPDATE may_be_deferred SET k = k + 1",
    "UPDATE deferred SET k = k % 5 + 1 WHERE k < 6",
    """BEGIN; INSERT INTO deferred VALUES (5, 'old'); UPDATE deferred SET k = k + 10; DELETE FROM deferred WHERE k = 15;
    INSERT INTO deferred VALUES (15, 'old'), (5, 'old'); COMMIT""",
    "INSERT INTO deferrable_default VALUES (6, 'new')",
    "UPDATE at_once SET k = k + 10",
    "UPDATE at_once SET k = k - 1 WHERE k > 10",
    "UPDATE in_other_order SET b = -b WHERE b < 3",
    "DELETE FROM in_other_order WHERE b = 4",
    "UPDATE in_other_order_full SET b = -b, c = 'y' WHERE b < 3",
    "UPDATE with_included SET b = -b, v = 'moved' WHERE b < 3",
    "DELETE FROM with_included WHERE b = 4",
    "INSERT INTO lost_index VALUES (6, 'new')",
    "UPDATE generated SET k = k + 10",
    "INSERT INTO generated_key (k, v) VALUES (6, 'new')",
    "INSERT INTO part_of_key (a, b, v) VALUES (1, 20, 'old'), (1, 21, 'new')",
    "UPDATE whole_key SET b = b + 10, secret = 's' WHERE a = 1",
    "DELETE FROM whole_key WHERE a = 2",
    "UPDATE parent SET v = v || '!' WHERE id = 4",
    "UPDATE ONLY parent SET id = id + 100 WHERE id = 5",
    "DELETE FROM parent WHERE id = 8",
    "INSERT INTO child VALUES (50, 'new', 1)",
]


@dataclass(frozen=True)
class Outcome:
    """Source and sinks after everything has happened. `said` is all that the pipeline's lives told of tables."""

    url: str
    file: Path
    path: Path
    sink_url: str
    said: list[dict[str, Any]]

    def sqlite(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()

    def postgres(self, query: str, *, sink: bool = True) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.sink_url if sink else self.url) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture(scope="module")
def outcome(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("odd")
    url, sink_url = (postgres_server.create_database(name) for name in ("odd_tables", "odd_tables_sink"))
    renamed = {'public."odd.name"': "renamed"}
    sinks = {
        "replica": {"url": f"sqlite:///{folder}/replica.db", "tables": renamed},
        "copy": {"url": sink_url, "columns": {'"public"."odd.name"': {"a.b": "renamed column"}}},
    }
    file = write_pipeline(folder, url, sinks)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            fill(connection)
            with RunningPipeline(file) as pipeline:
                wait_until_current(pipeline, file, url, sinks)
                change(connection)
                wait_until_current(pipeline, file, url, sinks)
                assert pipeline.stop() == 0, pipeline.output
            change(connection, again=True)
        said = pipeline.said("table") + run_until_current(file).said("table")
        yield Outcome(url, file, folder / "replica.db", sink_url, said)
    finally:
        for name in ("odd_tables", "odd_tables_sink"):
            postgres_server.drop_database(name)


def change(connection: psycopg.Connection[Any], *, again: bool = False) -> None:
    """Rows of every table; the second time, only what can be done twice."""
    for statement in CHANGES:
        if not again or statement.startswith("UPDATE"):
            connection.execute(statement.encode())
    for number, name in enumerate(full_names()):
        escaped = name.replace("%", "%%")
        row = [10 + again, f"later {number}"]
        connection.execute(f"INSERT INTO {escaped} VALUES (%s, %s, 'new', 3)".encode(), row)
        connection.execute(f'UPDATE {escaped} SET id = id + 20, "a.b" = %s WHERE id = 1'.encode(), row[1:])


SEEN_ELSEWHERE = {"public.part_of_key", "public.whole_key", "public.generated_key", 'public."odd.name"'}


def compared(url: str) -> list[str]:
    return [table for table in tables_of(url) if table not in SEEN_ELSEWHERE]


def test_every_odd_table_has_the_source_s_rows_in_both_sinks(outcome: Outcome) -> None:
    tables = compared(outcome.url)
    assert {table_name(*name) for name in NAMES} - SEEN_ELSEWHERE <= set(tables)
    content.assert_same(content.sqlite_differences(outcome.url, outcome.path, tables))
    content.assert_same(content.postgres_differences(outcome.url, outcome.sink_url, tables))


def test_tables_are_copied_once_and_not_again_and_again(outcome: Outcome) -> None:
    copied = Counter((event["table"], event["sink"]) for event in outcome.said if event["state"] == "snapshot")
    assert set(copied.values()) == {1}
    assert {table for table, _ in copied} == set(tables_of(outcome.url))


@pytest.mark.parametrize("columns", ["part_of_key: a, v", "whole_key: a, b, v", "generated_key: k, v"])
def test_a_table_of_which_some_columns_are_published_has_all_of_its_rows(outcome: Outcome, columns: str) -> None:
    table, _, names = columns.partition(": ")
    query = f"SELECT {names} FROM {table}"
    rows = Counter(outcome.postgres(query, sink=False))
    assert Counter(outcome.sqlite(query)) == rows
    assert Counter(outcome.postgres(query)) == rows


def test_an_odd_name_is_found_in_a_sink_s_settings(outcome: Outcome) -> None:
    query = 'SELECT id, "a.b", "Größe %s" FROM {} ORDER BY 1'
    rows = outcome.postgres(query.format('"odd.name"'), sink=False)
    assert rows
    assert outcome.sqlite(query.format("renamed")) == rows
    assert outcome.postgres(query.replace('"a.b"', '"renamed column"').format('"odd.name"')) == rows


def test_verify_calls_them_all_equal(outcome: Outcome) -> None:
    ended = tailrace("verify", outcome.file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
