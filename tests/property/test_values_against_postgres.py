"""PostgreSQL is the oracle: what COPY sends in binary and what it prints must decode to the same, right values."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from datetime import time
from functools import partial

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.columns.text import to_text
from tailrace.errors import ValueRefused
from tailrace.model import shapes
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.sources.postgres.types import (
    CAPTURE_SETTINGS,
    TYPES_SQL,
    column_type,
    has_binary_decoder,
    load_types,
    needs_text,
    text_expression,
)
from tailrace.sources.postgres.values.decoders import decode_values
from tailrace.testing.postgres import PostgresServer

pytestmark = pytest.mark.server

DIGITS_1000 = "7" * 600 + "." + "3" * 400

EDGES: dict[str, str] = {
    "boolean": "true ¦ false",
    "smallint": "-32768 ¦ 0 ¦ 32767",
    "integer": "-2147483648 ¦ 0 ¦ 2147483647",
    "bigint": "-9223372036854775808 ¦ 0 ¦ 9223372036854775807",
    "oid": "0 ¦ 4294967295",
    "real": "0 ¦ -0 ¦ NaN ¦ Infinity ¦ -Infinity ¦ 1e-45 ¦ 3.4028235e38 ¦ 0.1 ¦ 16777216 ¦ 1e10",
    "double precision": "0 ¦ -0 ¦ NaN ¦ Infinity ¦ -Infinity ¦ 5e-324 ¦ 1.7976931348623157e308 ¦ 0.1 ¦ 1e15 ¦ 1e22",
    "numeric": (
        "0 ¦ 0.000 ¦ -1 ¦ NaN ¦ Infinity ¦ -Infinity ¦ 1e500 ¦ 1e-500 ¦ <1000> ¦ -<1000> ¦ 10000 ¦ "
        "0.0001 ¦ 0.00010 ¦ 100000000.00000001 ¦ 9999.9999 ¦ -0.5 ¦ 1e-20 ¦ "
        "123456789012345678901234567890"
    ),
    "numeric(12,2)": "0 ¦ 0.01 ¦ -0.01 ¦ 9999999999.99 ¦ -9999999999.99 ¦ 1 ¦ 100 ¦ 10000 ¦ 10000.10 ¦ NaN",
    "numeric(15,0)": "999999999999999 ¦ -999999999999999 ¦ 0 ¦ 10000",
    "numeric(18,4)": "NaN ¦ 99999999999999.9999 ¦ -0.0001 ¦ 0 ¦ 1",
    "numeric(38,0)": (
        "99999999999999999999999999999999999999 ¦ -99999999999999999999999999999999999999 ¦ 0 ¦ "
        "10000000000000000000000000000000000000 ¦ NaN"
    ),
    "numeric(38,10)": (
        "9999999999999999999999999999.9999999999 ¦ -9999999999999999999999999999.9999999999 ¦ 0.0000000001 ¦ 0"
    ),
    "numeric(38,37)": "9.9999999999999999999999999999999999999 ¦ -9.9999999999999999999999999999999999999 ¦ 1e-37 ¦ 0",
    "numeric(38,38)": "0.99999999999999999999999999999999999999 ¦ 1e-38 ¦ -1e-38 ¦ 0",
    "numeric(5,5)": "0.99999 ¦ 0.00001 ¦ -0.1 ¦ NaN",
    "numeric(40,2)": "99999999999999999999999999999999999999.99 ¦ 0",
    "numeric(3,-2)": "12300 ¦ -99900 ¦ 0",
    "numeric(2,5)": "0.00099 ¦ 0",
    "text": " ¦   ¦ NULL ¦ a'b\"c\\d ¦ line\nbreak\ttab\r ¦ grüße 日本語 ¦ 🚀🧵 ¦ {} ¦ <x5000> ¦ t",
    "character varying(20)": " ¦ abc ¦ 日本語",
    "character(5)": " ¦ abc ¦ 日本 ",
    "bpchar": " ¦ abc  ",
    "name": " ¦ a_name",
    '"char"': " ¦ a ¦ \\200 ¦ \\377",
    "bytea": " ¦ \\x00 ¦ \\xdeadbeef ¦ \\x5c78 ¦ <bytes>",
    "uuid": (
        "00000000-0000-0000-0000-000000000000 ¦ ffffffff-ffff-ffff-ffff-ffffffffffff ¦ "
        "6BA7B810-9DAD-11D1-80B4-00C04FD430C8"
    ),
    "date": (
        "1970-01-01 ¦ 2024-02-29 ¦ 1900-02-28 ¦ 0001-01-01 ¦ 0001-12-31 BC ¦ 0044-03-15 BC ¦ "
        "4713-11-24 BC ¦ 9999-12-31 ¦ 10000-01-01 ¦ 5874897-12-31 ¦ infinity ¦ -infinity ¦ 1899-12-31 ¦ "
        "2170-01-01"
    ),
    "time": "00:00:00 ¦ 24:00:00 ¦ 23:59:59.999999 ¦ 12:00:00.5 ¦ 00:00:00.000001",
    "time(2)": "00:00:00.12 ¦ 24:00:00",
    "timetz": "00:00:00+00 ¦ 24:00:00-15:59:59 ¦ 12:00:00.5+05:30 ¦ 01:02:03.000001-03:30 ¦ 00:00:00+15:59:59",
    "timestamp": (
        "1970-01-01 00:00:00 ¦ 2024-02-29 23:59:59.999999 ¦ 1969-12-31 23:59:59.999999 ¦ "
        "0001-01-01 00:00:00 ¦ 0044-03-15 12:00:00 BC ¦ 4713-11-24 00:00:00 BC ¦ "
        "9999-12-31 23:59:59.999999 ¦ 10000-01-01 00:00:00 ¦ infinity ¦ -infinity ¦ "
        "294247-01-10 04:00:54.775806 ¦ 294246-12-31 23:59:59.5 ¦ 2024-01-01 00:00:00.1 ¦ "
        "294247-01-10 04:00:54.775807 ¦ 294247-01-10 04:00:54.775808 ¦ 294276-12-31 23:59:59.999999"
    ),
    "timestamptz": (
        "1970-01-01 00:00:00+00 ¦ 2024-02-29 23:59:59.999999+05:30 ¦ 0044-03-15 12:00:00.25+00 BC ¦ "
        "infinity ¦ -infinity ¦ 294247-01-10 04:00:54.775806+00 ¦ 0001-01-01 00:00:00+00 ¦ "
        "10000-01-01 00:00:00.5+00 ¦ 294247-01-10 04:00:54.775807+00 ¦ 294276-12-31 23:59:59.999999+00"
    ),
    "timestamptz(3)": "2024-02-29 23:59:59.123+00",
    "interval": (
        "0 ¦ 1 year 2 mons 3 days 04:05:06.789 ¦ -1 year -2 mons +3 days -04:05:06.789 ¦ 1 mon -1 day ¦ "
        "-00:00:00.000001 ¦ 178000000 years ¦ -178000000 years ¦ 2147483647 days ¦ -2147483648 days ¦ "
        "1 day -00:00:01 ¦ -1 day 00:00:01 ¦ 2562047788:00:54.775807 ¦ 13 mons ¦ "
        "-13 mons ¦ 1 year -1 day 30:00:00 ¦ 00:01:00 ¦ 00:00:10.5"
    ),
    "interval year to month": "1 year 2 mons",
    "interval day to second(2)": "1 day 00:00:01.25",
    "json": 'null ¦ 1 ¦  {"a" :  [1, 2.50, "x\\n"]} ¦ "ünï" ¦ []',
    "jsonb": 'null ¦ 1 ¦ {"a": [1, 2.50, "x\\n"]} ¦ "ünï" ¦ [] ¦ 1e400',
    "mood": 'sad ¦ it\'s "ok" ¦ glücklich',
    "price": "1.50 ¦ -99999999.99",
    "tag": " ¦ abc",
    "mytext": " ¦ Ähnlich wie citext",
    "bit(3)": "101 ¦ 000",
    "bit varying": " ¦ 1 ¦ 101010101010101",
    "bit varying(5)": " ¦ 10101",
    "inet": (
        "1.2.3.4 ¦ 1.2.3.4/8 ¦ 0.0.0.0/0 ¦ :: ¦ ::1 ¦ ::2 ¦ ::1.2.3.4 ¦ ::ffff:1.2.3.4 ¦ "
        "2001:db8::1/64 ¦ 1:: ¦ ::ffff:0:0 ¦ 1:0:0:2::3 ¦ 0:1:0:1:0:1:0:1 ¦ 1:2:3:4:5:6:7:8 ¦ "
        "1:0:3:0:0:6:7:8 ¦ 0:0:0:0:0:1:0:0 ¦ fe80::/10 ¦ ::ffff ¦ ::1:0:0/96"
    ),
    "cidr": "10.0.0.0/8 ¦ 1.2.3.4/32 ¦ ::/0 ¦ 2001:db8::/32 ¦ ::1/128 ¦ 192.168.0.0/16",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "point": (
        "(1,2) ¦ (-0,1e300) ¦ (NaN,Infinity) ¦ (0.1,1e15) ¦ (1e-5,0.0001) ¦ "
        "(123456789012345,1234567890123456) ¦ (9007199254740993,5e-324) ¦ "
        "(2.98023223876953125e-08,1.8446744073709552e+19) ¦ (9.5367431640625e-07,2e23)"
    ),
    "lseg": "[(1,2),(3,4.5)]",
    "box": "(3,4),(1,2)",
    "path": "((1,2),(3,4)) ¦ [(1,2),(3,4),(5,6)]",
    "polygon": "((1,2),(3,4),(5,6))",
    "line": "{1,2,3}",
    "circle": "<(1,2),3>",
    "tsvector": " ¦ a:1A,2B fat:3C cat:16383 'it''s' 'back\\\\slash' 'two words':5",
    "tsquery": (
        " ¦ a ¦ a & b | c ¦ a & (b | c) ¦ !a & !(b | c) ¦ a <-> b <3> c ¦ a <-> (b <-> c) ¦ "
        "(a <-> b) <-> c ¦ fat:ab & cat:* ¦ 'it''s' & 'x\\\\y':*CD ¦ !(a & b) | (c & !d) ¦ !!a ¦ "
        "(a | b) <-> (c & d) ¦ a | (b | c)"
    ),
    "jsonpath": '$.a[*] ? (@ > 1) ¦ strict $."x y"',
    "int4range": "empty ¦ [1,5) ¦ (,) ¦ [,3) ¦ [3,]",
    "int8range": "[1,9223372036854775807)",
    "numrange": "[1.50,2.00] ¦ (,NaN) ¦ (-Infinity,1e-30) ¦ [0,0] ¦ [10000,123456789.000)",
    "daterange": "[2024-01-01,2024-02-01) ¦ [-infinity,infinity) ¦ (0044-03-15 BC,)",
    "tsrange": ("[2024-01-01 00:00:00,2024-01-01 12:30:00.5) ¦ [-infinity,infinity] ¦ (,294276-12-31 23:59:59.999999]"),
    "tstzrange": "[2024-01-01 00:00:00+02,) ¦ [0044-03-15 12:00:00+00 BC,2024-01-01 00:00:00.000001+00]",
    "int4multirange": "{} ¦ {[1,3),[5,8)}",
    "int8multirange": "{[1,3)}",
    "nummultirange": "{[1.1,2.2],(3,)}",
    "datemultirange": "{[2024-01-01,2024-02-01)}",
    "tsmultirange": "{[2024-01-01 00:00:00,2024-02-01 00:00:00)}",
    "tstzmultirange": "{(,2024-02-01 00:00:00+00)}",
    "pg_lsn": "0/0 ¦ 16/B374D848 ¦ FFFFFFFF/FFFFFFFF",
    "pg_snapshot": "10:20:10,14,15 ¦ 10:10:",
    "txid_snapshot": "10:20:10,14,15",
    "tid": "(0,1) ¦ (4294967295,65535)",
    "xid": "0 ¦ 4294967295",
    "cid": "4294967295",
    "xid8": "18446744073709551615",
    "int2vector": "1 2 -3 ¦ ",
    "oidvector": "1 4294967295 ¦ ",
    "refcursor": "a cursor",
}
"""Literals by type, with ¦ between them."""

STAND_INS = {
    "<1000>": DIGITS_1000,
    "-<1000>": f"-{DIGITS_1000}",
    "<x5000>": "x" * 5000,
    "<bytes>": "\\x" + "00ff" * 3000,
}
CASES = {name: [STAND_INS.get(value, value) for value in edges.split(" ¦ ")] for name, edges in EDGES.items()}

TEXT_ONLY: dict[str, list[str]] = {
    "money": ["$1,234.50"],
    "regclass": ["pg_class"],
    "regtype": ["integer"],
    "pair": ['(1,"a b")', "(,)"],
    "floatrange": ["[1.5,2.5)"],
    "aclitem": ["=r/postgres"],
}

DEFINITIONS = """
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"', 'glücklich');
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN tag_base AS varchar(10);
CREATE DOMAIN tag AS tag_base CHECK (value <> 'x');
CREATE DOMAIN numbers AS integer[];
CREATE DOMAIN boxy AS box;
CREATE TYPE pair AS (a int, b text);
CREATE TYPE floatrange AS RANGE (subtype = float8);
CREATE TYPE mytext;
CREATE FUNCTION mytextin(cstring) RETURNS mytext LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION mytextout(mytext) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE FUNCTION mytextrecv(internal) RETURNS mytext LANGUAGE internal STABLE STRICT AS 'textrecv';
CREATE FUNCTION mytextsend(mytext) RETURNS bytea LANGUAGE internal STABLE STRICT AS 'textsend';
CREATE TYPE mytext (input = mytextin, output = mytextout, receive = mytextrecv, send = mytextsend, storage = extended);
CREATE TYPE shape;
CREATE FUNCTION shapein(cstring) RETURNS shape LANGUAGE internal IMMUTABLE STRICT AS 'byteain';
CREATE FUNCTION shapeout(shape) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'byteaout';
CREATE TYPE shape (input = shapein, output = shapeout, delimiter = ':', storage = extended);
"""


class Oracle:
    """A database with the types above; asks it for a column's values in every form."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.settings(CAPTURE_SETTINGS)
        connection.execute("SET client_min_messages = error")
        connection.execute(DEFINITIONS)

    def settings(self, values: dict[str, str]) -> None:
        for name, value in values.items():
            self.connection.execute("SELECT set_config(%s, %s, false)", (name, value))

    def column(self, sql_type: str, values: Sequence[str | None]) -> ColumnType:
        """Store the values as a column `c` of table `v`."""
        self.connection.execute("DROP TABLE IF EXISTS v")
        self.connection.execute(f"CREATE TEMP TABLE v (n int, c {sql_type})")
        with self.connection.cursor().copy("COPY v FROM STDIN") as copy:
            for row in enumerate(values):
                copy.write_row(row)
        query = "SELECT atttypid::bigint, atttypmod FROM pg_attribute WHERE attrelid = 'v'::regclass AND attname = 'c'"
        oid, typmod = self.connection.execute(query).fetchone()
        types = load_types(self.connection.execute(TYPES_SQL, {"oids": [oid]}))
        return column_type(oid, typmod, types)

    def binary(self) -> list[bytes | None]:
        with self.connection.cursor().copy("COPY (SELECT c FROM v ORDER BY n) TO STDOUT (FORMAT binary)") as copy:
            data = b"".join(copy)
        return list(copy_fields(data))

    def text(self) -> list[bytes | None]:
        rows = self.connection.execute(f"SELECT {text_expression('c')} FROM v ORDER BY n")
        return [None if value is None else value.encode() for (value,) in rows]


