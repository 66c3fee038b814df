"""Types of MySQL and MariaDB in sinks of their kind: which are kept, what fits into what, and what no text tells."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.model.positions import Binlog, GtidSet, MariaDbGtids, Order, compare
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Field
from tailrace.sinks.sql.mysql import binaries
from tailrace.sinks.sql.mysql.encoding import MySqlEncoding
from tailrace.sinks.sql.mysql.fitting import fits
from tailrace.sinks.sql.mysql.flavor import MARIADB, MYSQL, Flavor
from tailrace.sinks.sql.mysql.native import kept, staged
from tailrace.sinks.sql.mysql.types import MySqlTypes
from tailrace.sources.mysql.types import column_type

LATIN = "CHARACTER SET latin1 COLLATE latin1_swedish_ci"
NEWEST = "utf8mb4_0900_ai_ci"


@pytest.mark.parametrize(
    ("text", "collation", "in_mysql", "in_mariadb"),
    [
        ("int(10) unsigned zerofill", None, "int unsigned", "int unsigned"),
        ("bit(64)", None, "bit(64)", "bit(64)"),
        ("bit(1)", None, "bit(1)", "bit(1)"),
        ("year(4)", None, "year", "year"),
        ("decimal(65,30)", None, "decimal(65,30)", "decimal(65,30)"),
        ("timestamp(3)", None, "timestamp(3) NULL", "timestamp(3) NULL"),
        ("varbinary(300)", None, "varbinary(300)", "varbinary(300)"),
        ("geomcollection", None, "geometrycollection", "geometrycollection"),
        ("varchar(20)", "latin1_swedish_ci", f"varchar(20) {LATIN}", f"varchar(20) {LATIN}"),
        ("varchar(20)", NEWEST, f"varchar(20) CHARACTER SET utf8mb4 COLLATE {NEWEST}", None),
        ("enum('b','it''s','x\\\\y')", "latin1_swedish_ci", *[f"enum('b','it''s','x\\\\y') {LATIN}"] * 2),
        ("set('a','b')", "latin1_swedish_ci", *[f"set('a','b') {LATIN}"] * 2),
        ("json", None, "json", None),
        ("vector(3)", None, "vector(3)", None),
        ("uuid", None, None, "uuid"),
        ("inet6", None, None, "inet6"),
    ],
)
def test_a_type_is_kept_where_the_server_has_it(
    text: str, collation: str | None, in_mysql: str | None, in_mariadb: str | None
) -> None:
    type_ = column_type(text, collation, is_mariadb=False)
    assert (kept(type_, MYSQL), kept(type_, MARIADB)) == (in_mysql, in_mariadb)


@pytest.mark.parametrize("flavor", [MYSQL, MARIADB], ids=lambda flavor: flavor.name)
@pytest.mark.parametrize(
    "type_",
    [
        ColumnType(Kind.JSON, "json"),
        ColumnType(Kind.UUID, "uuid"),
        ColumnType(Kind.OTHER, "bit(3)"),
        ColumnType(Kind.TEXT, "text"),
        ColumnType(Kind.DATE, "date"),
    ],
    ids=lambda type_: type_.name,
)
def test_a_type_of_another_database_that_is_called_the_same_is_not(flavor: Flavor, type_: ColumnType) -> None:
    assert kept(type_, flavor) is None


def test_what_may_be_long_is_staged_so_that_it_does_not_count_for_the_size_of_a_row() -> None:
    assert staged(column_type("varchar(300)", "latin1_swedish_ci", is_mariadb=False), MYSQL) == f"longtext {LATIN}"
    assert staged(column_type("varbinary(300)", None, is_mariadb=False), MYSQL) == "longblob"
    assert staged(column_type("varchar(255)", "latin1_swedish_ci", is_mariadb=False), MYSQL) == f"varchar(255) {LATIN}"


@pytest.mark.parametrize(
    ("wanted", "existing", "expected"),
    [
        (f"text {LATIN}", f"text {LATIN}", True),
        (f"text {LATIN}", "text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", False),
        (f"text {LATIN}", "mediumtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", True),
        (f"text {LATIN}", "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", True),
        ("text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", f"longtext {LATIN}", False),
        (f"varchar(20) {LATIN}", f"varchar(19) {LATIN}", False),
        (f"enum('a') {LATIN}", f"enum('b','a') {LATIN}", True),
        (f"enum('a','c') {LATIN}", f"enum('b','a') {LATIN}", False),
        (f"enum('a') {LATIN}", "varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", True),
        ("bit(8)", "bit(9)", True),
        ("bit(9)", "bit(8)", False),
        ("vector(3)", "vector(4)", False),
        ("binary(4)", "binary(5)", False),
        ("timestamp(3) NULL", "timestamp(3)", True),
        ("timestamp(3) NULL", "timestamp", False),
        ("decimal(10,2) unsigned", "decimal(10,2)", True),
        ("decimal(10,2)", "decimal(10,2) unsigned", False),
        ("json", "json", True),
        ("json", "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", False),
    ],
)
def test_values_fit_into_a_column_that_takes_all_of_them(wanted: str, existing: str, expected: bool) -> None:
    assert fits(wanted, existing) is expected


def test_a_key_in_the_collation_of_its_source_is_exact_and_one_in_another_is_not() -> None:
    types = MySqlTypes(MYSQL)
    schema = TableSchema("s", "t", (Column("k", column_type("varchar(9)", NEWEST, is_mariadb=False)),), ("k",))
    wanted = types.declared(schema)["k"]
    assert types.is_exact_key(wanted, wanted)
    assert types.is_exact_key(wanted, "varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin")
    assert not types.is_exact_key(wanted, "varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")


def test_a_document_whose_numbers_its_text_does_not_tell_is_a_misfit() -> None:
    type_ = column_type("json", None, is_mariadb=False)
    told = ["1.5", "1.0", "-0.0", "1e20", "18446744073709551615", '{"a": ["1.50", "\\"1.50"]}', None, "null"]
    lost = ["1.50", "[1.10]", '{"a": 123456789012345678.5}', "18446744073709551616", '["x\\\\", 2.00]']
    found = MySqlEncoding(MYSQL).misfits(Field("t.j", type_, pa.array(told + lost)))
    assert found is not None
    assert found[0].tolist() == [False] * len(told) + [True] * len(lost)
    assert MySqlEncoding(MARIADB).misfits(Field("t.j", type_, pa.array(lost))) is None  # it is text there


@pytest.mark.parametrize("srid", ["00000000", "e6100000"])
@pytest.mark.parametrize("point", ["0101000000" + "00" * 16, "0000000001" + "3f" * 16])
def test_a_geometry_becomes_what_the_server_stores_and_comes_back(srid: str, point: str) -> None:
    stored = bytes.fromhex(srid + point)
    ewkb = binaries.wkb(stored)
    assert binaries.geometries(pa.array([ewkb, None], pa.binary())).to_pylist() == [stored, None]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Binlog, "binlog.000042:1337 from binlog.000041:4"),
        (GtidSet, "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9 from 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-4"),
        (MariaDbGtids, "0-1-9,1-1-3 from 0-1-4"),
    ],
)
def test_a_place_may_say_where_to_read_from(form: type[Binlog | GtidSet | MariaDbGtids], text: str) -> None:
    found, plain = form.parse(text), text.partition(" from ")[0]
    assert found is not None
    assert str(found) == text
    assert found.since == text.partition(" from ")[2]
    assert compare("mariadb" if form is MariaDbGtids else "mysql", text, plain) is Order.SAME
