"""XA transactions, whose rows are in the log long before they count; and GTIDs with tags."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.mysql_sources import Logging, LoggingMySql, start_mysql
from tailrace import config
from tailrace.errors import SourceRefused
from tailrace.sources.mysql.connection import connect, rows
from tailrace.sources.mysql.source import MysqlSource
from tailrace.testing.plugin import requires
from tailrace.testing.source_changes import Stretch, capture, ends

pytestmark = pytest.mark.server


def source_of(url: str) -> MysqlSource:
    return MysqlSource(config.Pipeline("prepared", config.Source(url, ("*.*",)), {}))


def ids(source: MysqlSource, *stretches: Stretch) -> list[int]:
    """The ids of all rows, in the order of the log."""
    found = [
        (number, offset, row["id"])
        for number, stretch in enumerate(stretches)
        for frames in stretch.frames
        for changes in source.decode(frames, frames.first, frames.last)
        for offset, row in zip(changes.offset.tolist(), changes.after.to_pylist(), strict=True)
    ]
    return [id_ for *_, id_ in sorted(found)]


def run(url: str, *statements: str) -> None:
    """On one connection, which is closed: what is prepared stays."""
    with connect(url) as connection:
        for statement in statements:
            rows(connection, statement)


def prepare(url: str, name: str, *ids: int) -> None:
    inserts = [f"INSERT INTO t VALUES ({each})" for each in ids]
    run(url, f"XA START '{name}'", *inserts, f"XA END '{name}'", f"XA PREPARE '{name}'")


@pytest.fixture
def table_url(logged_url: str) -> str:
    run(logged_url, "CREATE TABLE t (id int PRIMARY KEY)")
    return logged_url


def change(url: str) -> list[int]:
    """Changes with several XA transactions among them; the ids of rows that come to be, in order."""
    prepare(url, "a", 1, 2)
    run(url, "INSERT INTO t VALUES (10)")
    prepare(url, "b", 3)
    run(url, "INSERT INTO t VALUES (11)", "XA ROLLBACK 'b'", "INSERT INTO t VALUES (12)")
    prepare(url, "c", 4)
    run(url, "XA COMMIT 'a'", "INSERT INTO t VALUES (13)", "XA COMMIT 'c'")
    run(url, "XA START 'd'", "INSERT INTO t VALUES (5)", "XA END 'd'", "XA COMMIT 'd' ONE PHASE")
    run(url, "INSERT INTO t VALUES (14)")
    return [10, 11, 12, 1, 2, 13, 4, 5, 14]


def test_rows_of_an_xa_transaction_come_where_it_is_committed(table_url: str) -> None:
    source = source_of(table_url)
    begin = source.current_position()
    expected = change(table_url)
    assert ids(source, capture(source, begin)) == expected


def test_from_every_place_each_row_comes_once(table_url: str) -> None:
    source = source_of(table_url)
    begin = source.current_position()
    expected = change(table_url)
    whole = capture(source, begin)
    places = ends(source, whole)
    assert sum(" from " in place for place in places) == 5, places  # rows 10 to 12, 1 and 2, and 13: "c" is open
    for number, place in enumerate(places):
        rest = ids(source, capture(source, place))
        done = len(expected) - len(rest)
        assert rest == expected[done:], place
        assert done in (number + 1, number + 2), place  # one transaction has two rows


def test_rows_that_were_prepared_before_the_stream_began_stop_it(table_url: str) -> None:
    source = source_of(table_url)
    prepare(table_url, "early", 1)
    prepare(table_url, "dropped", 2)
    begin = source.current_position()
    run(table_url, "XA ROLLBACK 'dropped'", "INSERT INTO t VALUES (3)")
    assert ids(source, capture(source, begin)) == [3]
    run(table_url, "XA COMMIT 'early'")
    with pytest.raises(SourceRefused, match="prepared before the stream began"):
        capture(source, begin)


@pytest.fixture
def without_gtids() -> Iterator[LoggingMySql]:
    settings: dict[str, object | None] = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with requires(start_mysql, settings=settings) as server:
        yield server


@pytest.mark.long
def test_from_every_byte_between_transactions_each_row_comes_once(without_gtids: LoggingMySql) -> None:
    url = without_gtids.create_database("shop")
    run(url, "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(url)
    begin = source.current_position()
    expected = change(url)
    whole = capture(source, begin)
    assert ids(source, whole) == expected
    for place in ends(source, whole):
        rest = ids(source, capture(source, place))
        assert rest == expected[len(expected) - len(rest) :], place


@pytest.mark.parametrize("logging", ["mysql"], indirect=True)
def test_gtids_with_tags_are_places_like_others(logging: Logging, table_url: str) -> None:
    source = source_of(table_url)
    begin = source.current_position()
    inserts = [(f"SET gtid_next = 'AUTOMATIC{tag}'", f"INSERT INTO t VALUES ({id_})") for id_, tag in enumerate(TAGS)]
    run(table_url, *(statement for pair in inserts for statement in pair))
    whole = capture(source, begin)
    assert ids(source, whole) == list(range(len(TAGS)))
    places = ends(source, whole)
    assert ":backup:1" in places[-1]
    for number, place in enumerate(places):
        assert ids(source, capture(source, place)) == list(range(number + 1, len(TAGS))), place


TAGS = ("", ":backup", ":backup", "", ":other_1", ":backup", "")