def copy_fields(data: bytes) -> Iterator[bytes | None]:
    """The one field of each row of a binary COPY."""
    at = 19
    while (count := struct.unpack_from(">h", data, at)[0]) != -1:
        assert count == 1
        (size,) = struct.unpack_from(">i", data, at + 2)
        at += 6
        yield None if size < 0 else data[at : at + size]
        at += max(size, 0)


def decode(values: list[bytes | None], form: str, type_: ColumnType) -> pa.Array:
    length = np.array([len(value or b"") for value in values], np.int64)
    place = np.cumsum(length) - length
    kind = np.array([ord("n") if value is None else ord(form) for value in values], np.uint8)
    buffer = np.frombuffer(b"".join(value or b"" for value in values) + bytes(16), np.uint8)
    array = decode_values(buffer, place, length, kind, type_, where="public.v.c")
    array.validate(full="time" not in type_.name and "numeric" not in type_.name)  # 24:00:00 and NaN are beyond it
    assert array.type in (arrow_type(type_), shapes.shaped_type(arrow_type(type_)))
    return array


@pytest.fixture(scope="module")
def oracle(postgres_server: PostgresServer) -> Iterator[Oracle]:
    url = postgres_server.create_database("values_oracle")
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        yield Oracle(connection)
    postgres_server.drop_database("values_oracle")


