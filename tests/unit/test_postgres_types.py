"""From OIDs and type modifiers to column types; the server's own names are checked in tests/property."""

from __future__ import annotations

import pytest

from tailrace.errors import DecodeError
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.sources.postgres.types import (
    TypeInfo,
    column_type,
    has_binary_decoder,
    load_types,
    needs_text,
    text_expression,
)

MOOD = TypeInfo(20_000, "public.mood", "e", labels=("sad", "ok"))
MOODS = TypeInfo(20_001, "public.mood[]", "b", element=20_000)
PRICE = TypeInfo(20_002, "public.price", "d", base=1700, base_typmod=((10 << 16) | 2) + 4)
DEAR = TypeInfo(20_003, "public.dear", "d", base=20_002)
PAIR = TypeInfo(20_004, "public.pair", "c")
CITEXT = TypeInfo(20_005, "public.citext", "b", is_text=True)
TYPES = {info.oid: info for info in (MOOD, MOODS, PRICE, DEAR, PAIR, CITEXT)}


@pytest.mark.parametrize(
    ("oid", "typmod", "expected"),
    [
        (20, -1, ColumnType(Kind.INT64, "bigint")),
        (26, -1, ColumnType(Kind.INT64, "oid")),
        (1700, -1, ColumnType(Kind.NUMERIC, "numeric")),
        (1700, ((12 << 16) | 2) + 4, ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)),
        (1700, ((38 << 16) | 38) + 4, ColumnType(Kind.DECIMAL, "numeric(38,38)", 38, 38)),
        (1700, ((39 << 16) | 2) + 4, ColumnType(Kind.NUMERIC, "numeric(39,2)")),
        (1700, ((3 << 16) | 0x7FE) + 4, ColumnType(Kind.NUMERIC, "numeric(3,-2)")),
        (1700, ((2 << 16) | 5) + 4, ColumnType(Kind.NUMERIC, "numeric(2,5)")),
        (1043, 24, ColumnType(Kind.TEXT, "character varying(20)")),
        (1042, -1, ColumnType(Kind.TEXT, "bpchar")),
        (1184, 3, ColumnType(Kind.TIMESTAMPTZ, "timestamp(3) with time zone")),
        (1560, 8, ColumnType(Kind.OTHER, "bit(8)")),
        (20_000, -1, ColumnType(Kind.ENUM, "public.mood", labels=("sad", "ok"))),
        (20_003, -1, ColumnType(Kind.DECIMAL, "numeric(10,2)", 10, 2)),
        (20_004, -1, ColumnType(Kind.OTHER, "public.pair")),
        (20_005, -1, ColumnType(Kind.TEXT, "public.citext")),
    ],
)
def test_a_column_type(oid: int, typmod: int, expected: ColumnType) -> None:
    assert column_type(oid, typmod, TYPES) == expected


def test_an_array_passes_its_modifier_to_its_elements() -> None:
    element = ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)
    type_ = column_type(1231, ((12 << 16) | 2) + 4, {})
    assert type_ == ColumnType(Kind.ARRAY, "numeric(12,2)[]", element=element)
    assert arrow_type(type_) == arrow_type(type_)
    assert column_type(20_001, -1, TYPES).element == column_type(20_000, -1, TYPES)


def test_an_array_with_a_delimiter_of_its_own_stays_text() -> None:
    types = {
        30_000: TypeInfo(30_000, "public.geometry", "b", delimiter=":"),
        30_001: TypeInfo(30_001, "public.geometry[]", "b", element=30_000, delimiter=":"),
    }
    assert column_type(30_001, -1, types) == ColumnType(Kind.OTHER, "public.geometry[]")
    assert not has_binary_decoder(column_type(30_001, -1, types))


def test_a_type_that_nobody_described_is_an_error() -> None:
    with pytest.raises(DecodeError, match="99999"):
        column_type(99_999, -1, TYPES)


def test_rows_of_the_catalog_are_loaded_by_oid() -> None:
    rows = [(20_000, "public.mood", "e", 0, -1, 0, ["sad", "ok"], False, ",", [], 0)]
    assert load_types(rows) == {20_000: MOOD}


@pytest.mark.parametrize(
    ("type_", "as_text", "decodes"),
    [
        (column_type(20, -1, {}), False, True),
        (column_type(1560, 8, {}), True, True),
        (column_type(1041, -1, {}), True, True),
        (column_type(790, -1, {}), True, False),
        (column_type(20_004, -1, TYPES), True, False),
        (column_type(20_001, -1, TYPES), False, True),
        (ColumnType(Kind.ARRAY, "public.pair[]", element=ColumnType(Kind.OTHER, "public.pair")), True, False),
        (ColumnType(Kind.OTHER, "public.inet"), True, False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_travels_as_text_and_what_has_a_binary_decoder(type_: ColumnType, as_text: bool, decodes: bool) -> None:
    assert needs_text(type_) is as_text
    assert has_binary_decoder(type_) is decodes


def test_the_text_expression_keeps_null() -> None:
    assert text_expression('"c"') == 'CASE WHEN "c" IS DISTINCT FROM NULL THEN pg_catalog.concat("c") END'
