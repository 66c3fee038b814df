"""Ways in which rows of MySQL and MariaDB could be lost, doubled or wrong without an error."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from support.mysql_sources import Logging, start_mariadb, start_mysql
from tailrace import config
from tailrace.errors import DecodeError, SourceRefused
from tailrace.sources.base import Level
from tailrace.sources.mysql import replication
from tailrace.sources.mysql.connection import connect, rows
from tailrace.sources.mysql.source import MysqlSource
from tailrace.testing.plugin import requires
from tailrace.testing.source_changes import capture

pytestmark = [pytest.mark.server, pytest.mark.long]  # the contract and the types are in `make test`


def source_of(url: str) -> MysqlSource:
    return MysqlSource(config.Pipeline("lossy", config.Source(url, ("*.*",)), {}))


def run(url: str, *statements: str) -> None:
    connection = connect(url)
    for statement in statements:
        rows(connection, statement)
    connection.close()


def told(source: MysqlSource, begin: str) -> Iterator[dict[str, Any]]:
    for frames in capture(source, begin).frames:
        for changes in source.decode(frames, frames.first, frames.last):
            yield from changes.to_arrow().to_pylist()


def test_rows_that_a_savepoint_took_back_are_never_told(logged_url: str) -> None:
    """MariaDB logs them, and the rollback, where a temporary table was made since."""
    run(logged_url, "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(logged_url)
    begin = source.current_position()
    made = ("CREATE TEMPORARY TABLE x (i int)", "INSERT INTO t VALUES (12)")
    run(logged_url, "BEGIN", "INSERT INTO t VALUES (10)", "SAVEPOINT a", *made, "ROLLBACK TO a", "COMMIT")
    if logged_url.startswith("mariadb"):
        with pytest.raises(SourceRefused, match="rolled back"):
            list(told(source, begin))
    else:
        assert [row["id"] for row in told(source, begin)] == [10]


def test_a_new_row_without_its_defaults_is_refused(logged_url: str) -> None:
    run(logged_url, "CREATE TABLE t (id int PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new')")
    source = source_of(logged_url)
    begin = source.current_position()
    run(logged_url, "SET SESSION binlog_row_image = 'MINIMAL'", "INSERT INTO t (id) VALUES (1)")
    with pytest.raises(DecodeError, match="logged without some columns"):
        list(told(source, begin))


def test_generated_and_invisible_columns_are_in_every_image(logged_url: str) -> None:
    columns = "id int PRIMARY KEY, n int INVISIBLE DEFAULT 3, v int AS (id + 1) VIRTUAL, s int AS (id + 2) STORED"
    run(logged_url, f"CREATE TABLE t ({columns}, KEY (v))")
    source = source_of(logged_url)
    begin = source.current_position()
    run(logged_url, "INSERT INTO t (id) VALUES (1)", "UPDATE t SET id = 5")
    assert [(row["id"], row["n"], row["v"], row["s"]) for row in told(source, begin)] == [(1, 3, 2, 3), (5, 3, 6, 7)]


def test_values_are_read_as_they_were_written_when_the_catalog_has_moved_on(logged_url: str) -> None:
    kinds = "n decimal(10,2), e enum('a','b'), f set('a','b'), name varchar(20) CHARACTER SET latin1"
    run(logged_url, f"CREATE TABLE t (id int PRIMARY KEY, {kinds})")
    source = source_of(logged_url)
    begin = source.current_position()
    others = "MODIFY n decimal(12,4), MODIFY e enum('x','a','b'), MODIFY f set('x','a','b')"
    run(logged_url, "INSERT INTO t VALUES (1, 12.34, 'b', 'b', 'é')", f"ALTER TABLE t {others}")
    run(
        logged_url,
        "ALTER TABLE t MODIFY name varchar(20) CHARACTER SET utf8mb4",
        "INSERT INTO t VALUES (2, 1, 'x', 'x', 'é')",
    )
    first, second = told(source, begin)
    assert [first[name] for name in ("n", "e", "f", "name")] == [Decimal("12.34"), "b", "b", "é"]
    assert [second[name] for name in ("n", "e", "f", "name")] == [Decimal(1), "x", "x", "é"]


@pytest.mark.parametrize("statement", ["TRUNCATE PARTITION p0", "EXCHANGE PARTITION p0 WITH TABLE other"])
def test_rows_that_go_with_a_partition_make_it_another_table(logged_url: str, logging: Logging, statement: str) -> None:
    cut = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    run(logged_url, f"CREATE TABLE t (id int PRIMARY KEY) {cut}", "CREATE TABLE other (id int PRIMARY KEY)")
    run(logged_url, "INSERT INTO t VALUES (1), (11)")
    source = source_of(logged_url)
    [before] = [facts for facts in source.facts() if facts.schema.name == "t"]
    begin = source.current_position()
    run(logged_url, f"ALTER TABLE t {statement}")
    [after] = [facts for facts in source.facts() if facts.schema.name == "t"]
    assert source.storage_change(after.schema, before.stored, after.stored).is_rewritten
    assert list(told(source, begin)) == []
    user = f"blind_{abs(hash(statement)) % 10**6}"
    database = logged_url.rpartition("/")[2]
    logging.execute(f"CREATE USER {user} IDENTIFIED BY 'blind'")
    logging.execute(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}")
    logging.execute(f"GRANT SELECT ON {database}.* TO {user}")
    try:
        with pytest.raises(SourceRefused, match="no event tells of its rows"):
            list(told(source_of(logging.url_of(database, user, "blind")), begin))
    finally:
        logging.execute(f"DROP USER {user}")


def test_a_key_of_parts_of_columns_is_none_in_the_stream_as_well(logged_url: str) -> None:
    run(logged_url, "CREATE TABLE t (name varchar(50), n int, PRIMARY KEY (name(10)))")
    source = source_of(logged_url)
    [schema] = source.tables()
    begin = source.current_position()
    run(logged_url, "INSERT INTO t VALUES ('a', 1)")
    [frames] = capture(source, begin).frames
    assert [changes.schema for changes in source.decode(frames, frames.first, frames.last)] == [schema]


def test_a_table_with_neither_key_nor_transactions_is_in_trouble(logged_url: str) -> None:
    run(logged_url, "CREATE TABLE m (i int) ENGINE = MyISAM", "CREATE TABLE k (i int PRIMARY KEY) ENGINE = MyISAM")
    troubles = {facts.schema.name: facts.trouble for facts in source_of(logged_url).facts()}
    assert "no key" in troubles["m"]
    assert not troubles["k"]


def test_numbers_of_a_domain_that_fall_stop_the_stream(logging: Logging, logged_url: str) -> None:
    if not logged_url.startswith("mariadb"):
        pytest.skip("MySQL names each transaction by itself")
    run(logged_url, "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(logged_url)
    begin = source.current_position()
    number = int(begin.rpartition("-")[2])
    run(
        logged_url,
        f"SET SESSION gtid_seq_no = {number + 100}",
        "INSERT INTO t VALUES (1)",
        f"SET SESSION server_id = 2, SESSION gtid_seq_no = {number + 50}",
        "INSERT INTO t VALUES (2)",
    )
    try:
        with pytest.raises(SourceRefused, match="several servers write to one domain"):
            list(told(source, begin))
    finally:
        run(logged_url, f"SET SESSION gtid_seq_no = {number + 200}", "INSERT INTO t VALUES (3)")


@pytest.mark.long
def test_a_long_set_of_gtids_is_read_whole() -> None:
    with requires(start_mysql) as server:
        url = server.create_database("shop")
        many = ",".join(f"{number:08x}-0000-4000-8000-000000000000:1-{10**9 + number}" for number in range(1, 60))
        server.execute(f"SET GLOBAL gtid_purged = '+{many}'")
        run(url, "CREATE TABLE t (id int PRIMARY KEY)")
        source = source_of(url)
        begin = source.current_position()
        [(whole,)] = server.execute("SELECT @@GLOBAL.gtid_executed")
        assert begin == whole.replace("\n", "")
        run(url, "INSERT INTO t VALUES (1)")
        assert [row["id"] for row in told(source, begin)] == [1]


@pytest.mark.long
def test_a_piece_of_a_transaction_in_a_file_has_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GTIDs; and when they are switched on, the two kinds of places are not waited for."""
    monkeypatch.setattr(replication, "CHUNK_BYTES", 1 << 20)
    off = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with requires(start_mysql, off) as server:
        url = server.create_database("shop")
        run(url, "CREATE TABLE t (id int PRIMARY KEY, note longtext)")
        source = source_of(url)
        begin = source.current_position()
        large = [f"INSERT INTO t VALUES ({number}, REPEAT('x', 100000))" for number in range(80)]
        run(url, "BEGIN", *large, "COMMIT")
        end = source.current_position()
        found = capture(source, begin).frames
        changes = [each for frames in found for each in source.decode(frames, frames.first, frames.last)]
        assert len(found) > 1
        assert sum(len(each) for each in changes) == 80
        assert all(source.unseen(each, begin).all() for each in changes)
        assert not any(source.unseen(each, end).any() for each in changes)
        assert len({name for frames in found for name in source.transaction_ids(frames.transactions)}) == 1


@pytest.mark.long
def test_a_replica_that_does_not_log_what_it_is_sent_is_refused() -> None:
    with requires(start_mariadb) as old, requires(start_mariadb, {"server_id": 2}) as new:
        url = new.create_database("shop")
        run(url, "CREATE TABLE t (id int PRIMARY KEY)")
        assert not [each for each in source_of(url).preflight() if each.subject == "replicated changes"]
        port = old.execute("SELECT @@port")[0][0]
        new.execute(f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root'")
        findings = [each for each in source_of(url).preflight() if each.subject == "replicated changes"]
        assert [each.level for each in findings] == [Level.FAIL]