def both_ways(
    oracle: Oracle, sql_type: str, values: Sequence[str | None]
) -> tuple[ColumnType, pa.Array, list[str | None]]:
    """Decode both forms, compare them, and return the array with what the server prints."""
    type_ = oracle.column(sql_type, values)
    assert has_binary_decoder(type_)
    printed = oracle.text()
    from_binary, from_text = decode(oracle.binary(), "b", type_), decode(printed, "t", type_)
    assert to_text(from_binary, type_).to_pylist() == to_text(from_text, type_).to_pylist()
    if not any(value and "nan" in value.lower() for value in values):
        assert from_binary.equals(from_text)
    return type_, from_binary, [None if value is None else value.decode() for value in printed]


def canonical(printed: str | None, type_: ColumnType) -> str | None:
    """What `to_text` should give, made from what the server printed."""
    match type_.kind:
        case _ if printed is None:
            return None
        case Kind.BOOLEAN:
            return {"t": "true", "f": "false"}[printed]
        case Kind.TIME | Kind.TIMETZ | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            padded = re.sub(r"\.\d+", lambda match: match[0].ljust(7, "0"), printed)
            return re.sub(r"([+-]\d\d)(?=$| BC)", r"\1:00", padded) if type_.kind in ZONED else padded
        case _:
            return printed


