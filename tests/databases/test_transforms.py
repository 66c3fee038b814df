"""Tables with transforms in whole runs: PostgreSQL into SQLite and PostgreSQL; SQL at the source says the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from support.pipelines import LONGEST_SECONDS, RunningPipeline, run_until_current, states, tailrace, write_pipeline
from tailrace.testing import PostgresServer
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(1800)]

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, total numeric(12,2), note varchar(200), secret text,
                     body text, at timestamptz, whole time, labels integer[]);
ALTER TABLE orders ALTER body SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL;
CREATE TABLE keyless (n integer, label text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE plain (id integer PRIMARY KEY, label text);
CREATE TABLE divided (id integer PRIMARY KEY, by integer);
INSERT INTO orders SELECT i, CASE mod(i, 3) WHEN 0 THEN 'draft' ELSE 'open' END, i / 100.0, 'note ' || i,
    'secret ' || i, repeat(md5(i::text), 70), timestamptz '2026-01-01' + i * interval '1 minute', '24:00:00',
    ARRAY[[i, i], [i, i]] FROM generate_series(1, 600) i;
INSERT INTO keyless SELECT mod(i, 7), 'label ' || mod(i, 5) FROM generate_series(1, 300) i;
INSERT INTO plain SELECT i, 'label ' || i FROM generate_series(1, 100) i;
INSERT INTO divided SELECT i, i FROM generate_series(1, 10) i;
"""
TRANSFORMS: dict[str, Any] = {
    "public.orders": {
        "where": "status <> 'draft'",
        "columns": {"total_eur": "cast(total * 1.1 as decimal(14,2))", "note": "upper(note)"},
        "drop": ["secret"],
    },
    "public.keyless": {"where": "n <> 3", "columns": {"label": "concat(label, '!')"}},
    "public.divided": {"columns": {"share": "100 / by"}},
}
"""`orders` reads a column that is often left out of changes (note), and not another (body). It has values that Spark
can not hold, in columns that no expression reads."""

ORDERS = """
SELECT id, status, total, upper(note), body, at::text, whole::text, labels::text, (total * 1.1)::numeric(14,2)
FROM orders WHERE status <> 'draft' ORDER BY id
"""
KEYLESS = "SELECT n, label || '!' FROM keyless WHERE n <> 3 ORDER BY n, label"
PLAIN = "SELECT id, label FROM plain ORDER BY id"

CHANGES = [
    "INSERT INTO orders (id, status, total, note) VALUES (9001, 'open', 1.05, 'new'), (9002, 'draft', 2, 'hidden')",
    "UPDATE orders SET status = 'draft' WHERE id BETWEEN 1 AND 20",  # out of the filter
    "UPDATE orders SET status = 'open' WHERE id IN (3, 6, 9, 12, 9002)",  # into it
    "UPDATE orders SET total = total + 1 WHERE id BETWEEN 100 AND 140",  # body and note are not sent
    "UPDATE orders SET note = repeat('long note ', 19) WHERE id BETWEEN 130 AND 150",
    "UPDATE orders SET total = total * 2 WHERE id BETWEEN 135 AND 145",
    "UPDATE orders SET id = id + 20000 WHERE id BETWEEN 200 AND 220",  # a key that changes, body not sent
    "UPDATE orders SET id = id + 20000, status = 'draft' WHERE id BETWEEN 221 AND 230",
    "UPDATE orders SET id = id - 20000, total = 5 WHERE id BETWEEN 20200 AND 20205",
    "DELETE FROM orders WHERE id BETWEEN 300 AND 330",
    "INSERT INTO plain VALUES (1001, 'beside')",
    "UPDATE keyless SET n = n + 1 WHERE n IN (2, 3)",
    "DELETE FROM keyless WHERE n = 5",
    "INSERT INTO keyless VALUES (3, 'never'), (4, 'once'), (4, 'once'), (NULL, NULL)",
    "UPDATE plain SET label = 'changed' WHERE id < 50",
]


