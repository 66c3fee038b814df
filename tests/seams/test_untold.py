"""What the stream does not tell, or tells under another name: none of it leaves a sink that is live and different.

One database, read by a role that owns nothing, through a publication of the whole schema that somebody else has made.
The role's own settings are as odd as can be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipelines import RunningPipeline, run_until_current, states, wait_until_same, write_pipeline
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

PUBLICATION = "tailrace_under_test"
PLAIN = ("plain", "renamed", "moved", "exchanged", "unlogged", "policed")
ODD_SETTINGS = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "search_path": "''",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "TimeZone": "'Asia/Kolkata'",
    "client_encoding": "LATIN1",
    "quote_all_identifiers": "on",
}


def create(url: str) -> None:
    execute(
        url,
        "CREATE SCHEMA aside",
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b int)" for table in PLAIN),
        "CREATE TABLE unlogged_large (id int PRIMARY KEY, a int, b text)",
        "CREATE TABLE rekeyed (id int PRIMARY KEY, a int, b int)",
        "ALTER TABLE rekeyed REPLICA IDENTITY FULL",
        "CREATE TABLE computed (id int PRIMARY KEY, a int, b int, c int GENERATED ALWAYS AS (a * 2) STORED)",
        "CREATE TABLE parted (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id)",
        "CREATE TABLE aside.parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE volatile (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id)",
        "CREATE TABLE aside.volatile_1 PARTITION OF volatile FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE twofold (id int PRIMARY KEY, a int NOT NULL, b int) PARTITION BY RANGE (id)",
        "CREATE TABLE aside.twofold_1 PARTITION OF twofold FOR VALUES FROM (0) TO (2000)",
        "CREATE UNIQUE INDEX twofold_a ON aside.twofold_1 (a)",
    )
    filled = (*PLAIN, "unlogged_large", "rekeyed", "computed", "parted", "volatile", "twofold")
    execute(url, *(f"INSERT INTO {table} SELECT n, n, -n FROM generate_series(1, 20) n" for table in filled))
    execute(
        url,
        "CREATE TABLE printed (id int PRIMARY KEY, d date, z timestamptz, i interval, y bytea, f float8, t text)",
        "INSERT INTO printed VALUES (1, '2020-02-03', '2020-02-03 04:05:06.7+05:30', '1 mon 2 days 03:04:05.6',"
        r" '\x005c27ff', 0.1::float8 + 0.2, E'b\\s''q ü€')",
        "CREATE ROLE reader LOGIN REPLICATION",
        "GRANT USAGE ON SCHEMA public, aside TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public, aside TO reader",
        *(f"ALTER ROLE reader SET {name} = {value}" for name, value in ODD_SETTINGS.items()),
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)",
    )


def hide(url: str, number: int) -> None:
    """Each table is itself again at the end of a transaction, in which it got a row that is not streamed as its own."""
    row = f"VALUES (100 + {number}, {number}, 1)"
    execute(
        url,
        f"ALTER TABLE renamed RENAME TO other; INSERT INTO other {row}; ALTER TABLE other RENAME TO renamed",
        f"ALTER TABLE moved SET SCHEMA aside; INSERT INTO aside.moved {row}; ALTER TABLE aside.moved SET SCHEMA public",
        f"{exchange()}; INSERT INTO exchanged (id, a, b) {row}; {exchange()}",
        f"ALTER TABLE unlogged SET UNLOGGED; INSERT INTO unlogged {row}; ALTER TABLE unlogged SET LOGGED",
        f"ALTER TABLE unlogged_large SET UNLOGGED; INSERT INTO unlogged_large {row};"
        " ALTER TABLE unlogged_large SET LOGGED",
        f"ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey; INSERT INTO rekeyed VALUES ({number}, 777);"
        f" DELETE FROM rekeyed WHERE id = {number} AND a = 777; ALTER TABLE rekeyed ADD PRIMARY KEY (id)",
    )


def exchange() -> str:
    """Two columns that change names."""
    names = ("a TO c", "b TO a", "c TO b")
    return "; ".join(f"ALTER TABLE exchanged RENAME {name}" for name in names)


def break_tables(url: str) -> None:
    """From now on the stream lacks changes of these tables, or a copy of them lacks rows."""
    execute(
        url,
        "ALTER TABLE aside.volatile_1 SET UNLOGGED",
        "ALTER TABLE aside.twofold_1 REPLICA IDENTITY USING INDEX twofold_a",
        "UPDATE twofold SET id = id + 1000 WHERE id = 1",
        "CREATE TABLE aside.parted_2 PARTITION OF parted FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO parted VALUES (1500, 1, 1)",
        "ALTER TABLE policed ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON policed FOR SELECT TO reader USING (id < 5)",
        # what makes it copied again
        "ALTER TABLE policed ADD COLUMN c float8 DEFAULT random()",
    )


def mend_tables(url: str) -> None:
    execute(
        url,
        "INSERT INTO volatile VALUES (100, 1, 1)",
        "ALTER TABLE aside.volatile_1 SET LOGGED",
        "ALTER TABLE aside.twofold_1 REPLICA IDENTITY DEFAULT",
        "GRANT SELECT ON aside.parted_2 TO reader",
        "ALTER ROLE reader BYPASSRLS",
        f"ALTER PUBLICATION {PUBLICATION} SET (publish = 'insert, update, delete, truncate')",
    )


def wait_until_failed(pipeline: RunningPipeline, **reasons: str) -> None:
    """Until each of these tables is set aside for its reason."""

    def is_so() -> bool:
        said = [(each["table"], each["reason"]) for each in pipeline.said("table") if each["state"] == "failed"]
        return all(
            any(table == f"public.{name}" and words in reason for table, reason in said)
            for name, words in reasons.items()
        )

    pipeline.wait_for(is_so, "tables to fail", seconds=60)


def test_what_the_stream_does_not_tell_is_copied_again_or_sets_its_table_aside(tmp_path: Path) -> None:
    """While the pipeline runs, and while it does not. Tables that are sound stay live all the time."""
    replica = tmp_path / "replica.db"
    with requires(PostgresServer.start, version=16, settings=FAST) as server:
        create(server.url)
        reader = server.url.replace("postgres@", "reader@")
        file = write_pipeline(tmp_path, reader, {"replica": f"sqlite:///{replica}"}, tables=["public.*"])
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live(*(f"public.{table}" for table in PLAIN), "public.twofold", "public.printed")
            hide(server.url, 1)
            execute(
                server.url,
                "ALTER TABLE computed ALTER COLUMN c DROP EXPRESSION",
                "INSERT INTO printed SELECT 2, d, z, i, y, f, t FROM printed",
            )
            wait_until_same(pipeline, server.url, replica, seconds=60)

            break_tables(server.url)
            wait_until_failed(
                pipeline, volatile="unlogged", twofold="identity", parted="permission", policed="row-level security"
            )
            execute(server.url, "INSERT INTO plain VALUES (500, 5, 5)")
            wait_until_same(pipeline, server.url, replica, "public.plain")
            assert pipeline.copies("public.plain") == 1
            execute(server.url, f"ALTER PUBLICATION {PUBLICATION} SET (publish = 'insert')")
            wait_until_failed(pipeline, plain="does not publish truncate, update, delete")

            mend_tables(server.url)
            wait_until_same(pipeline, server.url, replica, seconds=60)
            assert pipeline.stop() == 0, pipeline.output

        hide(server.url, 2)
        run_until_current(file)
        content.assert_same(content.sqlite_differences(server.url, replica))
        assert {state for state, _ in states(file).values()} == {"live"}