ZONED = (Kind.TIMETZ, Kind.TIMESTAMPTZ)


def check(oracle: Oracle, sql_type: str, values: Sequence[str | None]) -> None:
    type_, array, printed = both_ways(oracle, sql_type, values)
    text = to_text(array, type_).to_pylist()
    if type_.kind in (Kind.FLOAT32, Kind.FLOAT64):
        layout = "f" if type_.kind is Kind.FLOAT32 else "d"
        assert [bits(value, layout) for value in text] == [bits(value, layout) for value in printed]
    elif type_.kind is Kind.INTERVAL:
        oracle.settings({"IntervalStyle": "iso_8601"})
        try:
            assert text == [value and value.decode() for value in oracle.text()]
        finally:
            oracle.settings(CAPTURE_SETTINGS)
    else:
        assert text == [canonical(value, type_) for value in printed]


def bits(text: str | None, layout: str) -> bytes | None:
    if text is None or math.isnan(float(text)):
        return text
    return struct.pack(layout, float(text))


@pytest.mark.parametrize("sql_type", CASES)
def test_both_forms_of_a_value_decode_to_what_the_server_prints(oracle: Oracle, sql_type: str) -> None:
    check(oracle, sql_type, [*CASES[sql_type], None, *CASES[sql_type]])


@pytest.mark.parametrize("sql_type", CASES)
def test_an_array_holds_the_values_of_its_elements(oracle: Oracle, sql_type: str) -> None:
    values = CASES[sql_type]
    element, decoded, _ = both_ways(oracle, sql_type, [*values, None])
    literals = ["{}", array_literal([None], element), array_literal([*values, None], element)]
    literals += [array_literal([value], element) for value in values] * 3
    type_, array, _ = both_ways(oracle, f"{sql_type}[]", [*literals, None])
    assert type_ == ColumnType(Kind.ARRAY, f"{element.name}[]", element=element)
    assert len(array[0].as_py() if len(array[0]) == 0 else "?") == 0
    assert array.slice(2, 1).flatten().equals(decoded) or "NaN" in values
    expected = [json_element(text, element) for text in to_text(decoded, element).to_pylist()]
    shown = [json.loads(text, parse_float=str, parse_int=str) for text in to_text(array, type_).to_pylist()[:-1]]
    assert shown[:3] == [[], [None], expected]
    assert shown[3:] == [[value] for value in expected[:-1]] * 3
    assert array[len(array) - 1].as_py() is None


