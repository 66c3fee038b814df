"""Tables that get new files while they are read: their pages are not the planned ones, or hold nothing to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pytest

from support.pipelines import RunningPipeline, write_pipeline
from tailrace import config, failpoints
from tailrace.errors import SourceRefused
from tailrace.model.schema import TableSchema
from tailrace.sources.base import TableRewritten
from tailrace.sources.postgres.snapshot import Pages
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def source(postgres_url: str) -> Any:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1), (2, 2)")
    return PostgresSource(config.Pipeline("under_test", config.Source(postgres_url, ("public.items",)), {}))


@pytest.mark.parametrize("statement", ["TRUNCATE items", "ALTER TABLE items ALTER n TYPE bigint"])
def test_a_snapshot_that_can_not_see_the_rows_any_more_is_not_taken_for_an_empty_table(
    postgres_url: str, source: Any, statement: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        [schema] = source.tables() if source.prepare() else []
        with source.export_snapshot() as snapshot:
            assert sum(batch.num_rows for batch in source.read_all(schema, snapshot.id)) == 2
            connection.execute(statement.encode())
            [chunk] = source.plan_snapshot(schema, 65_536)
            with pytest.raises(TableRewritten):
                list(source.read_chunk(schema, chunk, snapshot.id))
            with pytest.raises(TableRewritten):
                list(source.read_all(schema, snapshot.id))
        source.drop()


def test_nothing_is_read_by_the_name_of_another_column(postgres_url: str, source: Any) -> None:
    [schema] = source.tables() if source.prepare() else []
    keys = pa.RecordBatch.from_pydict({"id": ["1"]})
    execute(postgres_url, "ALTER TABLE items RENAME TO x; CREATE TABLE items (LIKE x INCLUDING ALL)")
    with pytest.raises(SourceRefused, match=r"public\.items has other columns"):
        source.read_rows(schema, keys)
    execute(postgres_url, "DROP TABLE items; ALTER TABLE x RENAME TO items")
    with source.export_snapshot() as snapshot:
        [chunk] = source.plan_snapshot(schema, 65_536)
        assert sum(rows.num_rows for rows in source.read_chunk(schema, chunk, snapshot.id)) == 2
        assert source.read_rows(schema, keys).to_pylist() == [{"id": 1, "n": 1}]
        execute(postgres_url, "ALTER TABLE items RENAME n TO m; ALTER TABLE items ADD n int DEFAULT 5")
        with pytest.raises(TableRewritten):
            list(source.read_chunk(schema, chunk, snapshot.id))
        with pytest.raises(SourceRefused, match=r"public\.items has other columns") as caught:
            source.read_rows(schema, keys)
    assert caught.value.table == "public.items"
    source.drop()


def test_a_plan_is_not_of_another_table_that_has_the_name_for_a_time(postgres_url: str, source: Any) -> None:
    [schema] = source.tables() if source.prepare() else []
    execute(postgres_url, "CREATE TABLE others (id int PRIMARY KEY, n int)", "INSERT INTO others VALUES (3, 3)")
    exchange = "; ".join(
        f"ALTER TABLE {n} RENAME TO {m}" for n, m in [("items", "x"), ("others", "items"), ("x", "others")]
    )
    with source.export_snapshot() as snapshot:
        execute(postgres_url, exchange)
        [planned] = source.plan_snapshot(schema, 65_536)
        execute(postgres_url, exchange)
        [chunk] = source.plan_snapshot(schema, 65_536)
        assert planned.storage == chunk.storage
        for statement in (exchange, "DROP TABLE others"):
            execute(postgres_url, statement)
            with pytest.raises(TableRewritten):
                list(source.read_chunk(schema, chunk, snapshot.id))
        [chunk] = source.plan_snapshot(schema, 65_536)  # of one that is gone
        with pytest.raises(TableRewritten):
            list(source.read_chunk(schema, chunk, snapshot.id))
    source.drop()


def last_page(source: Any, schema: TableSchema) -> int:
    """The end of a plan."""
    return msgspec.json.decode(source.plan_snapshot(schema, 1 << 30)[-1].place, type=Pages).end


def test_a_plan_covers_all_pages_of_whatever_size_they_are(postgres_url: str, source: Any) -> None:
    """The size of a server's pages is built into it, so the server says another one than it has."""
    execute(
        postgres_url,
        "INSERT INTO items SELECT generate_series(1000, 9000)",
        "CREATE SCHEMA odd",
        "CREATE FUNCTION odd.current_setting(text) RETURNS text LANGUAGE sql AS"
        " $$ SELECT CASE $1 WHEN 'block_size' THEN '4096' ELSE pg_catalog.current_setting($1) END $$",
    )
    [schema] = source.tables() if source.prepare() else []
    pages = last_page(source, schema)
    execute(
        postgres_url,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = odd, pg_catalog', current_database()); END $$",
    )
    assert pages > 10
    assert last_page(source, schema) == 2 * pages
    source.drop()


def test_a_rewritten_table_is_copied_again_and_a_truncated_one_need_not_be(postgres_url: str, tmp_path: Path) -> None:
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    once = str(tmp_path / "once")
    armed = failpoints.environment("snapshot-planned", action="sleep=4", once=once)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for table in ("vacuumed", "truncated", "emptied", "exchanged", "left_alone"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, t text)".encode())
            connection.execute(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, 500) n".encode())
        with RunningPipeline(file, "--until-current", environment=armed) as pipeline:
            pipeline.wait_for(lambda: failpoints.fired("snapshot-planned", once), "the copy to be planned")
            connection.execute("UPDATE truncated SET t = 'updated' WHERE id < 10")
            connection.execute("TRUNCATE truncated, emptied")
            connection.execute("INSERT INTO truncated SELECT n, 'new' FROM generate_series(490, 600) n")
            connection.execute("DELETE FROM vacuumed WHERE id < 250")
            connection.execute("VACUUM FULL vacuumed")
            connection.execute("ALTER TABLE exchanged RENAME t TO u; ALTER TABLE exchanged ADD t text DEFAULT 'new'")
            assert pipeline.ended() == 0, pipeline.output

    content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
    copied = [event["table"] for event in pipeline.said("table") if event["state"] == "snapshot"]
    twice = ["public.exchanged", "public.vacuumed"]
    assert sorted(copied) == sorted(["public.emptied", "public.left_alone", "public.truncated", *twice, *twice])
