"""The stream of MySQL and MariaDB: what the binary log may hold, and what may become of it while we read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from support.mysql_sources import Logging, LoggingMySql, start_mariadb, start_mysql
from tailrace import config
from tailrace.errors import PositionLost, SourceChanged, SourceRefused, TailraceError
from tailrace.model.changes import Op
from tailrace.sources.mysql import replication
from tailrace.sources.mysql.connection import connect, rows
from tailrace.sources.mysql.source import MysqlSource
from tailrace.testing.plugin import requires
from tailrace.testing.processes import wait_until
from tailrace.testing.source_changes import Stretch, capture, read_on

pytestmark = [pytest.mark.server, pytest.mark.long]  # the contract and the types are in `make test`

Told = list[tuple[int, dict[str, Any]]]


def source_of(url: str, name: str = "streamed", **own: object) -> MysqlSource:
    return MysqlSource(config.Pipeline(name, config.Source(url, ("*.*",), own=own), {}))


def told(source: MysqlSource, stretch: Stretch) -> Told:
    """What was done to which row, in order of the log."""
    found = []
    for frames in stretch.frames:
        for changes in source.decode(frames, frames.first, frames.last):
            found += zip(changes.offset.tolist(), changes.op.tolist(), changes.after.to_pylist(), strict=True)
    return [(op, row) for _, op, row in sorted(found, key=lambda each: each[0])]


class Session:
    """Statements on one connection, each committed at once unless `together`."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url)

    def run(self, *statements: str) -> None:
        for statement in statements:
            rows(self.connection, statement)

    def together(self, *statements: str) -> None:
        self.run("BEGIN", *statements, "COMMIT")


@pytest.fixture
def session(logged_url: str) -> Iterator[Session]:
    found = Session(logged_url)
    found.run("CREATE TABLE t (id int PRIMARY KEY, name varchar(20), note text)")
    yield found
    found.connection.close()


def is_mariadb(url: str) -> bool:
    return url.startswith("mariadb")


# --- what a transaction may be ---------------------------------------------------------------------------------------


def test_a_table_that_is_altered_between_is_decoded_as_it_was(logged_url: str, session: Session) -> None:
    source = source_of(logged_url)
    begin = source.current_position()
    session.run(
        "INSERT INTO t (id, name) VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN extra int UNSIGNED FIRST, DROP COLUMN note",
        "INSERT INTO t VALUES (4294967295, 2, 'b')",
        "TRUNCATE TABLE t",
        "ALTER TABLE t MODIFY extra bigint, RENAME COLUMN name TO label",
        "INSERT INTO t VALUES (-1, 3, 'c')",
    )
    stretch = capture(source, begin)
    changes = told(source, stretch)
    assert changes[0] == (Op.INSERT, {"id": 1, "name": "a", "note": None})
    assert changes[1] == (Op.INSERT, {"extra": 4294967295, "id": 2, "name": "b"})
    assert changes[2][0] == Op.TRUNCATE
    assert changes[3] == (Op.INSERT, {"extra": -1, "id": 3, "label": "c"})


def test_what_was_rolled_back_is_not_told(logged_url: str, session: Session) -> None:
    source = source_of(logged_url)
    begin = source.current_position()
    session.run("BEGIN", "INSERT INTO t (id) VALUES (1)", "ROLLBACK")
    session.together(
        "INSERT INTO t (id) VALUES (2)",
        "SAVEPOINT s",
        "INSERT INTO t (id) VALUES (3)",
        "ROLLBACK TO s",
        "INSERT INTO t (id) VALUES (4)",
    )
    found = told(source, capture(source, begin))
    assert [row["id"] for _, row in found] == [2, 4]


def test_tables_without_transactions_are_told_as_well(logged_url: str, session: Session) -> None:
    session.run("CREATE TABLE m (id int PRIMARY KEY) ENGINE = MyISAM")
    source = source_of(logged_url)
    begin = source.current_position()
    session.run("INSERT INTO m VALUES (1), (2)", "DELETE FROM m WHERE id = 1")
    assert [op for op, _ in told(source, capture(source, begin))] == [Op.INSERT, Op.INSERT, Op.DELETE]