def json_element(text: str | None, element: ColumnType) -> object:
    return {"true": True, "false": False}[text] if text is not None and element.kind is Kind.BOOLEAN else text


def array_literal(values: Sequence[str | None], element: ColumnType) -> str:
    quoted = ['"' + re.sub(r'(["\\])', r"\\\1", value) + '"' if value is not None else "NULL" for value in values]
    return "{" + (";" if element.name == "box" else ",").join(quoted) + "}"


@pytest.mark.parametrize("sql_type", TEXT_ONLY)
def test_a_type_without_a_binary_decoder_travels_as_text(oracle: Oracle, sql_type: str) -> None:
    values = TEXT_ONLY[sql_type]
    type_ = oracle.column(sql_type, values)
    assert needs_text(type_)
    assert not has_binary_decoder(type_)
    assert decode(oracle.text(), "t", type_).to_pylist() == values
    with pytest.raises(ValueRefused, match=r"public\.v\.c"):
        decode([b"\0" * 8], "b", type_)
    array_type = oracle.column(f"{sql_type}[]", [array_literal(values, type_), None])
    assert not has_binary_decoder(array_type)
    assert decode(oracle.text(), "t", array_type).to_pylist() == [values, None]


@pytest.mark.parametrize("sql_type", [*CASES, *TEXT_ONLY])
def test_a_type_has_the_name_that_the_server_gives_it(oracle: Oracle, sql_type: str) -> None:
    query = """SELECT format_type(coalesce(nullif(b.typbasetype, 0), nullif(t.typbasetype, 0), t.oid),
                      greatest(atttypmod, t.typtypmod, b.typtypmod))
               FROM pg_attribute JOIN pg_type t ON t.oid = atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
               WHERE attrelid = 'v'::regclass AND attname = 'c'"""
    type_ = oracle.column(sql_type, [])
    oracle.settings({"search_path": "pg_temp"})  # so that every other schema is named
    try:
        (name,) = oracle.connection.execute(query.replace("'v'", "'pg_temp.v'")).fetchone()
    finally:
        oracle.settings({"search_path": "public"})
    assert type_.name == name


