"""Publishing must never break the source's own writers, nor send what nobody asked for."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.pipelines import Replica, RunningPipeline, position_of, write_pipeline
from tailrace import config
from tailrace.errors import SourceRefused
from tailrace.pipeline.preflight import raise_if_failing
from tailrace.sources.base import Finding, Level
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

NAME = "shop"
MAIN, INSERTS = "tailrace_shop", "tailrace_shop_inserts"
_numbers = count(1)

SAFE = {
    "keyed": "CREATE TABLE keyed (id int PRIMARY KEY, n int)",
    "whole": "CREATE TABLE whole (id int, n int); ALTER TABLE whole REPLICA IDENTITY FULL",
    "chosen": "CREATE TABLE chosen (id int NOT NULL CONSTRAINT chosen_k UNIQUE, n int);"
    " ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_k",
    "spread": "CREATE TABLE spread (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
    " CREATE TABLE spread_1 PARTITION OF spread FOR VALUES FROM (0) TO (10)",
}
UNSAFE = {
    "bare": "CREATE TABLE bare (id int, n int)",
    "nothing": "CREATE TABLE nothing (id int PRIMARY KEY, n int); ALTER TABLE nothing REPLICA IDENTITY NOTHING",
    "late": "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, n int)",
    "gone": "CREATE TABLE gone (id int NOT NULL CONSTRAINT gone_k UNIQUE, n int);"
    " ALTER TABLE gone REPLICA IDENTITY USING INDEX gone_k; ALTER TABLE gone DROP CONSTRAINT gone_k",
    "split": "CREATE TABLE split (id int, n int) PARTITION BY RANGE (id);"
    " CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (n);"
    " CREATE TABLE split_1_1 PARTITION OF split_1 FOR VALUES FROM (0) TO (10);"
    " CREATE TABLE split_2 PARTITION OF split FOR VALUES FROM (10) TO (20);"
    " ALTER TABLE split_2 REPLICA IDENTITY FULL",
}
GENERATED = {
    "summed": "CREATE TABLE summed (id int, n int, s int GENERATED ALWAYS AS (n + 1) STORED);"
    " ALTER TABLE summed REPLICA IDENTITY FULL"
}
CHILD = {"heir": "CREATE TABLE heir () INHERITS (keyed)"}


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, version=request.param, settings=FAST) as started:
        yield started


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    name = f"publishing_{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


def rows(url: str, query: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def source_of(url: str, *tables: str, name: str = NAME, **settings: Any) -> PostgresSource:
    return PostgresSource(config.Pipeline(name, config.Source(url, tables or ("public.*",), own=settings), {}))


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., PostgresSource]]:
    """A source of this database; its slot is gone afterwards."""
    yield lambda *tables, **settings: source_of(url, *tables, **settings)
    source_of(url).drop()


def members(url: str, publication: str) -> set[str]:
    query = """SELECT c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_class c ON c.oid = r.prrelid WHERE p.pubname = %s"""
    return {name for (name,) in rows(url, query, publication)}


def write(url: str, table: str) -> None:
    """What an application does."""
    execute(
        url,
        f"INSERT INTO {table} (id, n) VALUES (1, 1), (2, 2)",
        f"UPDATE {table} SET n = n + 1 WHERE id = 1",
        f"DELETE FROM {table} WHERE id = 2",
    )


def never(_: str) -> bool:
    return False


def always(_: str) -> bool:
    return True


def test_the_application_s_writes_go_on_whatever_identity_its_tables_have(url: str, make: Any) -> None:
    tables = SAFE | UNSAFE | GENERATED | CHILD
    execute(url, *tables.values())
    source = make("public.*", "!public.heir")
    source.prepare()
    for table in tables:
        write(url, table)
    is_strict = rows(url, "SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]
    unsafe = set(UNSAFE) | (set(GENERATED) if is_strict else set())
    assert members(url, INSERTS) == unsafe
    assert members(url, MAIN) == tables.keys() - unsafe - {"heir"}
    assert {schema.name for schema in source.tables()} == tables.keys() - {"heir"}
    assert rows(url, "SELECT pubviaroot FROM pg_publication") == [(True,), (True,)]


def test_a_table_moves_when_its_identity_comes_or_goes(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], UNSAFE["bare"])
    source = make()
    source.prepare()
    assert source.publish(always) == source.publish(never)
    assert not source.publish(never).changed
    execute(url, "ALTER TABLE keyed DROP CONSTRAINT keyed_pkey", "ALTER TABLE bare ADD PRIMARY KEY (id)")
    assert source.publish(always).moved == ("public.bare", "public.keyed")
    assert (members(url, MAIN), members(url, INSERTS)) == ({"bare"}, {"keyed"})
    write(url, "keyed")
    write(url, "bare")
    assert not source.publish(always).changed


def test_a_new_table_is_added_once_and_one_that_was_taken_out_on_purpose_is_not(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"])
    source = make()
    source.prepare()
    execute(url, SAFE["spread"], UNSAFE["bare"], f"ALTER PUBLICATION {MAIN} DROP TABLE keyed")
    assert source.publish(lambda table: table == "public.keyed").added == ("public.bare", "public.spread")
    assert (members(url, MAIN), members(url, INSERTS)) == ({"spread"}, {"bare"})


def test_a_table_that_is_excluded_later_leaves_the_publication(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], SAFE["whole"], UNSAFE["bare"], UNSAFE["late"])
    make().prepare()
    make("public.*", "!public.whole", "!public.bare").prepare()
    assert (members(url, MAIN), members(url, INSERTS)) == ({"keyed"}, {"late"})


def test_a_publication_that_somebody_else_made_loses_no_table(url: str, make: Any) -> None:
    execute(url, *SAFE.values(), UNSAFE["bare"], "CREATE PUBLICATION theirs FOR TABLE whole, keyed, bare")
    source = make("public.keyed", "public.chosen", publication="theirs")
    source.prepare()
    assert members(url, "theirs") == {"whole", "keyed", "bare", "chosen"}
    source.drop()


def test_what_can_not_be_published_without_harm_is_left_out_and_said(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], UNSAFE["bare"], f"CREATE PUBLICATION {MAIN} FOR TABLE keyed")
    execute(url, f"SELECT pg_create_logical_replication_slot('{MAIN}', 'pgoutput')")
    source = make(create=False)
    source.prepare()
    assert [schema.table for schema in source.tables()] == ["public.keyed"]
    found = [finding for finding in source.preflight() if finding.level is not Level.OK]
    assert [finding.level for finding in found] == [Level.WARN]
    assert "(public.bare): left out: publishing" in found[0].message
    write(url, "bare")
    alone = make("public.bare", create=False)
    assert any(f.level is Level.FAIL and "is left to capture" in f.message for f in alone.preflight())


def test_a_moved_table_keeps_its_column_list_and_row_filter(url: str, make: Any) -> None:
    execute(url, "CREATE TABLE people (id int PRIMARY KEY, n int, secret text)")
    source = make()
    source.prepare()
    execute(
        url,
        f"ALTER PUBLICATION {MAIN} SET TABLE people (id, n) WHERE (id > 5)",
        "ALTER TABLE people DROP CONSTRAINT people_pkey",
    )
    assert source.publish(always).moved == ("public.people",)
    [(names, kept)] = rows(url, "SELECT attnames, rowfilter FROM pg_publication_tables WHERE pubname = %s", INSERTS)
    assert (names, kept) == (["id", "n"], "(id > 5)")


def test_a_locked_table_holds_up_nobody_and_is_published_later(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"])
    source = make()
    source.prepare()  # a new slot would wait for everybody who holds such a lock
    execute(url, SAFE["whole"], UNSAFE["bare"])
    with psycopg.connect(url) as owner:
        owner.execute("LOCK TABLE whole, bare IN ACCESS EXCLUSIVE MODE")
        source.prepare()
        assert [schema.table for schema in source.tables()] == ["public.keyed"]
        found = source.publish(never)
        assert (found.waiting, found.changed) == (("public.bare", "public.whole"), ())
        owner.rollback()
    assert source.publish(never).added == ("public.bare", "public.whole")


def test_one_who_may_not_publish_is_told_what_the_owner_has_to_run(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], UNSAFE["bare"])
    with pytest.raises(SourceRefused, match=r"source\.create is off") as caught:
        make(create=False).prepare()
    assert "bare" not in str(caught.value.hint)


def test_drop_removes_both_publications(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], UNSAFE["bare"])
    source = make()
    source.prepare()
    assert source.drop() == [f"replication slot {MAIN}", f"publication {MAIN}", f"publication {INSERTS}"]
    assert rows(url, "SELECT FROM pg_publication") == []


def test_drop_leaves_a_publication_that_somebody_made_and_the_file_names(url: str) -> None:
    execute(url, SAFE["keyed"], UNSAFE["bare"], "CREATE PUBLICATION theirs FOR TABLE keyed")
    source = source_of(url, publication="theirs")
    source.prepare()
    assert source.drop() == [f"replication slot {MAIN}", "publication theirs_inserts"]
    assert rows(url, "SELECT pubname FROM pg_publication") == [("theirs",)]


def test_inserts_of_a_table_without_identity_are_captured_and_its_truncates(url: str, make: Any) -> None:
    execute(url, UNSAFE["bare"], SAFE["keyed"])
    source = make()
    start = source.prepare()
    write(url, "bare")
    execute(url, "TRUNCATE bare")
    target, changes = source.current_position(), Counter[str]()
    with closing(source.capture(start, 1, {})) as capture:
        while capture.pending_bytes or not source.reached(capture.received, target):
            capture.poll(0.05)
            if taken := capture.take():
                changes.update(taken[0].tables)
    assert changes == {"public.bare": 3}


def test_a_table_of_which_a_filter_takes_only_some_rows_can_not_be_followed(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], f"CREATE PUBLICATION {MAIN} FOR TABLE keyed WHERE (id > 5)")
    [filtered] = make().facts()
    assert "sends only those of its rows that a filter takes" in filtered.trouble
    execute(url, f"ALTER PUBLICATION {MAIN} SET TABLE keyed")
    [whole] = make().facts()
    assert whole.trouble == ""


@pytest.mark.parametrize(("type_", "better"), [("regproc", "regprocedure"), ("regoper[]", "regoperator[]")])
def test_a_table_whose_keys_can_read_the_same_can_not_be_followed(url: str, make: Any, type_: str, better: str) -> None:
    execute(url, f"CREATE TABLE named (id int, f {type_}, PRIMARY KEY (id, f))", SAFE["keyed"])
    source = make()
    source.prepare()
    assert {facts.schema.name for facts in source.facts() if "can read the same" in facts.trouble} == {"named"}
    execute(url, f"ALTER TABLE named ALTER COLUMN f TYPE {better}")
    assert {facts.trouble for facts in source.facts()} == {""}


@pytest.mark.parametrize("statement", ["LOCK TABLE second", "ALTER PUBLICATION tailrace_shop DROP TABLE keyed"])
def test_an_application_that_holds_what_we_wait_for_is_not_the_victim_of_a_deadlock(
    url: str, make: Any, statement: str
) -> None:
    """It holds one of the tables that are published together, or the publication, and then asks for another table."""
    execute(url, SAFE["keyed"], f"ALTER DATABASE {url.rpartition('/')[2]} SET deadlock_timeout = '10ms'")
    source = make()
    source.prepare()
    execute(url, *(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in ("first", "second", "third")))
    with psycopg.connect(url) as application, ThreadPoolExecutor(1) as pool:
        application.execute(statement.encode())
        publishing = pool.submit(source.publish, never)
        wait_until(lambda: bool(rows(url, "SELECT FROM pg_locks WHERE NOT granted")), seconds=10, what="our waiting")
        application.execute("LOCK TABLE first, third")
        application.commit()
        found = publishing.result()
    assert sorted((*found.added, *found.waiting)) == ["public.first", "public.second", "public.third"]
    assert source.publish(never).waiting == ()
    assert members(url, MAIN) >= {"first", "second", "third"}


def test_a_publication_that_comes_too_late_stops_the_capture_that_can_not_see_it(
    url: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows(url, "SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]:
        pytest.skip("from 18 on it is seen")
    monkeypatch.setattr("tailrace.sources.postgres.capture.LOOK_SECONDS", 0.0)
    execute(url, SAFE["keyed"], UNSAFE["bare"], f"CREATE PUBLICATION {MAIN} FOR TABLE keyed")
    execute(url, f"SELECT pg_create_logical_replication_slot('{MAIN}', 'pgoutput')")
    source = make(create=False)
    capture = source.capture(source.prepare(), 1, {})
    try:
        capture.take()
        execute(url, f"CREATE PUBLICATION {INSERTS} FOR TABLE bare WITH (publish = 'insert, truncate')")
        with pytest.raises(SourceRefused, match="while capture ran without it"):
            capture.take()
    finally:
        capture.close()


@pytest.mark.spark
def test_a_whole_run_takes_the_inserts_of_a_table_without_identity_and_does_not_end_without_a_locked_one(
    postgres_url: str, tmp_path: Path
) -> None:
    execute(postgres_url, SAFE["keyed"], UNSAFE["bare"], UNSAFE["split"], "INSERT INTO bare VALUES (7, 7)")
    replica = tmp_path / "replica.db"
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{replica}"})
    with RunningPipeline(file) as pipeline:
        pipeline.wait_until_live("public.keyed", "public.bare", "public.split")
        for table in ("keyed", "bare", "split"):
            write(postgres_url, table)
        end = position_of(postgres_url)
        pipeline.wait_for(lambda: Replica(file).has_reached(end), "what was written")
        assert pipeline.stop() == 0, pipeline.output
    with closing(sqlite3.connect(replica)) as copy:
        found = {t: copy.execute(f"SELECT id, n FROM {t} ORDER BY 1").fetchall() for t in ("keyed", "bare", "split")}
    assert found == {"keyed": [(1, 2)], "bare": [(1, 1), (2, 2), (7, 7)], "split": [(1, 1), (2, 2)]}

    execute(postgres_url, "CREATE TABLE late (id int PRIMARY KEY, n int)", "INSERT INTO late VALUES (1, 1)")
    with psycopg.connect(postgres_url) as owner, RunningPipeline(file, "--until-current") as pipeline:
        owner.execute("LOCK TABLE late IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM and CREATE INDEX CONCURRENTLY do
        locked = {"table": "public.late", "reason": "somebody holds a lock on it: it is tried again"}
        pipeline.wait_for(lambda: any(locked.items() <= e.items() for e in pipeline.said("not-published")), "the lock")
        owner.commit()
        assert pipeline.ended() == 0, pipeline.output
    with closing(sqlite3.connect(replica)) as copy:
        assert copy.execute("SELECT id, n FROM late").fetchall() == [(1, 1)]


def test_a_root_without_key_and_partitions_does_not_keep_the_application_from_its_first_partition(
    url: str, make: Callable[..., PostgresSource]
) -> None:
    """Nobody knows yet whether that one will have an identity; that of a keyed root will."""
    execute(
        url,
        "CREATE TABLE coming (id int, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE sure (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
    )
    make().prepare()
    assert (members(url, MAIN), members(url, INSERTS)) == ({"sure"}, {"coming"})
    for table in ("coming", "sure"):
        execute(url, f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (10)")
        write(url, table)


@pytest.fixture
def stranger(url: str) -> Iterator[str]:
    """The URL for a role that may replicate, read and make publications, and owns no table yet."""
    name = f"stranger_{url.rpartition('/')[2]}"
    execute(
        url,
        f"CREATE ROLE {name} LOGIN REPLICATION",
        f"GRANT pg_read_all_data TO {name}",
        f"GRANT CREATE ON DATABASE {url.rpartition('/')[2]} TO {name}",
    )
    yield make_conninfo(url, user=name)
    source_of(url).drop()
    execute(url, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def failures(source: PostgresSource) -> list[Finding]:
    return [finding for finding in source.preflight() if finding.level is Level.FAIL]


def owned(url: str, stranger: str, *tables: str) -> None:
    """Make tables, and give them to the role."""
    name = conninfo_to_dict(stranger)["user"]
    execute(url, *((SAFE | UNSAFE)[table] for table in tables), *(f"ALTER TABLE {t} OWNER TO {name}" for t in tables))


def test_tables_of_another_owner_hold_up_nobody_else_and_say_what_publishes_them(url: str, stranger: str) -> None:
    owned(url, stranger, "keyed")
    execute(url, SAFE["whole"], UNSAFE["bare"])
    source = source_of(stranger)
    [before] = failures(source)
    raise_if_failing([before])
    for _ in range(2):  # the first start, and the next one
        source.prepare()
    assert [schema.table for schema in source.tables()] == ["public.keyed"]
    found = source.publish(never)
    assert (found.changed, found.waiting, set(found.refused)) == ((), (), {"public.bare", "public.whole"})
    assert "our role does not own it" in found.refused["public.whole"]
    assert f'ALTER PUBLICATION "{MAIN}" ADD TABLE ONLY "public"."whole"' in found.refused["public.whole"]
    troubles = {facts.schema.table: facts.trouble for facts in source.facts(found.refused)}
    assert troubles == found.refused | {"public.keyed": ""}

    [finding] = failures(source)
    assert "public.bare, public.whole" in finding.message
    execute(url, finding.fix)
    assert failures(source) == []
    assert source.publish(never).refused == {}
    assert (members(url, MAIN), members(url, INSERTS)) == ({"keyed", "whole"}, {"bare"})


def test_a_table_is_published_once_its_owner_lends_us_the_privilege(url: str, stranger: str) -> None:
    owned(url, stranger, "keyed")
    source = source_of(stranger)
    source.prepare()
    name, owner = conninfo_to_dict(stranger)["user"], f"owner_{url.rpartition('/')[2]}"
    execute(url, f"CREATE ROLE {owner}", SAFE["whole"], f"ALTER TABLE whole OWNER TO {owner}")
    assert set(source.publish(never).refused) == {"public.whole"}
    execute(url, f"GRANT {owner} TO {name}")
    assert source.publish(never).added == ("public.whole",)
    execute(url, f"DROP OWNED BY {owner}", f"DROP ROLE {owner}")


def test_a_publication_that_we_may_not_alter_holds_up_only_the_tables_that_it_lacks(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], SAFE["whole"], f"CREATE PUBLICATION {MAIN} FOR TABLE keyed")
    execute(url, f"SELECT pg_create_logical_replication_slot('{MAIN}', 'pgoutput')")
    source = make(create=False)
    [finding] = failures(source)
    raise_if_failing([finding])
    source.prepare()
    assert "source.create is off" in source.publish(never).refused["public.whole"]
    assert source.publish(always).refused == {}  # somebody took it out
    execute(url, finding.fix)
    assert failures(source) == []
    assert source.publish(never).refused == {}


def test_where_no_table_can_be_published_the_start_is_refused(url: str, stranger: str) -> None:
    execute(url, SAFE["keyed"], SAFE["whole"])
    source = source_of(stranger)
    for _ in range(2):  # without a publication, and with an empty one of ours
        with pytest.raises(SourceRefused, match="owner"):
            raise_if_failing(failures(source))
        with pytest.raises(SourceRefused, match="lacks 2 tables"):
            source.prepare()
    assert rows(url, "SELECT FROM pg_replication_slots WHERE slot_name = %s", MAIN) == []


def comments(url: str) -> dict[str, str | None]:
    return dict(rows(url, "SELECT pubname, obj_description(oid, 'pg_publication') FROM pg_publication"))


def test_a_publication_of_one_pipeline_is_refused_to_another_and_survives_its_drop(url: str) -> None:
    execute(url, SAFE["keyed"], SAFE["whole"], UNSAFE["bare"])
    first = source_of(url, "public.keyed", "public.bare", publication="shared")
    first.prepare()
    for name in first.publications:
        second = source_of(url, "public.whole", name="other", publication=name)
        [finding] = failures(second)
        assert f"the publication {name} belongs to the pipeline {NAME} (slot {MAIN})" in finding.message
        assert "source.publication" in finding.fix
        with pytest.raises(SourceRefused, match=f"belongs to the pipeline {NAME}"):
            second.prepare()
        assert not second.publish(never).changed
        assert second.drop() == []
    assert (members(url, "shared"), members(url, "shared_inserts")) == ({"keyed"}, {"bare"})
    assert failures(first) == []
    first.prepare()
    assert first.drop() == [f"replication slot {MAIN}", "publication shared", "publication shared_inserts"]


def test_a_publication_that_somebody_made_may_be_read_by_two_pipelines(url: str) -> None:
    execute(url, SAFE["keyed"], SAFE["whole"], UNSAFE["bare"], "CREATE PUBLICATION theirs FOR TABLE keyed, whole")
    first = source_of(url, "public.keyed", publication="theirs")
    second = source_of(url, "public.whole", "public.bare", name="other", publication="theirs")
    for source in (first, second, first):
        assert failures(source) == []
        source.prepare()
    assert (members(url, "theirs"), members(url, "theirs_inserts")) == ({"keyed", "whole"}, set())
    assert "not ours to alter" in second.publish(never).refused.get("public.bare", "")
    assert second.drop() == ["replication slot tailrace_other"]
    assert first.drop() == [f"replication slot {MAIN}", "publication theirs_inserts"]


def test_a_publication_of_an_earlier_version_becomes_the_first_pipeline_s_that_starts(url: str) -> None:
    execute(url, SAFE["keyed"])
    first = source_of(url, publication="shared")
    first.prepare()
    named = comments(url)
    execute(
        url,
        "COMMENT ON PUBLICATION shared IS 'made by tailrace'",
        "COMMENT ON PUBLICATION shared_inserts IS 'made by tailrace; ask Ann'",
    )
    assert failures(first) == []
    first.prepare()
    assert comments(url) == {"shared": named["shared"], "shared_inserts": f"{named['shared_inserts']}; ask Ann"}
    second = source_of(url, name="other", publication="shared")
    with pytest.raises(SourceRefused, match=f"belongs to the pipeline {NAME}"):
        raise_if_failing(failures(second))
    first.drop()


def test_a_pipeline_with_a_new_name_keeps_the_publication_by_its_slot(url: str) -> None:
    execute(url, SAFE["keyed"])
    source_of(url, publication="shared", slot="kept").prepare()
    renamed = source_of(url, name="store", publication="shared", slot="kept")
    assert failures(renamed) == []
    renamed.prepare()
    assert all("pipeline store," in str(comment) for comment in comments(url).values())
    renamed.drop()


def test_a_publication_whose_pipeline_is_gone_can_be_taken_over_by_the_statement(url: str) -> None:
    execute(url, SAFE["keyed"])
    first = source_of(url, publication="shared")
    first.prepare()
    first.drop_slot()
    second = source_of(url, name="other", publication="shared")
    [finding] = failures(second)
    execute(url, finding.fix.partition("run: ")[2])
    second.prepare()
    second.drop()


def test_a_pipeline_that_alters_nothing_may_read_from_another_s_publication(url: str, make: Any) -> None:
    execute(url, SAFE["keyed"], "SELECT pg_create_logical_replication_slot('reading', 'pgoutput')")
    make().prepare()
    reader = source_of(url, name="other", publication=MAIN, slot="reading", create=False)
    assert failures(reader) == []
    reader.prepare()
    execute(url, "SELECT pg_drop_replication_slot('reading')")
