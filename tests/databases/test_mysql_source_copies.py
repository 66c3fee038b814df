"""Copies of MySQL and MariaDB tables in ranges of their keys: every row once, whatever the key is made of."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tailrace import config
from tailrace.errors import SourceUnavailable
from tailrace.sources.base import Level, TableRewritten
from tailrace.sources.mysql.connection import connect, database_of, rows
from tailrace.sources.mysql.source import MysqlSource
from tailrace.testing.source_changes import schema_of

pytestmark = [pytest.mark.server, pytest.mark.long]  # the contract and the types are in `make test`

ROWS = 900
KEYS = {
    "k int": ["{n} * 7 - 2000"],
    "k bigint unsigned": ["18446744073709551615 - {n} * 100000000000"],
    "k decimal(20,5)": ["{n} / 7 - 50"],
    "k double": ["{n} / 7 - 50"],
    "k float": ["{n} / 8 - 50"],
    "k date": ["date_add('2000-01-01', interval {n} day)"],
    "k datetime(6)": ["date_add('2000-01-01', interval {n} * 1234567 microsecond)"],
    "k time(2)": ["sec_to_time({n} * 61 - 20000)"],
    "k bit(20)": ["{n}"],
    "k varchar(30) collate utf8mb4_general_ci": ["concat(elt({n} % 4 + 1, 'a', 'B', 'ß', '日'), {n})"],
    "k varchar(30) collate utf8mb4_bin": ["concat(elt({n} % 4 + 1, 'a', 'A', '''', '\\\\'), {n})"],
    "k char(10) character set latin1": ["concat(elt({n} % 3 + 1, 'é', 'E', 'z'), {n})"],
    "k varbinary(10)": ["unhex(lpad(hex({n} * 77), 8, '0'))"],
    "k binary(4)": ["unhex(lpad(hex({n} * 256), 8, '0'))"],
    "a int, k enum('z','y','x')": ["{n} div 3", "{n} % 3 + 1"],
    "a varchar(5), k set('q','p')": ["{n} div 4", "{n} % 4"],
    "a int, b varchar(9), k datetime": ["{n} div 100", "{n} div 10", "date_add('2000-01-01', interval {n} hour)"],
}
"""Columns of a key, and their values of row number n."""


def source_of(url: str, **own: Any) -> MysqlSource:
    return MysqlSource(config.Pipeline("copies", config.Source(url, ("*.*",), own=own), {}))


def create(url: str, name: str, columns: str, values: list[str]) -> None:
    names = [column.split()[0] for column in columns.split(", ") if column[1] == " "]
    chance = random.Random(5)
    numbers = chance.sample(range(ROWS), ROWS)
    with connect(url) as connection:
        connection.query(f"CREATE TABLE {name} ({columns}, n int, pad char(200), PRIMARY KEY ({', '.join(names)}))")
        lines = [f"({', '.join(v.format(n=n) for v in values)}, {n}, 'x')" for n in numbers]
        connection.query(f"INSERT INTO {name} VALUES {', '.join(lines)}")
        connection.query(f"ANALYZE TABLE {name}")


@pytest.mark.long
def test_chunks_of_any_key_together_have_every_row_once(logged_url: str) -> None:
    for number, (columns, values) in enumerate(KEYS.items()):
        create(logged_url, f"t{number}", columns, values)
    source = source_of(logged_url)
    with source.export_snapshot() as snapshot:
        for number, columns in enumerate(KEYS):
            schema = schema_of(source, f"{database_of(logged_url)}.t{number}")
            chunks = source.plan_snapshot(schema, 60_000)
            read = [list(source.read_chunk(schema, chunk, snapshot.id)) for chunk in chunks]
            found = sorted(n for batches in read for batch in batches for n in batch.column("n").to_pylist())
            assert found == list(range(ROWS)), columns
            assert len([batches for batches in read if batches]) > 2, columns
            keys = read[0][0].select(list(schema.key))
            assert source.read_rows(schema, keys).num_rows == keys.num_rows, columns


def test_a_thousand_columns_and_a_value_of_many_packets(logged_url: str) -> None:
    columns = ", ".join(f"c{n} tinyint" for n in range(999))
    with connect(logged_url, max_allowed_packet=1 << 28) as connection:
        connection.query(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
        connection.query(f"INSERT INTO wide VALUES (1, {', '.join(str(n % 100) for n in range(999))})")
        connection.query("CREATE TABLE large (id int PRIMARY KEY, v longtext, w int)")
        connection.query("INSERT INTO large VALUES (1, repeat('ü', 7000000), 5), (2, '', 6)")
        for _ in range(2):
            connection.query("UPDATE large SET v = concat(v, v) WHERE id = 1") if _limit(
                connection
            ) > 60 << 20 else None
        [(length,)] = rows(connection, "SELECT length(v) FROM large WHERE id = 1")
    source, database = source_of(logged_url), database_of(logged_url)
    with source.export_snapshot() as snapshot:
        [wide] = list(source.read_all(schema_of(source, f"{database}.wide"), snapshot.id))
        assert list(wide.to_pylist()[0].values()) == [1, *(n % 100 for n in range(999))]
        large = list(source.read_all(schema_of(source, f"{database}.large"), snapshot.id))
    values = {row["id"]: (row["v"], row["w"]) for batch in large for row in batch.to_pylist()}
    assert values == {1: ("ü" * (length // 2), 5), 2: ("", 6)}


def _limit(connection: Any) -> int:
    return int(rows(connection, "SELECT @@max_allowed_packet")[0][0])


def test_a_table_that_is_another_by_now_is_not_copied(logged_url: str) -> None:
    with connect(logged_url) as connection:
        connection.query("CREATE TABLE items (id int PRIMARY KEY, v int)")
        connection.query("INSERT INTO items VALUES (1, 1)")
        source = source_of(logged_url)
        schema = schema_of(source, f"{database_of(logged_url)}.items")
        with source.export_snapshot() as snapshot:
            [chunk] = source.plan_snapshot(schema, 1 << 20)
            connection.query("DROP TABLE items")
            with pytest.raises(TableRewritten):
                list(source.read_chunk(schema, chunk, snapshot.id))


def test_a_snapshot_that_is_over_is_unavailable(logged_url: str) -> None:
    with connect(logged_url) as connection:
        connection.query("CREATE TABLE items (id int PRIMARY KEY, v int)")
    source = source_of(logged_url)
    schema = schema_of(source, f"{database_of(logged_url)}.items")
    with source.export_snapshot() as snapshot:
        [chunk] = source.plan_snapshot(schema, 1 << 20)
        assert list(source.read_chunk(schema, chunk, snapshot.id)) == []
    with pytest.raises(SourceUnavailable):
        list(source.read_chunk(schema, chunk, snapshot.id))


def test_readers_of_one_moment_under_a_lock_see_the_same(logged_url: str) -> None:
    with connect(logged_url) as connection:
        connection.query("CREATE TABLE items (a int)")
        connection.query("INSERT INTO items VALUES (1), (1)")
        source = source_of(logged_url, moment="lock", readers=2)
        schema = schema_of(source, f"{database_of(logged_url)}.items")
        with source.export_snapshot() as snapshot:
            connection.query("DELETE FROM items")
            for _ in range(3):  # each by another session, or the same once more
                batches = list(source.read_all(schema, snapshot.id))
                assert pa.Table.from_batches(batches).column("a").to_pylist() == [1, 1]


def test_a_role_that_may_only_read_passes_the_preflight_and_one_without_it_is_told_what_to_grant(
    logged_url: str,
) -> None:
    name = f"reader_{abs(hash(logged_url)) % 10**8}"
    with connect(logged_url) as connection:
        connection.query("CREATE TABLE parents (id int PRIMARY KEY)")
        connection.query(
            "CREATE TABLE children (id int, p int, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE)"
        )
        connection.query(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'secret'")
        connection.query(f"GRANT SELECT ON `{database_of(logged_url)}`.* TO {name}@'127.0.0.1'")
        url = logged_url.replace("root@", f"{name}:secret@")
        failing = [each for each in source_of(url).preflight() if each.level is Level.FAIL]
        assert [each.fix for each in failing] == [
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{name}'@'127.0.0.1';"
        ]
        connection.query(failing[0].fix.rstrip(";"))
        found = source_of(url).preflight()
        assert [each for each in found if each.level is Level.FAIL] == []
        warned = {each.subject: each.message for each in found if each.level is Level.WARN}
        assert f"{database_of(logged_url)}.children" in warned["keys"]
        assert source_of(url).facts()
        with source_of(url).export_snapshot() as snapshot:
            assert snapshot.position
        connection.query(f"DROP USER {name}@'127.0.0.1'")