SHAPES = {
    "integer[]": {
        "{1,2}": "[1,2]",
        "{}": "[]",
        "{{1,2},{3,NULL}}": "[[1,2],[3,null]]",
        "{{{1}}}": "[[[1]]]",
        "[0:1]={1,2}": '{"[0:1]":[1,2]}',
        "[-2:-1][5:5]={{1},{2}}": '{"[-2:-1][5:5]":[[1],[2]]}',
    },
    "text[]": {
        r'{{"a,b","\""},{"\\",NULL}}': r'[["a,b","\""],["\\",null]]',
        '{{"","NULL"}}': '[["","NULL"]]',
        '[0:0]={"{x},]=["}': '{"[0:0]":["{x},]=["]}',
    },
    "box[]": {
        "{(2,2),(1,1);NULL}": '["(2,2),(1,1)",null]',
        "{{(2,2),(1,1)};{(4,4),(3,3)}}": '[["(2,2),(1,1)"],["(4,4),(3,3)"]]',
    },
    "numeric(12,2)[]": {"{{NaN},{1.00}}": '[["NaN"],["1.00"]]', "{NaN,NULL}": '["NaN",null]'},
    "double precision[]": {"{{0.1,-0},{NaN,1e+300}}": '[[0.1,-0],["NaN",1e+300]]'},
    "boolean[]": {"{{t},{NULL}}": "[[true],[null]]"},
    "timestamp[]": {'{{"294276-12-31 00:00:00"}}': '[["294276-12-31 00:00:00"]]'},
}


@pytest.mark.parametrize("sql_type", SHAPES)
def test_arrays_of_any_shape_keep_it(oracle: Oracle, sql_type: str) -> None:
    for values in ([*SHAPES[sql_type], None] * 20, *([value] for value in SHAPES[sql_type])):
        type_, array, printed = both_ways(oracle, sql_type, values)
        assert printed == values
        assert to_text(array, type_).to_pylist() == [None if v is None else SHAPES[sql_type][v] for v in values]


