"""Our sessions: timeouts of a role or a database do not end them, and a lock of others does not hang them."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from support.pipelines import RunningPipeline, tailrace, write_pipeline
from tailrace import config
from tailrace.errors import SourceRefused, SourceUnavailable
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.pipeline import preflight, status
from tailrace.sinks.sql.mysql.flavor import MYSQL
from tailrace.sinks.sql.mysql.session import MySqlSession
from tailrace.sinks.sql.postgres.session import PostgresSession
from tailrace.sources.base import TableLocked
from tailrace.sources.postgres import snapshot
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

IMPATIENT = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "lock_timeout")
_numbers = count(1)


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, version=request.param, settings=FAST) as started:
        yield started


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    name = f"sessions_{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


def source_of(url: str, *tables: str) -> Any:
    return PostgresSource(config.Pipeline("under_test", config.Source(url, tables or ("public.*",)), {}))


def make_impatient(url: str, milliseconds: int) -> None:
    """Whatever sessions of this database do not say otherwise ends after a moment."""
    with psycopg.connect(url, autocommit=True) as connection:
        names = [*IMPATIENT, *(["transaction_timeout"] if connection.info.server_version >= 170000 else [])]
        for name in names:
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {name} = {milliseconds}".encode())


def idle(seconds: float) -> None:
    """The one place where time itself is what is tested."""
    time.sleep(seconds)


def test_what_is_refused_at_the_start_and_may_pass_is_tried_again_later_on(server: PostgresServer, url: str) -> None:
    role = f"narrow_{next(_numbers)}"
    execute(url, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    for unusable in ("postgresql://postgres@no-such-host.invalid/shop", server.url_of("postgres", role)):
        with pytest.raises(SourceRefused) as caught:
            source_of(unusable).facts()
        assert caught.value.retry
        assert pickle.loads(pickle.dumps(caught.value)).retry
    with pytest.raises(SourceRefused) as caught:
        source_of(server.url_of("no_such_database")).facts()
    assert not caught.value.retry


def test_a_database_that_ends_idle_sessions_does_not_end_ours(url: str) -> None:
    execute(url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1), (2)")
    make_impatient(url, 100)
    source = source_of(url)
    try:
        capture = source.capture(source.prepare(), 1, {})
        with source.export_snapshot() as held, closing(PostgresSession(url)) as session:
            session.begin()
            session.execute("SELECT 1")
            idle(0.5)
            assert session.execute("SELECT pg_sleep(0.3)::text") == [("",)]
            [schema] = source.tables()
            [chunk] = source.plan_snapshot(schema, 65_536)
            assert sum(batch.num_rows for batch in source.read_chunk(schema, chunk, held.id)) == 2
            execute(url, "INSERT INTO items VALUES (3)")
            end = source.current_position()
            changes = Counter[str]()
            while capture.pending_bytes or not source.reached(capture.received, end):
                capture.poll(0.05)
                if taken := capture.take():
                    changes.update(taken[0].tables)
            assert changes == {"public.items": 1}
        capture.close()
    finally:
        source.drop()


@pytest.mark.parametrize("flavor", ["mysql_url", "mariadb_url"])
def test_a_server_that_ends_idle_sessions_does_not_end_those_of_a_mysql_sink(
    request: pytest.FixtureRequest, flavor: str
) -> None:
    url = request.getfixturevalue(flavor)
    with closing(MySqlSession(url, MYSQL)) as session:
        names = ("wait_timeout", "net_read_timeout", "net_write_timeout")
        found = {name: int(session.execute(f"SELECT @@SESSION.{name}")[0][0]) for name in names}
        assert min(found.values()) >= 600, found
        ending = "max_statement_time" if flavor == "mariadb_url" else "max_execution_time"
        assert float(session.execute(f"SELECT @@SESSION.{ending}")[0][0]) == 0


@pytest.mark.parametrize("flavor", ["mysql_url", "mariadb_url"])
def test_limits_that_a_server_gives_to_its_clients_do_not_cut_what_a_mysql_sink_reads(
    request: pytest.FixtureRequest, flavor: str
) -> None:
    url = request.getfixturevalue(flavor)
    with closing(MySqlSession(url, MYSQL)) as owner:
        owner.execute("SET GLOBAL sql_select_limit = 1, GLOBAL sql_safe_updates = 1")
        try:
            with closing(MySqlSession(url, MYSQL)) as session:
                assert len(session.execute("SELECT 1 UNION ALL SELECT 2")) == 2
                assert session.execute("SELECT @@SESSION.sql_safe_updates, @@SESSION.completion_type")[0][0] == 0
        finally:
            owner.execute(f"SET GLOBAL sql_select_limit = {2**64 - 1}, GLOBAL sql_safe_updates = 0")


def test_a_snapshot_whose_holder_is_gone_is_worth_another_try(url: str) -> None:
    execute(url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    source = source_of(url)
    source.prepare()
    [schema] = source.tables()
    [chunk] = source.plan_snapshot(schema, 65_536)
    try:
        with source.export_snapshot() as held:
            query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
            with psycopg.connect(url, autocommit=True) as killer:
                assert killer.execute(query, ["tailrace snapshot"]).fetchall() == [(True,)]
            with pytest.raises(SourceUnavailable, match="is gone"):
                list(source.read_chunk(schema, chunk, held.id))
            with pytest.raises(SourceUnavailable, match="is gone"):
                list(source.read_all(schema, held.id))
    finally:
        source.drop()


@contextmanager
def locked(url: str, *tables: str) -> Iterator[None]:
    """An ACCESS EXCLUSIVE lock, as ALTER TABLE takes it, by a transaction that has written."""
    with psycopg.connect(url) as owner:
        for table in tables:
            owner.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        owner.rollback()


def in_time(work: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `work` returns or raises; fails when it hangs, without hanging itself."""
    found: dict[str, Any] = {}

    def run() -> None:
        try:
            found["value"] = work()
        except Exception as error:
            found["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    if "error" in found:
        raise found["error"]
    return found["value"]


def test_nothing_but_the_copy_of_the_locked_table_waits_for_its_lock(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "LOCK_SECONDS", 1.0)
    execute(
        url,
        "CREATE TABLE items (id int PRIMARY KEY)",
        "CREATE TABLE filtered (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE calm (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT * FROM items",
    )
    settings = config.Source(url, ("public.*", "public.no_such_*"))
    sinks = {"replica": config.Sink(f"sqlite:///{tmp_path}/replica.db")}
    pipeline = config.Pipeline("under_test", settings, sinks, state=str(tmp_path / "state"))
    source: Any = PostgresSource(pipeline)
    start = source.prepare()
    execute(url, "ALTER PUBLICATION tailrace_under_test DROP TABLE filtered")
    execute(url, "ALTER PUBLICATION tailrace_under_test ADD TABLE filtered WHERE (id > 5)")
    schemas = {schema.name: schema for schema in source.tables()}
    try:
        with locked(url, "items", "filtered", "parted", "parted_1", "seen"):
            for work in (
                lambda: preflight.check(pipeline),
                source.identify,
                source.prepare,
                source.tables,
                source.facts,
                source.current_position,
                lambda: source.publish(lambda _: False),
                lambda: status.read(pipeline),
                lambda: source.capture(start, 1, {}).close(),
                lambda: source.absence(schemas["items"]),
                lambda: source.plan_snapshot(schemas["calm"], 65_536),
            ):
                in_time(work)
            for name in ("items", "parted"):
                with pytest.raises(TableLocked, match=f"public.{name} is locked"):
                    in_time(lambda name=name: source.plan_snapshot(schemas[name], 65_536))
                with source.export_snapshot() as held, pytest.raises(TableLocked):
                    in_time(lambda name=name, held=held: list(source.read_all(schemas[name], held.id)))
    finally:
        source.drop()


def test_a_key_with_nulls_in_it_is_found_whatever_a_database_says_of_them(url: str) -> None:
    words = Column("k", ColumnType(Kind.ARRAY, "text[]", element=ColumnType(Kind.TEXT, "text")))
    schema = TableSchema("public", "items", (words,), ("k",))
    execute(url, "CREATE TABLE items (k text[] PRIMARY KEY)", "INSERT INTO items VALUES ('{NULL,a}')")
    execute(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET array_nulls = off")
    found = snapshot.read_rows(url, schema, pa.RecordBatch.from_pydict({"k": ["{NULL,a}"]}))
    assert found.num_rows == 1


@pytest.mark.spark
def test_a_whole_run_and_its_verify_pass_by_a_lock_and_a_database_that_is_impatient(
    postgres_url: str, tmp_path: Path
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO items SELECT generate_series(1, 20000)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE aside (id int PRIMARY KEY)",
    )
    file = write_pipeline(
        tmp_path,
        postgres_url,
        {"replica": f"sqlite:///{tmp_path}/replica.db"},
        tables=["public.*", "!public.aside"],
        source={"snapshot": {"chunk_bytes": 65536}},
    )
    source_of(postgres_url, "public.*", "!public.aside").prepare()  # a new slot would wait for the lock's holder
    with RunningPipeline(file) as pipeline:
        with locked(postgres_url, "other", "aside"):
            make_impatient(postgres_url, 200)
            pipeline.wait_until_live("public.items")
            assert "public.other" not in {e["table"] for e in pipeline.said("table") if e["state"] == "live"}
            assert in_time(lambda: tailrace("check", file), 120).returncode == 0
            found = in_time(lambda: tailrace("status", file), 120)
            assert found.returncode == 0
        pipeline.wait_until_live("public.other")
        with psycopg.connect(postgres_url) as owner:
            names = [[*IMPATIENT, "transaction_timeout"]]
            owner.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY (%s)", names)
            owner.commit()
            owner.execute("LOCK TABLE other, aside IN ACCESS EXCLUSIVE MODE")
            found = in_time(lambda: tailrace("verify", file), 240)
            owner.rollback()
        assert found.returncode == 1, found.stdout + found.stderr
        lines = {line.split()[1]: line for line in found.stdout.splitlines()[1:]}
        assert "yes" in lines["public.items"], found.stdout + found.stderr
        assert "is locked" in found.stdout
        assert pipeline.stop() == 0, pipeline.output
    make_impatient(postgres_url, 0)  # with us, who compare
    content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db", tables=["public.items"]))