@dataclass(frozen=True)
class Case:
    """A source, two sinks, and the file between them."""

    source: str
    replica: Path
    target: str
    file: Path

    def expected(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.source) as connection:
            return _plain(connection.execute(query.encode()).fetchall())

    def in_postgres(self, columns: str, table: str, order: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.target) as connection:
            return _plain(connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order}".encode()).fetchall())

    def in_sqlite(self, columns: str, table: str, order: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.replica)) as connection:
            return connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order}").fetchall()

    def is_same(self) -> bool:
        with suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            return not self.differences()
        return False

    def differences(self) -> list[str]:
        """What a sink has that the same question at the source does not say, or the other way round."""
        orders, keyless, plain = map(self.expected, (ORDERS, KEYLESS, PLAIN))
        all_columns = "id, status, total, note, body, at::text, whole::text, labels::text, total_eur"
        few = [(row[0], row[1], row[3], row[4]) for row in orders]
        cents = [(None if row[8] is None else round(Decimal(row[8]) * 100),) for row in orders]
        pairs = {
            "orders in PostgreSQL": (self.in_postgres(all_columns, "orders", "id"), orders),
            "keyless in PostgreSQL": (self.in_postgres("n, label", "keyless", "n, label"), keyless),
            "plain in PostgreSQL": (self.in_postgres("id, label", "plain", "id"), plain),
            "orders in SQLite": (self.in_sqlite("id, status, note, body", "orders", "id"), few),
            "totals in SQLite": (
                [
                    (None if total is None else round(Decimal(str(total)) * 100),)
                    for (total,) in self.in_sqlite("total_eur", "orders", "id")
                ],
                cents,
            ),
            "keyless in SQLite": (_sorted(self.in_sqlite("n, label", "keyless", "1")), _sorted(keyless)),
            "plain in SQLite": (self.in_sqlite("id, label", "plain", "id"), plain),
        }
        return [
            f"{what}: {sorted({row[:4] for row in set(found) ^ set(wanted)}, key=str)[:8]}"
            for what, (found, wanted) in pairs.items()
            if found != wanted
        ]


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=str)


def _plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(str(value) if isinstance(value, Decimal) else value for value in row) for row in rows]


@pytest.fixture
def case(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Case]:
    source, target = (postgres_server.create_database(f"transforms_{name}") for name in ("source", "target"))
    execute(source, TABLES)
    sinks = {"replica": f"sqlite:///{tmp_path / 'replica.db'}", "copy": target}
    file = write_pipeline(tmp_path, source, sinks, transforms=TRANSFORMS, tables=["public.*"])
    yield Case(source, tmp_path / "replica.db", target, file)
    for name in ("source", "target"):
        postgres_server.drop_database(f"transforms_{name}")


def wait_until_same(pipeline: RunningPipeline, case: Case) -> None:
    try:
        pipeline.wait_for(case.is_same, "the sinks to have what the expressions say", LONGEST_SECONDS)
    except AssertionError as error:
        raise AssertionError("\n".join([*case.differences(), str(error)])) from error


def test_rows_are_what_the_expressions_say_through_snapshot_changes_kills_and_truncates(case: Case) -> None:
    with RunningPipeline(case.file) as pipeline:
        wait_until_same(pipeline, case)  # the snapshot
        for change in CHANGES[:8]:
            execute(case.source, change)
        wait_until_same(pipeline, case)
        for change in CHANGES[8:]:
            execute(case.source, change)
        pipeline.kill()
    execute(case.source, "UPDATE orders SET note = 'while it was down' WHERE id BETWEEN 400 AND 420")
    with RunningPipeline(case.file) as pipeline:
        wait_until_same(pipeline, case)
        assert not pipeline.copies("public.orders")
        execute(case.source, "TRUNCATE orders; INSERT INTO orders (id, status, note) VALUES (1, 'open', 'after')")
        wait_until_same(pipeline, case)
        execute(case.source, "INSERT INTO divided VALUES (99, 0)", "INSERT INTO plain VALUES (2001, 'not held up')")
        wait_until_same(pipeline, case)
        failed = ("the table to be set aside", LONGEST_SECONDS)
        pipeline.wait_for(lambda: _failures(pipeline) == {"replica", "copy"}, *failed)
        pipeline.stop()
    state, reason = states(case.file)["copy", "public.divided"]
    assert state == "failed"
    assert "transforms.public.divided" in reason
    assert "DIVIDE_BY_ZERO" in reason