def test_a_table_that_is_made_of_a_query_has_its_rows(logged_url: str, session: Session) -> None:
    session.run("INSERT INTO t (id, name) VALUES (1, 'a'), (2, 'b')")
    source = source_of(logged_url)
    begin = source.current_position()
    session.run("CREATE TABLE copied AS SELECT id, name FROM t")
    assert told(source, capture(source, begin)) == [
        (Op.INSERT, {"id": 1, "name": "a"}),
        (Op.INSERT, {"id": 2, "name": "b"}),
    ]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_what_a_smaller_image_lacks_is_unchanged(logged_url: str, session: Session, image: str) -> None:
    session.run("INSERT INTO t VALUES (1, 'a', 'long')", f"SET SESSION binlog_row_image = '{image}'")
    source = source_of(logged_url)
    begin = source.current_position()
    session.run("UPDATE t SET name = 'b' WHERE id = 1", "UPDATE t SET id = 2", "DELETE FROM t")
    stretch = capture(source, begin)
    found = [changes for frames in stretch.frames for changes in source.decode(frames, frames.first, frames.last)]
    cells = [row for changes in found for row in changes.to_arrow().to_pylist()]
    assert [(row["_op"], row["id"]) for row in cells] == [("update", 1), ("update", 2), ("delete", 2)]
    assert cells[0]["name"] == "b"
    assert "note" in cells[0]["_unchanged"]
    assert "id" not in cells[0]["_unchanged"]
    assert cells[1]["_before"]["id"] == 1


def test_compressed_events_are_understood(logged_url: str, session: Session, logging: Logging) -> None:
    source = source_of(logged_url)
    begin = source.current_position()
    many = ", ".join(f"({number}, '{'x' * 20}', '{'y' * 100}')" for number in range(500))
    if is_mariadb(logged_url):
        logging.execute("SET GLOBAL log_bin_compress = ON")
        try:
            with closing(connect(logged_url)) as other:
                rows(other, f"INSERT INTO t VALUES {many}")
        finally:
            logging.execute("SET GLOBAL log_bin_compress = OFF")
    else:
        session.run("SET SESSION binlog_transaction_compression = ON", f"INSERT INTO t VALUES {many}")
    session.run("DELETE FROM t WHERE id >= 1")
    found = told(source, capture(source, begin))
    assert [row["id"] for op, row in found if op == Op.INSERT] == list(range(500))
    assert {(row["name"], row["note"]) for op, row in found if op == Op.INSERT} == {("x" * 20, "y" * 100)}


def test_a_large_transaction_comes_in_several_pieces(
    logged_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "CHUNK_BYTES", 400 << 10)
    source = source_of(logged_url)
    begin = source.current_position()
    values = [
        ", ".join(f"({n}, 'n', repeat('z', 500))" for n in range(low, low + 1000)) for low in range(0, 4000, 1000)
    ]
    session.together(*(f"INSERT INTO t VALUES {each}" for each in values))
    stretch = capture(source, begin)
    assert len(stretch.frames) > 1
    ends = [batch.column("end").to_pylist() for batch in stretch.transactions()]
    assert [end for each in ends[:-1] for end in each if end] == []
    assert [row["id"] for _, row in told(source, stretch)] == list(range(4000))
    assert stretch.positions[-1] == source.current_position()


@pytest.mark.long
def test_a_row_of_several_packets_is_put_together(logged_url: str, session: Session, logging: Logging) -> None:
    logging.execute("SET GLOBAL max_allowed_packet = 1073741824")
    session.run("ALTER TABLE t MODIFY note longtext")
    source = source_of(logged_url)
    begin = source.current_position()
    with closing(connect(logged_url, max_allowed_packet=1 << 30)) as other:
        rows(other, "INSERT INTO t VALUES (1, 'a', 'small')")
        rows(other, "INSERT INTO t VALUES (2, 'b', %s)", ("é" * (20 << 20),))
        rows(other, "INSERT INTO t VALUES (3, 'c', 'small')")
    found = told(source, capture(source, begin))
    assert [(row["id"], len(row["note"])) for _, row in found] == [(1, 5), (2, 20 << 20), (3, 5)]


# --- what stops it ---------------------------------------------------------------------------------------------------


def test_a_change_as_a_statement_stops_the_stream(logged_url: str, session: Session) -> None:
    source = source_of(logged_url)
    begin = source.current_position()
    session.run("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO t (id) VALUES (1)")
    with pytest.raises(SourceRefused, match="statement"):
        capture(source, begin)


def test_maps_without_names_stop_the_stream(logged_url: str, session: Session, logging: Logging) -> None:
    source = source_of(logged_url)
    begin = source.current_position()
    logging.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        with closing(connect(logged_url)) as other:
            rows(other, "FLUSH TABLES")
            rows(other, "INSERT INTO t (id) VALUES (1)")
    finally:
        logging.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    with pytest.raises(SourceRefused, match="names") as refused:
        capture(source, begin)
    assert "binlog_row_metadata" in (refused.value.hint or "")


