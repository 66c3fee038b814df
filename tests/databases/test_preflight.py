"""What a preflight finds: each shown by a server that is so, and mended by the finding's own fix where SQL can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace import config
from tailrace.config import TablePatterns
from tailrace.errors import PositionLost, SourceRefused, SourceUnavailable
from tailrace.pipeline import preflight as pipeline_preflight
from tailrace.sources.base import Finding, Level
from tailrace.sources.postgres import preflight
from tailrace.sources.postgres.connection import connect
from tailrace.sources.postgres.settings import PostgresSettings
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires

PUBLICATION = "tailrace_shop"
SHOP = "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE items (id int PRIMARY KEY)"

pytestmark = pytest.mark.server


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


def slot_of(url: str) -> str:
    return f"slot_of_{conninfo_to_dict(url)['dbname']}"


def check(url: str, *tables: str, slot: str | None = None, **settings: Any) -> list[Finding]:
    patterns = TablePatterns(tables or ("public.*",))
    return preflight.check(url, slot or slot_of(url), PUBLICATION, patterns, PostgresSettings(**settings))


def only(findings: list[Finding], level: Level) -> Finding:
    found = [finding for finding in findings if finding.level is level]
    assert len(found) == 1, found
    return found[0]


def failing(findings: list[Finding]) -> Finding:
    """The one failure among findings."""
    return only(findings, Level.FAIL)


def warning(findings: list[Finding]) -> Finding:
    """The one warning, where nothing fails."""
    assert levels(findings) <= {Level.OK, Level.WARN}, findings
    return only(findings, Level.WARN)


def levels(findings: list[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def messages(findings: list[Finding], subject: str) -> list[str]:
    return [finding.message for finding in findings if finding.subject == subject]


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, SHOP)
    return postgres_url


@pytest.fixture
def role(url: str) -> Iterator[str]:
    """The URL of the same database for a new role that may replicate and read, and owns nothing."""
    name = f"reader_{conninfo_to_dict(url)['dbname']}"
    execute(
        url,
        f"CREATE ROLE {name} LOGIN REPLICATION; GRANT pg_read_all_data TO {name};"
        f" CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    yield make_conninfo(url, user=name)
    execute(url, f"DROP OWNED BY {name}; DROP ROLE {name}")


def name_of(role: str) -> str:
    return str(conninfo_to_dict(role)["user"])


@contextmanager
def server(**settings: object) -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, settings=FAST | settings) as started:
        execute(started.url, SHOP)
        yield started


# --- connection and server ---


def test_a_sound_server_has_nothing_but_ok(url):
    found = check(url)
    assert levels(found) == {Level.OK}
    assert messages(found, "server")[0].startswith("PostgreSQL 1")
    assert messages(found, "role") == ["postgres is a superuser"]
    assert messages(found, "slot") == [f"{slot_of(url)} does not exist yet: it will be created"]
    assert messages(found, "publication") == [f"{PUBLICATION} does not exist yet: it will be created for 2 tables"]
    assert messages(found, "tables") == ["2 tables: ok"]


def test_a_preflight_changes_nothing(url):
    check(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        assert connection.execute(query, [slot_of(url)]).fetchone() == (0,)


def test_a_server_that_is_not_there_is_one_finding(url):
    found = check(make_conninfo(url, port=1))
    assert [finding.subject for finding in found] == ["server"]
    assert "cannot connect to PostgreSQL at 127.0.0.1:1/" in found[0].message
    assert "host and port" in found[0].fix
    with pytest.raises(SourceUnavailable):
        pipeline_preflight.raise_if_failing(found)


def test_a_missing_database_is_one_finding(url):
    found = check(make_conninfo(url, dbname="nowhere"), slot="any")
    assert [finding.subject for finding in found] == ["server"]
    assert 'database "nowhere" does not exist' in found[0].message
    with pytest.raises(SourceRefused):
        pipeline_preflight.raise_if_failing(found)


def test_a_wrong_password_is_one_finding_without_the_password():
    with requires(PostgresServer.start, settings=FAST, password="right") as started:
        found = check(started.url_of("postgres", password="wrong-secret"))
        assert [finding.subject for finding in found] == ["server"]
        assert "password authentication failed" in found[0].message
        assert "wrong-secret" not in str(found)
        assert "password" in found[0].fix


def test_a_server_that_admits_nobody_gets_its_own_fix():
    with server() as started:
        (started.folder / "data" / "pg_hba.conf").write_text("local all all trust\n")
        started.restart()
        (finding,) = check(started.url)
        assert "no pg_hba.conf entry" in finding.message
        assert "pg_hba.conf" in finding.fix


def test_wal_level_replica_is_named_with_its_fix():
    with server(wal_level="replica") as started:
        finding = failing(check(started.url))
        assert finding.subject == "wal_level"
        assert finding.message == "wal_level is replica and must be logical"
        assert finding.fix == "ALTER SYSTEM SET wal_level = logical; then restart the server"
        execute(started.url, finding.fix.partition(";")[0])
        started.restart()
        assert levels(check(started.url)) == {Level.OK}


def test_a_standby_is_refused_and_nothing_else_is_asked_of_it():
    with server() as started:
        (started.folder / "data" / "standby.signal").touch()
        started.restart()
        found = check(started.url)
        assert "is a standby" in failing(found).message
        assert "primary" in failing(found).fix
        assert not messages(found, "slot")


def test_settings_that_endanger_the_slot_are_warnings_with_their_figures():
    timeouts = {"wal_sender_timeout": "2s", "idle_replication_slot_timeout": "1h", "synchronous_standby_names": "*"}
    with server(max_slot_wal_keep_size="512MB", synchronous_commit="local", **timeouts) as started:
        found = check(started.url)
        warnings = {finding.subject: finding for finding in found if finding.level is Level.WARN}
        assert set(warnings) == {"max_slot_wal_keep_size", *timeouts}
        assert "at most 512MB" in warnings["max_slot_wal_keep_size"].message
        assert "2s is short" in warnings["wal_sender_timeout"].message
        assert "not read for 1h" in warnings["idle_replication_slot_timeout"].message
        for subject in ("max_slot_wal_keep_size", "wal_sender_timeout", "idle_replication_slot_timeout"):
            for statement in filter(None, warnings[subject].fix.split("; ")):
                execute(started.url, statement)
        assert {f.subject for f in check(started.url) if f.level is Level.WARN} == {"synchronous_standby_names"}


def test_a_database_without_an_encoding_is_refused(postgres_server):
    postgres_server.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    try:
        execute(postgres_server.url_of("ascii"), SHOP)
        assert failing(check(postgres_server.url_of("ascii"))).subject == "encoding"
    finally:
        postgres_server.drop_database("ascii")


def test_another_encoding_is_converted(postgres_server):
    postgres_server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    try:
        execute(postgres_server.url_of("latin"), SHOP)
        found = check(postgres_server.url_of("latin"))
        assert levels(found) == {Level.OK}
        assert messages(found, "encoding") == ["LATIN1, converted to UTF8 by the server"]
    finally:
        postgres_server.drop_database("latin")


# --- role, slots, senders ---


def test_a_role_that_may_replicate_and_read_is_enough(role):
    assert levels(check(role)) == {Level.OK}


def test_a_role_without_replication_gets_the_statement_that_gives_it(url, role):
    execute(url, f"ALTER ROLE {name_of(role)} NOREPLICATION")
    finding = failing(check(role))
    assert finding.subject == "role"
    assert finding.fix == f'ALTER ROLE "{name_of(role)}" REPLICATION;'
    execute(url, finding.fix)
    assert levels(check(role)) == {Level.OK}


def test_a_member_of_rds_replication_may_replicate(url, role):
    execute(url, f"ALTER ROLE {name_of(role)} NOREPLICATION; CREATE ROLE rds_replication; CREATE ROLE rds_superuser")
    try:
        finding = failing(check(role))
        assert finding.fix == f'GRANT rds_replication TO "{name_of(role)}";'
        execute(url, finding.fix)
        assert levels(check(role)) == {Level.OK}
    finally:
        execute(url, "DROP ROLE rds_replication; DROP ROLE rds_superuser")


def test_all_slots_taken_is_a_failure_unless_ours_is_one_of_them():
    with server(max_replication_slots=1) as started:
        execute(started.url, "SELECT pg_create_physical_replication_slot('other')")
        finding = failing(check(started.url))
        assert finding.subject == "max_replication_slots"
        assert "max_replication_slots = 2" in finding.fix
        execute(started.url, "SELECT pg_drop_replication_slot('other')")
        execute(started.url, f"SELECT pg_create_logical_replication_slot('{slot_of(started.url)}', 'pgoutput')")
        assert levels(check(started.url)) == {Level.OK}


def test_all_senders_in_use_is_a_failure_that_is_worth_another_try():
    with server(max_wal_senders=1) as started, connect(started.url, replication=True):
        found = check(started.url)
        assert failing(found).subject == "max_wal_senders"
        with pytest.raises(SourceUnavailable, match="all 1 WAL senders"):
            pipeline_preflight.raise_if_failing(found)


def test_a_slot_that_we_made_earlier_is_usable(url):
    execute(url, f"SELECT pg_create_logical_replication_slot('{slot_of(url)}', 'pgoutput')")
    found = check(url)
    assert levels(found) == {Level.OK}
    assert "exists; the server holds" in messages(found, "slot")[0]


def test_a_missing_slot_with_create_off_gets_the_statement_that_makes_it(role):
    finding = failing(check(role, create=False))
    assert finding.subject == "slot"
    execute(role, finding.fix)
    assert levels(check(role, create=False)) == {Level.OK}


def test_a_slot_of_physical_replication_is_refused(url):
    slot = slot_of(url)
    execute(url, f"SELECT pg_create_physical_replication_slot('{slot}')")
    finding = failing(check(url))
    assert finding.message == f"the replication slot {slot} is one of physical replication"
    execute(url, finding.fix.partition("drop it: ")[2])
    assert levels(check(url)) == {Level.OK}


def test_a_slot_of_another_database_is_refused(url, postgres_server):
    slot = slot_of(url)
    execute(postgres_server.url, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    try:
        assert "belongs to the database postgres, not test_" in failing(check(url)).message
    finally:
        execute(postgres_server.url, f"SELECT pg_drop_replication_slot('{slot}')")


def test_a_slot_that_sends_prepared_transactions_is_refused(url):
    execute(url, f"SELECT pg_create_logical_replication_slot('{slot_of(url)}', 'pgoutput', false, true)")
    assert "two_phase" in failing(check(url)).message


def test_a_slot_in_use_is_a_warning_that_names_the_process(url):
    with psycopg.connect(url, autocommit=True) as reader:
        reader.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", [slot_of(url)])
        finding = warning(check(url))
        assert finding.subject == "slot"
        assert f"in use by process {reader.info.backend_pid} of the server" in finding.message
        assert f"pg_terminate_backend({reader.info.backend_pid})" in finding.fix


def test_a_slot_that_the_server_gave_up_is_a_lost_position():
    with server(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB") as started:
        execute(started.url, f"SELECT pg_create_logical_replication_slot('{slot_of(started.url)}', 'pgoutput')")
        for number in range(4):
            execute(started.url, f"INSERT INTO items VALUES ({number})")
            execute(started.url, "SELECT pg_switch_wal()")
        execute(started.url, "CHECKPOINT")
        found = check(started.url)
        assert "was invalidated by the server" in failing(found).message
        with pytest.raises(PositionLost) as caught:
            pipeline_preflight.raise_if_failing(found)
        assert caught.value.hint == PositionLost.hint


# --- publication ---


def test_the_owner_s_statement_makes_the_publication_that_we_may_not_make(url, role):
    execute(url, f'DROP PUBLICATION {PUBLICATION}; CREATE TABLE "Odd ""name" (id int PRIMARY KEY)')
    finding = failing(check(role))
    assert finding.subject == "publication"
    assert 'only the owner of public."Odd ""name", public.items, public.orders can change that' in finding.message
    execute(url, finding.fix)
    assert levels(check(role)) == {Level.OK}


def test_an_owner_who_may_not_create_in_the_database_gets_the_grant(url, role):
    owner = name_of(role)
    execute(
        url, f"DROP PUBLICATION {PUBLICATION}; ALTER TABLE orders OWNER TO {owner}; ALTER TABLE items OWNER TO {owner}"
    )
    finding = failing(check(role))
    assert finding.fix.startswith("GRANT CREATE ON DATABASE ")
    execute(url, finding.fix)
    assert levels(check(role)) == {Level.OK}


def test_a_missing_publication_with_create_off_gets_the_statement_that_makes_it(url):
    execute(url, f"SELECT pg_create_logical_replication_slot('{slot_of(url)}', 'pgoutput')")
    finding = failing(check(url, create=False))
    assert "source.create is off" in finding.message
    execute(url, finding.fix)
    found = check(url, create=False)
    assert levels(found) == {Level.OK}
    assert messages(found, "publication") == [f"{PUBLICATION} publishes 2 tables of the pipeline"]


def test_a_publication_of_ours_that_lacks_tables_will_get_them(url):
    execute(url, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders")
    found = check(url)
    assert levels(found) == {Level.OK}
    assert messages(found, "publication") == [f"{PUBLICATION} lacks 1 table (public.items): they will be added"]


def test_somebody_else_s_publication_that_lacks_tables_gets_them_by_the_statement(url, role):
    execute(url, f"DROP PUBLICATION {PUBLICATION}; CREATE PUBLICATION {PUBLICATION} FOR TABLE orders")
    finding = failing(check(role))
    assert "lacks 1 table (public.items)" in finding.message
    execute(url, finding.fix)
    assert levels(check(role)) == {Level.OK}


def test_a_publication_that_leaves_out_updates_would_lose_them(url):
    execute(url, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish = 'insert, delete')")
    finding = failing(check(url))
    assert "does not publish update, truncate: such changes would be lost" in finding.message
    execute(url, finding.fix)
    assert levels(check(url)) == {Level.OK}


EVENTS = (
    "CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    " CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);"
    " CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (20)"
)


@pytest.mark.parametrize("kind", ["TABLE events, items, orders", "ALL TABLES", "TABLES IN SCHEMA public"])
def test_partitions_must_be_published_under_the_name_of_their_root(url, kind):
    execute(url, f"{EVENTS}; CREATE PUBLICATION {PUBLICATION} FOR {kind}")
    finding = failing(check(url))
    assert "sends changes of partitioned tables (public.events) under the names of their partitions" in finding.message
    execute(url, finding.fix)
    found = check(url)
    assert levels(found) == {Level.OK}
    assert messages(found, "tables") == ["3 tables: ok"]


def test_a_row_filter_is_a_warning_and_its_fix_removes_it(url):
    execute(url, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE items, orders WHERE (id > 5)")
    finding = warning(check(url))
    assert "1 table published with a row filter (public.orders)" in finding.message
    with psycopg.connect(url) as connection:
        connection.execute(finding.fix.encode())
    assert levels(check(url)) == {Level.OK}


def test_a_column_list_is_a_note(url):
    execute(url, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE items, orders (id)")
    found = check(url)
    assert levels(found) == {Level.OK}
    assert any("column list (public.orders)" in message for message in messages(found, "publication"))


# --- tables ---


def test_a_table_that_does_not_exist_is_a_failure_with_a_guess(url):
    finding = failing(check(url, "public.items", "public.Orders"))
    assert finding.message == "no table matches public.Orders"
    assert finding.fix.startswith("did you mean public.orders?")


def test_a_wildcard_that_takes_nothing_is_a_warning_beside_others(url):
    assert warning(check(url, "public.*", "audit.*")).message == "no table matches audit.*"


def test_a_wildcard_alone_that_takes_nothing_is_a_failure(url):
    assert failing(check(url, "audit.*")).message == "no table matches audit.*"


def test_patterns_that_exclude_everything_leave_nothing(url):
    assert "is left to capture" in failing(check(url, "public.*", "!public.*")).message


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("public.seen", "is a view"), ("public.kept", "is a materialized view"), ("public.events_1", "is a partition")],
)
def test_what_is_not_a_table_is_said_to_be_something_else(url, pattern, said):
    execute(url, f"{EVENTS}; CREATE VIEW seen AS SELECT 1; CREATE MATERIALIZED VIEW kept AS SELECT 1")
    assert said in failing(check(url, "public.orders", pattern)).message


def test_a_partition_named_alone_leads_to_its_root(url):
    execute(url, EVENTS)
    assert failing(check(url, "public.events_1")).fix == "write public.events in source.tables"


def test_a_role_that_may_read_nothing_gets_both_grants(url, role):
    execute(url, f"REVOKE pg_read_all_data FROM {name_of(role)}; REVOKE USAGE ON SCHEMA public FROM public")
    execute(url, EVENTS)
    failures = [finding for finding in check(role) if finding.level is Level.FAIL]
    assert [finding.subject for finding in failures] == ["privileges", "privileges"]
    assert "may not use 1 schema: public" in failures[0].message
    assert "may not read 5 tables" in failures[1].message
    for finding in failures:
        execute(url, finding.fix)
    assert levels(check(role)) == {Level.OK}


def test_a_grant_on_the_root_alone_does_not_read_its_partitions(url, role):
    execute(url, f"{EVENTS}; REVOKE pg_read_all_data FROM {name_of(role)}; GRANT SELECT ON events TO {name_of(role)}")
    found = failing(check(role, "public.events"))
    assert "may not read 2 tables: public.events_1, public.events_2" in found.message
    with pytest.raises(SourceRefused):
        pipeline_preflight.raise_if_failing([found])


def test_tables_that_can_not_be_read_do_not_keep_a_run_from_the_others(url, role):
    """They are set aside by the run, at its start as later."""
    execute(url, f"{EVENTS}; REVOKE pg_read_all_data FROM {name_of(role)}; GRANT SELECT ON orders TO {name_of(role)}")
    found = failing(check(role, "public.events", "public.orders"))
    assert "may not read 3 tables" in found.message
    pipeline_preflight.raise_if_failing([found])


def test_row_security_that_hides_rows_is_refused(url, role):
    execute(url, "ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    finding = failing(check(role))
    assert finding.subject == "row security"
    execute(url, finding.fix)
    assert levels(check(role)) == {Level.OK}


def test_an_unlogged_table_is_not_captured_until_it_is_logged(url):
    execute(url, "CREATE UNLOGGED TABLE cache (id int PRIMARY KEY)")
    found = check(url)
    assert warning(found).message == "1 unlogged table (public.cache): not captured"
    assert messages(found, "tables") == ["2 tables: ok"]
    execute(url, warning(found).fix)
    assert messages(check(url), "tables") == ["3 tables: ok"]


def test_a_table_without_columns_is_not_captured_until_it_has_one(url):
    execute(url, "CREATE TABLE nothing ()")
    found = check(url)
    message = "1 table without a column that is published (public.nothing): not captured"
    assert [each.message for each in found if each.subject == "columns"] == [message]
    execute(url, "ALTER TABLE nothing ADD COLUMN id int PRIMARY KEY")
    assert messages(check(url), "tables") == ["3 tables: ok"]


KEYLESS = "inserts only: updates and deletes will fail in the source"
INSERTS_ONLY = "inserts only: updates and deletes do not arrive"


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE facts (id int)",
        "CREATE TABLE facts (id int); ALTER TABLE facts REPLICA IDENTITY NOTHING",
        "CREATE TABLE facts (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE facts (id int PRIMARY KEY); ALTER TABLE facts REPLICA IDENTITY NOTHING",
        (
            "CREATE TABLE facts (id int NOT NULL CONSTRAINT k UNIQUE);"
            " ALTER TABLE facts REPLICA IDENTITY USING INDEX k; ALTER TABLE facts DROP CONSTRAINT k"
        ),
    ],
    ids=["no-key", "nothing", "deferrable", "nothing-with-key", "index-gone"],
)
def test_a_table_whose_rows_cannot_be_identified_fails_in_the_source_as_warned(url, table):
    execute(url, f"{table}; INSERT INTO facts VALUES (1); CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    finding = warning(check(url))
    assert finding.subject == "replica identity"
    assert finding.message.endswith(f"(public.facts): {KEYLESS}")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        execute(url, "UPDATE facts SET id = 2")
    execute(url, finding.fix)
    execute(url, "UPDATE facts SET id = 2")
    assert levels(check(url)) == {Level.OK}


def test_a_partitioned_table_without_a_key_is_mended_with_its_partitions(url):
    execute(
        url,
        "CREATE TABLE events (id int) PARTITION BY RANGE (id);"
        " CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10)",
    )
    finding = warning(check(url))
    assert "1 table with no usable primary key (public.events)" in finding.message
    assert finding.fix.count("REPLICA IDENTITY FULL;") == 2
    execute(url, finding.fix)
    assert levels(check(url)) == {Level.OK}


def test_identity_full_without_a_key_is_a_note(url):
    execute(url, "CREATE TABLE facts (id int); ALTER TABLE facts REPLICA IDENTITY FULL")
    found = check(url)
    assert levels(found) == {Level.OK}
    assert messages(found, "replica identity") == [
        "1 table without a key and with identity full (public.facts): the whole old row identifies a row"
    ]


def test_a_type_without_a_binary_decoder_is_a_note(url):
    execute(url, "CREATE TYPE pair AS (a int, b int); CREATE TABLE pairs (id int PRIMARY KEY, two pair, many pair[])")
    found = check(url)
    assert levels(found) == {Level.OK}
    assert "2 columns without a binary decoder (public.pairs.many public.pair" in messages(found, "types")[0]
    assert messages(check(url, binary=False), "types") == []


def test_a_domain_of_the_information_schema_is_as_readable_as_any(url):
    execute(url, "CREATE TABLE odd (id int PRIMARY KEY, name information_schema.sql_identifier)")
    assert levels(check(url)) == {Level.OK}


def test_a_generated_column_that_is_not_published_is_a_note(url):
    execute(url, "CREATE TABLE sums (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    for _ in range(2):
        found = check(url)
        assert levels(found) == {Level.OK}
        note = "1 generated column not published by the server: public.sums.twice"
        assert messages(found, "generated columns") == [note]
        execute(url, f"DROP PUBLICATION IF EXISTS {PUBLICATION}; CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")


def test_hundreds_of_tables_stay_one_line_a_problem(url):
    execute(
        url,
        "DO $$ BEGIN FOR i IN 1..150 LOOP EXECUTE format('CREATE TABLE keyed_%s (id int PRIMARY KEY)', i);"
        " EXECUTE format('CREATE TABLE bare_%s (id int)', i); END LOOP; END $$",
    )
    found = check(url)
    named = "public.bare_1, public.bare_10, public.bare_100 and 147 more"
    assert warning(found).message == f"150 tables with no usable primary key ({named}): {INSERTS_ONLY}"
    assert warning(found).fix.endswith("-- and so for 140 more")
    assert messages(found, "tables") == ["152 tables of 302: ok"]
    assert len(found) < 15


# --- the whole pipeline ---


def test_what_a_preflight_says_will_be_created_is_created(url, role):
    owner = name_of(role)
    execute(
        url,
        f"DROP PUBLICATION {PUBLICATION}; GRANT CREATE ON DATABASE {conninfo_to_dict(url)['dbname']} TO {owner};"
        f" ALTER TABLE orders OWNER TO {owner}; ALTER TABLE items OWNER TO {owner}",
    )
    assert levels(check(role)) == {Level.OK}
    own = {"slot": slot_of(url), "publication": PUBLICATION}
    settings = config.Source(url=role, tables=("public.*",), own=own)
    sinks = {"replica": config.Sink(url="sqlite:///replica.db")}
    source = PostgresSource(config.Pipeline(name="shop", source=settings, sinks=sinks))
    source.prepare()
    assert [table.table for table in source.tables()] == ["public.items", "public.orders"]
    found = check(role, create=False)
    assert levels(found) == {Level.OK}
    assert messages(found, "publication") == [f"{PUBLICATION} publishes 2 tables of the pipeline"]


def test_a_whole_pipeline_is_checked_through_the_registry(url, tmp_path):
    sinks = {"replica": config.Sink(url=f"sqlite:///{tmp_path}/replica.db")}
    source = config.Source(url=url, tables=("public.*",))
    pipeline = config.Pipeline(name="shop", source=source, sinks=sinks, state=str(tmp_path / "state"))
    found = pipeline_preflight.check(pipeline)
    assert {"server", "slot", "publication", "tables", "state directory", "sink replica", "java", "spark"} <= {
        finding.subject for finding in found
    }
    assert Level.FAIL not in levels(found)
    pipeline_preflight.raise_if_failing(found)
    assert not (tmp_path / "state").exists()