def _failures(pipeline: RunningPipeline, table: str = "public.divided") -> set[str]:
    return _sinks_with(pipeline, table, "failed")


def _sinks_with(pipeline: RunningPipeline, table: str, state: str) -> set[str]:
    said = pipeline.said("table")
    return {each["sink"] for each in said if each["table"] == table and each["state"] == state}


def _has_been_tried_again(pipeline: RunningPipeline, table: str) -> bool:
    """In both sinks, and failed again."""
    said = [each for each in pipeline.said("table") if each["table"] == table]
    tried = [place for place, each in enumerate(said) if each.get("reason") == "it is tried again"]
    return {each["sink"] for place in tried for each in said[place:] if each["state"] == "failed"} == {
        "replica",
        "copy",
    }


def test_a_column_that_comes_is_taken_in_place_and_one_that_an_expression_lacks_sets_its_table_aside(
    case: Case,
) -> None:
    with RunningPipeline(case.file) as pipeline:
        wait_until_same(pipeline, case)
        live = ("the table to be live", LONGEST_SECONDS)  # one that is not yet is copied again
        pipeline.wait_for(lambda: _sinks_with(pipeline, "public.orders", "live") == {"replica", "copy"}, *live)
        execute(case.source, "ALTER TABLE orders ADD COLUMN extra integer DEFAULT 7")
        execute(case.source, "UPDATE orders SET extra = 8, note = 'changed' WHERE id = 1")
        wanted = case.expected("SELECT id, extra FROM orders WHERE status <> 'draft' ORDER BY id")

        def has_extra() -> bool:
            with suppress(psycopg.errors.UndefinedColumn):
                return case.in_postgres("id, extra", "orders", "id") == wanted
            return False

        pipeline.wait_for(has_extra, "the column that came", LONGEST_SECONDS)
        wait_until_same(pipeline, case)
        assert pipeline.copies("public.orders", "copy") == 1
        execute(case.source, "ALTER TABLE orders RENAME note TO remark", "UPDATE orders SET total = 1 WHERE id = 1")
        failed = ("the table to be set aside", LONGEST_SECONDS)
        pipeline.wait_for(lambda: _failures(pipeline, "public.orders") == {"replica", "copy"}, *failed)
        pipeline.wait_for(lambda: _has_been_tried_again(pipeline, "public.orders"), *failed)
        execute(case.source, "INSERT INTO plain VALUES (3001, 'not held up')")
        wanted = case.expected(PLAIN)
        pipeline.wait_for(lambda: case.in_sqlite("id, label", "plain", "id") == wanted, "the others", LONGEST_SECONDS)
        pipeline.stop()
    state, reason = states(case.file)["copy", "public.orders"]
    assert state == "failed"
    assert "transforms.public.orders.columns.note" in reason
    assert "`note` cannot be resolved" in reason


def test_verify_check_and_a_changed_transform(case: Case) -> None:
    execute(case.source, "DROP TABLE divided")
    run_until_current(_with_transforms(case, orders=TRANSFORMS["public.orders"]))
    said = tailrace("verify", case.file)
    assert said.returncode == 0, said
    execute(case.target, "UPDATE orders SET total_eur = total_eur + 1 WHERE id = 100")
    said = tailrace("verify", case.file)
    assert said.returncode == 1
    assert "100" in said.stdout
    _with_transforms(case, orders={"where": "id <> 5", "columns": {"total_eur": "rand()"}})
    said = tailrace("check", case.file)
    assert said.returncode == 1
    assert "transforms.public.orders.columns.total_eur" in " ".join(said.stdout.split())
    second = run_until_current(_with_transforms(case, orders={"where": "id > 500", "columns": {"note": "lower(note)"}}))
    assert second.copies("public.orders", "copy") == 1
    wanted = case.expected("SELECT id, lower(note), secret FROM orders WHERE id > 500 ORDER BY id")
    assert case.in_postgres("id, note, secret", "orders", "id") == wanted
    assert case.in_sqlite("id, note, secret", "orders", "id") == wanted


def _with_transforms(case: Case, orders: dict[str, Any]) -> Path:
    document = yaml.safe_load(case.file.read_text())
    document["transforms"] = {"public.orders": orders}
    case.file.write_text(yaml.safe_dump(document))
    return case.file