def test_two_replicas_with_one_id_are_told_apart(logged_url: str, session: Session) -> None:
    source = source_of(logged_url, server_id=77)
    begin = source.current_position()
    with closing(source.capture(begin, 1, {}, None)) as first, closing(source.capture(begin, 1, {}, None)):
        errors: list[TailraceError] = []

        def is_refused() -> bool:
            try:
                first.poll(0.2)
                first.take()
            except TailraceError as error:
                errors.append(error)
            return bool(errors)

        wait_until(is_refused, seconds=60, what="the first replica to be told")
    assert isinstance(errors[0], SourceRefused)
    assert "server id 77" in str(errors[0])


def test_the_id_of_the_server_itself_is_refused(logged_url: str, session: Session) -> None:
    source = source_of(logged_url, server_id=1)
    with pytest.raises(SourceRefused, match="server id 1"):
        source.capture(source.current_position(), 1, {}, None)


# --- what becomes of the log -----------------------------------------------------------------------------------------


def test_a_rotation_and_files_without_checksums_are_read_on(
    logged_url: str, session: Session, logging: Logging
) -> None:
    source = source_of(logged_url)
    begin = source.current_position()
    session.run("INSERT INTO t (id) VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t (id) VALUES (2)")
    with closing(source.capture(begin, 1, {}, None)) as opened:
        assert [row["id"] for _, row in told(source, read_on(source, opened))] == [1, 2]
        logging.execute("SET GLOBAL binlog_checksum = 'NONE'")
        try:
            session.run("INSERT INTO t (id) VALUES (3)")
            without = capture(source_of(logged_url, "another"), begin)
        finally:
            logging.execute("SET GLOBAL binlog_checksum = 'CRC32'")
        session.run("INSERT INTO t (id) VALUES (4)")
        assert [row["id"] for _, row in told(source, read_on(source, opened))] == [3, 4]
    assert [row["id"] for _, row in told(source, without)] == [1, 2, 3]


CREATE = "CREATE TABLE t (id int PRIMARY KEY)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "settings"),
    [
        (start_mysql, {}),
        (start_mysql, {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
        (start_mariadb, {}),
    ],
)
def test_a_restart_is_read_over_and_a_purged_place_is_lost(
    start: Callable[[dict[str, object | None]], Logging], settings: dict[str, object | None]
) -> None:
    """By GTID and by file and position."""
    with requires(start, settings) as server:
        url = server.create_database("shop")
        server.execute(CREATE, database="shop")
        source = source_of(url)
        begin = source.current_position()
        server.execute("INSERT INTO t VALUES (1)", database="shop")
        first = capture(source, begin)
        server.restart()
        server.execute("INSERT INTO t VALUES (2)", database="shop")
        rest = capture(source, first.positions[-1], first=1000, known=first.identity)
        assert [row["id"] for _, row in told(source, rest)] == [2]
        server.execute("FLUSH BINARY LOGS")
        moved = capture(source, rest.positions[-1], first=1500, known=rest.identity)
        server.execute("INSERT INTO t VALUES (3)", database="shop")
        last = server.execute("SHOW BINARY LOGS")[-1][0]
        server.execute(f"PURGE BINARY LOGS TO '{last}'")
        again = capture(source, moved.received, first=2000, known=moved.identity)
        assert [row["id"] for _, row in told(source, again)] == [3]
        with pytest.raises(PositionLost):
            capture(source, begin, known=first.identity)


@pytest.mark.long
def test_a_promoted_replica_is_the_same_source_and_a_stranger_is_not() -> None:
    with requires(start_mysql) as old, requires(start_mysql, {"server_id": 2}) as new:
        url = old.create_database("shop")
        old.execute(CREATE, database="shop")
        source = source_of(url)
        begin = source.current_position()
        old.execute("INSERT INTO t VALUES (1)", database="shop")
        before = capture(source, begin)
        follow(new, old)
        wait_until(
            lambda: new.execute("SHOW DATABASES LIKE 'shop'") and new.execute("SELECT id FROM t", database="shop"),
            seconds=90,
            what="the replica to have the row",
        )
        new.execute("STOP REPLICA")
        new.execute("INSERT INTO t VALUES (2)", database="shop")
        promoted = source_of(new.url_of("shop"))
        rest = capture(promoted, before.positions[-1], first=1000, known=before.identity)
        assert [row["id"] for _, row in told(promoted, rest)] == [2]
        old.execute("INSERT INTO t VALUES (9)", database="shop")
        diverged = capture(source, begin)
        with pytest.raises(SourceChanged):
            promoted.check_same(diverged.identity, diverged.positions[-1])


def follow(replica: LoggingMySql, source: LoggingMySql) -> None:
    replica.execute(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {source.port}, SOURCE_USER = 'root',"
        " SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
    )
    replica.execute("START REPLICA")