def test_text_timestamps_may_have_any_offset(oracle: Oracle) -> None:
    values = ["1883-01-01 00:00:00.5+00", "2024-07-01 12:00:00+00", "0044-03-15 12:00:00+00 BC", "infinity", None]
    type_ = oracle.column("timestamptz", values)
    expected = decode(oracle.binary(), "b", type_)
    for zone in ("America/St_Johns", "Asia/Kolkata", "Europe/Amsterdam", "UTC", "Pacific/Kiritimati"):
        oracle.settings({"TimeZone": zone})
        try:
            assert decode(oracle.text(), "t", type_).equals(expected), zone
        finally:
            oracle.settings(CAPTURE_SETTINGS)


def test_infinite_intervals_are_the_extremes(oracle: Oracle) -> None:
    if oracle.connection.info.server_version < 170_000:
        pytest.skip("intervals are finite before PostgreSQL 17")
    check(oracle, "interval", ["infinity", "-infinity", "1 day"])


def test_nested_domains_and_arrays_of_them_are_their_base(oracle: Oracle) -> None:
    tag = ColumnType(Kind.TEXT, "character varying(10)")
    assert oracle.column("tag[]", []) == ColumnType(Kind.ARRAY, "character varying(10)[]", element=tag)
    integers = ColumnType(Kind.ARRAY, "integer[]", element=ColumnType(Kind.INT32, "integer"))
    assert oracle.column("numbers", []) == integers
    nested = oracle.column("numbers[]", ['{"{1,2}","{}",NULL}'])
    assert nested == ColumnType(Kind.OTHER, "integer[][]")  # no server but the source has an array of such arrays
    assert not has_binary_decoder(nested)


def test_an_array_with_a_delimiter_of_its_own_travels_whole_as_text(oracle: Oracle) -> None:
    type_ = oracle.column("shape[]", ['{"\\\\x01":"\\\\x02"}'])
    assert type_ == ColumnType(Kind.OTHER, "public.shape[]")
    assert not has_binary_decoder(type_)
    assert decode(oracle.text(), "t", type_).to_pylist() == ['{"\\\\x01":"\\\\x02"}']


def test_long_and_short_arrays_in_one_column(oracle: Oracle) -> None:
    lists = [list(range(size)) for size in (0, 1, 100, 2, 5000, 3, 7, 1) * 8]
    type_, array, _ = both_ways(oracle, "bigint[]", ["{" + ",".join(map(str, values)) + "}" for values in lists])
    assert array.to_pylist() == lists
    assert to_text(array, type_).to_pylist() == [json.dumps(values, separators=(",", ":")) for values in lists]


def test_rows_in_both_forms_and_without_a_value_keep_their_order(oracle: Oracle) -> None:
    type_ = oracle.column("numeric(12,2)", [f"{i}.5" for i in range(100)])
    binary, text = oracle.binary(), oracle.text()
    values = [(binary, text, [b""] * 100)[i % 3][i] for i in range(100)]
    kind = np.array([ord("btu"[i % 3]) for i in range(100)], np.uint8)
    length = np.array([len(value) for value in values], np.int64)
    buffer = np.frombuffer(b"".join(values) + bytes(16), np.uint8)
    array = decode_values(buffer, np.cumsum(length) - length, length, kind, type_, where="v.c")
    assert to_text(array, type_).to_pylist() == [None if i % 3 == 2 else f"{i}.50" for i in range(100)]


# --- random values ----------------------------------------------------------------------------------------------------

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(characters, max_size=40)


def to_second(value: time) -> str:
    return f"{value:%H:%M:%S}"


def fraction(scale: int, number: int) -> str:
    sign, digits = "-" * (number < 0), str(abs(number)).rjust(scale + 1, "0")
    return sign + (digits[:-scale] + "." + digits[-scale:] if scale else digits)


def scaled(precision: int, scale: int) -> st.SearchStrategy[str]:
    digits = st.integers(0, precision).flatmap(lambda n: st.integers(1 - 10**n, 10**n - 1))
    return digits.map(partial(fraction, scale))


def moment(microseconds: int, suffix: str = "") -> str:
    """A timestamp literal from microseconds since 2000, by numpy's calendar."""
    day, rest = divmod(microseconds, 86_400_000_000)
    date = np.datetime64("2000-01-01") + np.timedelta64(day, "D")
    year, month, month_day = (str(date).lstrip("-")).split("-")
    era = ""
    if str(date).startswith("-") or int(year) == 0:
        year, era = str(int(year) + 1).rjust(4, "0"), " BC"
    seconds, micro = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micro:06d}"
    return f"{year}-{month}-{month_day} {clock}{suffix}{era}"


