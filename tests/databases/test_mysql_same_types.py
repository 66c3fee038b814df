"""MySQL and MariaDB into MySQL and MariaDB: the copy has the types, the collations and the values of its source.

The two servers are compared with each other, by what they print and by what their catalogs say.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.mysql_sources import Logging
from support.mysql_types import OWN, TYPES, fill
from support.pipelines import run_until_current, states, tailrace, write_pipeline
from tailrace.sources.mysql.connection import connect, database_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

KEYS = {
    "folded": ("varchar(40) COLLATE utf8mb4_general_ci", ["'ab'", "'Cd  '", "'éé'", "''"]),
    "exact": ("varchar(40) COLLATE utf8mb4_bin", ["'ab'", "'AB'", "'é'"]),
    "swedish": ("char(10) CHARACTER SET latin1", ["'ÿé'", "'a'", "'z  '"]),
    "cyrillic": ("varchar(300) CHARACTER SET cp1251", ["'Привет'", "'х'"]),
    "bytes": ("binary(4)", ["x'00ff'", "x'01020300'"]),
    "longer": ("varbinary(300)", ["x'00'", "x'0000'", "x''"]),
    "labels": ("enum('b','a','it''s')", ["'a'", "'b'", "'it''s'"]),
    "labelled": ("set('x','y','z')", ["'x,z'", "''", "'y'"]),
    "bits": ("bit(9)", ["b'101010101'", "b'0'"]),
    "years": ("year", ["2024", "0", "1901"]),
    "moments": ("timestamp(3)", ["'2024-03-31 02:30:00.125'", "'1970-01-01 00:00:01'"]),
    "days": ("datetime(1)", ["'2024-02-29 12:34:56.7'"]),
    "times": ("time(2)", ["'-838:59:58.25'", "'00:00:00.01'"]),
    "amounts": ("decimal(65,30) unsigned", ["1.5", "0.000000000000000000000000000001"]),
    "large": ("bigint unsigned", ["18446744073709551615", "0"]),
}
SHOWN = r"\b([a-z]*int|year)\(\d+\)|( zerofill)"


def create(url: str, types: dict[str, list[str]]) -> None:
    columns = ", ".join(f"c{place} {type_} NULL" for place, type_ in enumerate(types))
    with connect(url) as connection:
        connection.query(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        connection.query(f"CREATE TABLE keyless (id int, {columns}) ROW_FORMAT=DYNAMIC")
        for name, (type_, values) in KEYS.items():
            connection.query(f"CREATE TABLE k_{name} (k {type_} PRIMARY KEY, v int)")
            for value in values:
                connection.query(f"INSERT INTO k_{name} VALUES ({value}, 1)")
    for table in ("every_type", "keyless"):
        fill(url, types, random.randrange(10**6), table)


def change(url: str, row_image: str) -> None:
    with connect(url) as connection:
        connection.query(f"SET SESSION binlog_row_image = '{row_image}'")
        connection.query("UPDATE every_type SET c0 = 5 WHERE id % 2 = 0")
        connection.query("UPDATE every_type SET id = id + 5000, c1 = NULL WHERE id % 5 = 0")
        connection.query("DELETE FROM every_type WHERE id % 7 = 0")
        for name in KEYS:
            connection.query(f"UPDATE k_{name} SET v = v + 1")
        connection.query("UPDATE k_folded SET k = upper(k)")
        connection.query("UPDATE k_folded SET k = 'cd' WHERE k = 'CD'")
        connection.query("SET SESSION binlog_row_image = 'FULL'")
        connection.query("DELETE FROM keyless WHERE id % 3 = 0")
        connection.query("INSERT INTO keyless SELECT * FROM every_type WHERE id % 2 = 0 LIMIT 3")


def printed(server: Any, database: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that a database has, as its server prints it."""
    found = {}
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, 9) <> %s"
    for (table,) in server.execute(tables, [database, "_tailrace"]):
        shown = ", ".join(f"HEX(`{name}`)" for name, *_ in columns(server, database, table))
        found[table] = sorted(server.execute(f"SELECT {shown} FROM `{database}`.`{table}`"), key=repr)
    return found


def columns(server: Any, database: str, table: str) -> list[tuple[Any, ...]]:
    """Names, types and collations; the width in which an integer is shown means nothing."""
    query = (
        "SELECT column_name, column_type, collation_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND LEFT(column_name, 9) <> '_tailrace' ORDER BY ordinal_position"
    )
    found = server.execute(query, [database, table])
    return [(name, re.sub(SHOWN, lambda found: found[1] or "", type_), collation) for name, type_, collation in found]


def assert_same(source: Any, target: Any, names: tuple[str, str]) -> None:
    theirs, ours = printed(source, names[0]), printed(target, names[1])
    assert theirs.keys() == ours.keys()
    for table, rows in theirs.items():
        assert columns(target, names[1], table) == columns(source, names[0], table)
        assert ours[table] == rows, table


def verified(file: Path) -> None:
    ended = tailrace("verify", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("logging", ["mysql", "mariadb"], indirect=True)
def test_a_copy_between_servers_of_one_kind_has_the_same_types_collations_and_bytes(
    logging: Logging, logged_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    scheme = logging.flavor.scheme
    target: MySqlServer | MariaDbServer = request.getfixturevalue(f"{scheme}_server")
    url = request.getfixturevalue(f"{scheme}_url")
    names = (database_of(logged_url), database_of(url))
    create(logged_url, TYPES | OWN[scheme])
    sink = {"url": url, "schemas": {names[0]: names[1]}}
    file = write_pipeline(tmp_path, logged_url, {"copy": sink})
    run_until_current(file)
    assert {state for state, _ in states(file).values()} == {"live"}, states(file)
    assert_same(logging, target, names)
    change(logged_url, "FULL")
    change(logged_url, "MINIMAL")
    run_until_current(file)
    assert {state for state, _ in states(file).values()} == {"live"}, states(file)
    assert_same(logging, target, names)
    verified(file)
