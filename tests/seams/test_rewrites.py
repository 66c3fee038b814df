"""Rows that change without an event: what rewrites a live table, and partitions that come, go or are emptied.

None of it is followed by a change of the table, which might tell.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from support.pipelines import RunningPipeline, run_until_current, wait_until_same, write_pipeline
from tailrace.testing import content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

PLAIN = (
    *("filled", "scaled", "vacuumed", "boxed", "remade", "odd", "called_0"),
    *("labelled", "paired", "renamed_back", "lent", "rekeyed", "turned"),
)
BRIEF = {
    "brief_dropped": "DROP TABLE aside.brief_dropped_9",
    "brief_detached": "ALTER TABLE brief_detached DETACH PARTITION aside.brief_detached_9",
    "brief_emptied": "TRUNCATE aside.brief_emptied_9",
}
"""Each has a ninth partition for a moment, and how that ends."""
PARTITIONED = (
    *("emptied", "dropped", "detached", "attached", "shed_0"),
    *("returned", "nested", "pending", "flipped", "visited", "passed", "calm", *BRIEF),
)
"""Each has the partitions `aside.<name>_1` to `_4`, of which none is a table of the pipeline by itself."""


def create(url: str) -> None:
    execute(url, "CREATE SCHEMA aside")
    for table in PLAIN:
        execute(
            url,
            f"CREATE TABLE {table} (id int PRIMARY KEY, v int)",
            f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 100) n",
        )
    execute(
        url,
        "CREATE TYPE mood AS ENUM ('x', 'a')",
        "CREATE TYPE pair AS (p int, q mood)",
        "ALTER TABLE labelled ADD COLUMN m mood[] NOT NULL DEFAULT '{a}'",
        "ALTER TABLE paired ADD COLUMN p pair NOT NULL DEFAULT '(1,x)'",
        "ALTER TABLE renamed_back ADD COLUMN m mood",
    )
    for table in PARTITIONED:
        execute(url, f"CREATE TABLE {table} (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
        for number in range(1, 5):
            execute(url, f"CREATE TABLE aside.{table}_{number} PARTITION OF {table} {bounds(number)}")
        execute(url, f"INSERT INTO {table} SELECT n, n FROM generate_series(100, 499) n")
    execute(
        url,
        "UPDATE lent SET id = id + 500",
        "ALTER TABLE flipped ALTER v SET NOT NULL",
        "ALTER TABLE turned ALTER v SET NOT NULL",
        "CREATE UNIQUE INDEX turned_v ON turned (v)",
    )
    for number in (1, 2):
        execute(
            url,
            f"CREATE UNIQUE INDEX flipped_v_{number} ON aside.flipped_{number} (v)",
            f"CREATE TABLE aside.nest_{number} PARTITION OF nested FOR VALUES FROM ({number}000) TO ({number}100)"
            " PARTITION BY RANGE (id)",
            f"CREATE TABLE aside.nest_{number}_1 PARTITION OF aside.nest_{number} DEFAULT",
            f"INSERT INTO nested SELECT n, n FROM generate_series({number}000, {number}099) n",
        )


def bounds(number: int) -> str:
    return f"FOR VALUES FROM ({number}00) TO ({number + 1}00)"


def hide(url: str, number: int) -> None:
    """Each table is itself again at the end of a transaction, in which it was changed untold."""
    leaf, nest, flipped = f"aside.returned_{number}", f"aside.nest_{number}", f"aside.flipped_{number}"
    execute(
        url,
        f"ALTER TABLE returned DETACH PARTITION {leaf}; DELETE FROM {leaf} WHERE id = {number}01;"
        f" UPDATE {leaf} SET v = 7 WHERE id = {number}02;"
        f" ALTER TABLE returned ATTACH PARTITION {leaf} {bounds(number)}",
        f"ALTER TABLE nested DETACH PARTITION {nest}; DELETE FROM {nest} WHERE id = {number}001;"
        f" ALTER TABLE nested ATTACH PARTITION {nest} FOR VALUES FROM ({number}000) TO ({number}100)",
        "ALTER TABLE visited ATTACH PARTITION lent FOR VALUES FROM (500) TO (700);"
        f" INSERT INTO visited VALUES (65{number}, 1); DELETE FROM visited WHERE id = 50{number};"
        " ALTER TABLE visited DETACH PARTITION lent",
        "CREATE TABLE aside.brief PARTITION OF passed DEFAULT;"
        " INSERT INTO passed VALUES (500, 1); DROP TABLE aside.brief",
        "ALTER TABLE turned REPLICA IDENTITY USING INDEX turned_v;"
        f" DELETE FROM turned WHERE id = {number}; UPDATE turned SET id = 100 + id WHERE id = 1{number};"
        " ALTER TABLE turned REPLICA IDENTITY DEFAULT",
        "ALTER TABLE rekeyed REPLICA IDENTITY FULL; ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey;"
        " UPDATE rekeyed SET id = id + 1; ALTER TABLE rekeyed ADD PRIMARY KEY (id);"
        " ALTER TABLE rekeyed REPLICA IDENTITY DEFAULT",
        f"ALTER TABLE {flipped} REPLICA IDENTITY USING INDEX flipped_v_{number};"
        f" DELETE FROM flipped WHERE id IN ({number}01, {number}02);"
        f" UPDATE flipped SET id = {number}01 WHERE id = {number}03;"
        f" ALTER TABLE {flipped} REPLICA IDENTITY DEFAULT",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public, aside TO PUBLIC",
        "VACUUM (FREEZE, ANALYZE) calm",
        f"CREATE TABLE aside.calm_empty_{number} PARTITION OF calm FOR VALUES FROM ({number}000) TO ({number}100)",
        f"CREATE UNIQUE INDEX calm_more_{number} ON calm (v, id)",
    )


def come_and_go(pipeline: RunningPipeline, url: str, replica: Path) -> None:
    """Partitions whose rows are in the sink already when they go, most likely before anybody has looked at them."""
    for table in BRIEF:
        execute(
            url,
            f"CREATE TABLE aside.{table}_9 PARTITION OF {table} {bounds(9)}",
            f"INSERT INTO {table} VALUES (950, 1)",
        )

    def has_rows() -> bool:
        with closing(sqlite3.connect(replica)) as sink:
            looks = (sink.execute(f"SELECT 1 FROM {table} WHERE id = 950") for table in BRIEF)
            return all(look.fetchone() for look in looks)

    pipeline.wait_for(has_rows, "rows that are about to go")
    execute(url, *BRIEF.values())


def detach_half(url: str, number: int) -> None:
    """A partition that is gone for readers, though its detaching was not ended."""
    with psycopg.connect(url) as reader, suppress(psycopg.errors.QueryCanceled):
        reader.execute("SELECT FROM pending LIMIT 1")
        execute(
            url,
            "SET statement_timeout = '1s'",
            f"ALTER TABLE pending DETACH PARTITION aside.pending_{number} CONCURRENTLY",
        )


def rewrite(url: str, number: int) -> None:
    """All of it once, with partition `number`."""
    new = f"new_{number}"
    hide(url, number)
    detach_half(url, number)
    execute(
        url,
        f"ALTER TABLE filled ADD COLUMN {new} uuid DEFAULT gen_random_uuid()",
        f"ALTER TABLE filled ALTER COLUMN {new} DROP DEFAULT",
        "ALTER TABLE scaled ALTER COLUMN v TYPE int USING v * 100",
        "VACUUM FULL vacuumed",
        f"TRUNCATE aside.emptied_{number}",
        f"DROP TABLE aside.dropped_{number}",
        f"ALTER TABLE detached DETACH PARTITION aside.detached_{number}",
        f"CREATE TABLE aside.more_{number} (id int PRIMARY KEY, v int)",
        f"INSERT INTO aside.more_{number} SELECT n, n FROM generate_series({number}000, {number}099) n",
        f"ALTER TABLE attached ATTACH PARTITION aside.more_{number} FOR VALUES FROM ({number}000) TO ({number}100)",
        f"ALTER TABLE called_{number - 1} ALTER COLUMN v TYPE int USING v * 100;"
        f" ALTER TABLE called_{number - 1} RENAME TO called_{number};"
        f" INSERT INTO called_{number} VALUES (20{number}, 1)",
        f"DROP TABLE aside.shed_0_{number}; ALTER TABLE shed_{number - 1} RENAME TO shed_{number}",
        f"ALTER TABLE boxed ADD COLUMN {new} box DEFAULT '((3,4),(1,2))'",
        f"ALTER TABLE remade ADD COLUMN {new} int DEFAULT 5",
        f"ALTER TABLE remade DROP COLUMN {new}",
        f"INSERT INTO remade VALUES (20{number})",
        f"ALTER TABLE remade ADD COLUMN {new} int",
        f"INSERT INTO remade VALUES (30{number})",
        f"ALTER TYPE mood RENAME VALUE '{label(number - 1)}' TO '{label(number)}'",
        f"ALTER TYPE mood ADD VALUE '{label(number - 1)}'",
        f"ALTER TYPE pair ADD ATTRIBUTE r_{number} int",
        "ALTER TABLE renamed_back RENAME v TO w",
        f"UPDATE renamed_back SET w = -1 WHERE id = {number}",
        "ALTER TABLE renamed_back RENAME w TO v",
        f"UPDATE renamed_back SET v = -2 WHERE id = 1{number}",
    )


def label(number: int) -> str:
    """What the label that rows have is called after so many rewrites."""
    return f"a_{number}" if number else "a"


def tables_after(number: int) -> list[str]:
    """All tables, under the names that they have after `rewrite`."""
    return [f"public.{table}".replace("_0", f"_{number}") for table in (*PLAIN, *PARTITIONED)]


def has_failed(pipeline: RunningPipeline, table: str) -> bool:
    return any(each["table"] == table and each["state"] == "failed" for each in pipeline.said("table"))


def test_tables_that_are_rewritten_without_an_event_are_copied_again_and_vacuumed_ones_are_not(
    postgres_url: str, tmp_path: Path
) -> None:
    """While the pipeline runs, and while it does not."""
    replica = tmp_path / "replica.db"
    create(postgres_url)
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{replica}"}, tables=["public.*"])
    with RunningPipeline(file) as pipeline:
        pipeline.wait_until_live(*tables_after(0))
        come_and_go(pipeline, postgres_url, replica)
        rewrite(postgres_url, 1)
        execute(postgres_url, "ALTER TABLE odd RENAME TO _tailrace_odd")  # which the sink has for tables of its own
        pipeline.wait_for(lambda: has_failed(pipeline, "public._tailrace_odd"), "the sink to refuse a name")
        execute(postgres_url, "ALTER TABLE _tailrace_odd RENAME TO odd")
        wait_until_same(pipeline, postgres_url, replica, *tables_after(1), seconds=90)
        execute(
            postgres_url,
            "INSERT INTO vacuumed VALUES (101, 101)",
            "UPDATE attached SET v = -v WHERE id = 1001",
            "UPDATE called_1 SET v = -v WHERE id < 5",
            "UPDATE shed_1 SET v = -v WHERE id < 305",
            "INSERT INTO odd VALUES (101, 101)",
            "UPDATE remade SET v = -1 WHERE id = 1",
            "UPDATE passed SET v = -1 WHERE id = 101",
        )
        wait_until_same(pipeline, postgres_url, replica, *tables_after(1))
        copies = pipeline.copies("public.remade")
        execute(postgres_url, "UPDATE remade SET v = -2 WHERE id = 2")
        wait_until_same(pipeline, postgres_url, replica, *tables_after(1))
        assert pipeline.copies("public.remade") == copies
        assert pipeline.copies("public.passed") == 2
        assert {pipeline.copies(table) for table in ("public.vacuumed", "public.calm")} == {1}
        assert pipeline.stop() == 0, pipeline.output

    execute(postgres_url, "ALTER TABLE pending DETACH PARTITION aside.pending_1 FINALIZE")
    rewrite(postgres_url, 2)
    pipeline = run_until_current(file)
    content.assert_same(content.sqlite_differences(postgres_url, replica, tables_after(2)))
    assert {pipeline.copies(table) for table in ("public.vacuumed", "public.calm")} == {0}