moments = st.one_of(
    st.integers(-211_813_488_000_000_000, 9_222_424_800_000_000_000 - 946_684_800_000_000),
    st.integers(-63_000_000_000_000_000, 252_000_000_000_000_000),
    st.integers(-1_000_000_000, 1_000_000_000).map(lambda seconds: seconds * 1_000_000),
)
small = st.integers(-(10**6), 10**6)
points = st.builds("({!r},{!r})".format, st.floats(), st.floats())
lexemes = st.text(characters.filter(lambda c: not c.isspace()), min_size=1, max_size=8)
quoted_lexemes = lexemes.map(lambda text: "'" + text.replace("\\", "\\\\").replace("'", "''") + "'")
queries = st.recursive(
    quoted_lexemes,
    lambda inner: st.one_of(
        inner.map(lambda query: f"!({query})"),
        st.tuples(inner, st.sampled_from(["&", "|", "<->", "<2>"]), inner).map(
            lambda parts: "({} {} {})".format(*parts)
        ),
    ),
    max_leaves=8,
)

RANDOM: dict[str, st.SearchStrategy[str]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "real": st.floats(width=32).map(repr),
    "double precision": st.floats().map(repr),
    "numeric(12,2)": scaled(12, 2),
    "numeric(9,0)": scaled(9, 0),
    "numeric(14,5)": scaled(14, 5),
    "numeric(18,3)": scaled(18, 3),
    "numeric(30,9)": scaled(30, 9),
    "numeric(38,17)": scaled(38, 17),
    "numeric(38,38)": scaled(38, 38),
    "numeric": st.integers(0, 60).flatmap(lambda scale: scaled(90, scale)),
    "text": texts,
    "bytea": st.binary(max_size=60).map(lambda data: "\\x" + data.hex()),
    "uuid": st.uuids().map(str),
    "date": st.integers(-2_451_545, 2_145_031_948 // 1000).map(
        lambda day: moment(day * 86_400_000_000).replace(" 00:00:00.000000", "")
    ),
    "time": st.integers(0, 86_400_000_000 - 1).map(lambda us: moment(us)[11:]),
    "timetz": st.builds(
        "{}{}{}".format, st.times(), st.sampled_from("+-"), st.times(max_value=time(15, 59, 59)).map(to_second)
    ),
    "timestamp": moments.map(moment),
    "timestamptz": moments.map(lambda us: moment(us, "+00")),
    "interval": st.tuples(small, small, st.integers(-(2**62), 2**62)).map(
        "{0[0]} mons {0[1]} days {0[2]} microseconds".format
    ),
    "jsonb": st.recursive(st.none() | st.booleans() | st.integers() | texts, st.lists, max_leaves=5)
    .map(json.dumps)
    .filter(lambda text: "\\u0000" not in text),
    "text[]": st.lists(st.none() | texts, max_size=6).map(
        lambda values: array_literal(values, ColumnType(Kind.TEXT, "text"))
    ),
    "numeric(12,2)[]": st.lists(st.just("NULL") | scaled(12, 2), max_size=6).map(
        lambda values: "{" + ",".join(values) + "}"
    ),
    "numeric[]": st.lists(st.just("NULL") | scaled(40, 11), max_size=6).map(
        lambda values: "{" + ",".join(values) + "}"
    ),
    "inet": st.tuples(st.ip_addresses(), st.integers(0, 32)).map("{0[0]}/{0[1]}".format) | st.ip_addresses().map(str),
    "point": points,
    "bit varying": st.text("01", max_size=40),
    "tsvector": st.lists(quoted_lexemes, max_size=5).map(" ".join),
    "tsquery": queries,
    "numrange": st.tuples(scaled(12, 2), scaled(12, 2)).map(lambda pair: "[{},{}]".format(*sorted(pair, key=float))),
}


@pytest.mark.parametrize("sql_type", RANDOM)
def test_random_values_decode_to_what_the_server_prints(oracle: Oracle, sql_type: str) -> None:
    compare = both_ways if sql_type.endswith("[]") else check

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.none() | RANDOM[sql_type], max_size=40))
    def run(values: list[str | None]) -> None:
        compare(oracle, sql_type, values)

    run()
