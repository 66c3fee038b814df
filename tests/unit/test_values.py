"""decode_values without a server: NULLs, mixed forms, and bytes that do not follow the protocol."""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tailrace.columns import characters
from tailrace.columns.text import to_text
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model import shapes
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.sources.postgres.types import _ELEMENTS, _TABLE, column_type, has_binary_decoder
from tailrace.sources.postgres.values.decoders import decode_values

BUILT_IN = [column_type(oid, -1, {}) for oid, *_ in _TABLE]
ARRAYS = [column_type(oid, -1, {}) for oid in _ELEMENTS]
NUMERICS = [column_type(1700, ((p << 16) | s) + 4, {}) for p, s in ((12, 2), (18, 4), (38, 10), (38, 38), (1, 0))]
INTEGER, BIGINT, TEXT, BOOLEAN = (column_type(oid, -1, {}) for oid in (23, 20, 25, 16))
NUMERIC = column_type(1700, -1, {})
MONEY_LIKE = column_type(1700, ((12 << 16) | 2) + 4, {})


def decode(values: Sequence[bytes | None], kinds: str, type_: ColumnType) -> pa.Array:
    """The values one after the other in a buffer, with noise around each."""
    parts, place, length = [], [], []
    for value in values:
        parts.append(b"\xff\xfe\xfd")
        place.append(sum(map(len, parts)))
        length.append(len(value or b""))
        parts.append(value or b"")
    buffer = np.frombuffer(b"".join(parts) + bytes(16), np.uint8)
    kind = np.frombuffer((kinds * len(values))[: len(values)].encode(), np.uint8)
    return decode_values(buffer, np.array(place, np.int64), np.array(length, np.int64), kind, type_, where="s.t.c")


def numeric(sign: int, weight: int, scale: int, *groups: int) -> bytes:
    return struct.pack(f">HhHH{len(groups)}H", len(groups), weight, sign, scale, *groups)


def array(*elements: bytes | None, dimensions: int = 1, first: int = 1) -> bytes:
    body = b"".join(b"\xff" * 4 if e is None else struct.pack(">i", len(e)) + e for e in elements)
    return struct.pack(">iii", dimensions, 0, 23) + struct.pack(">ii", len(elements), first) * dimensions + body


def test_null_and_unchanged_toast_are_null() -> None:
    assert decode([b"\0\0\0\1", None, None, b"\0\0\0\2"], "bnub", INTEGER).to_pylist() == [1, None, None, 2]


@pytest.mark.parametrize("type_", BUILT_IN + ARRAYS + NUMERICS, ids=lambda type_: type_.name)
def test_a_column_without_any_value_has_its_type(type_: ColumnType) -> None:
    assert decode([None, None], "nu", type_).equals(pa.nulls(2, arrow_type(type_)))
    assert decode([], "b", type_).equals(pa.array([], arrow_type(type_)))


def test_a_column_may_mix_text_and_binary() -> None:
    assert decode([b"7", b"\0\0\0\1", None, b"-8"], "tbnt", INTEGER).to_pylist() == [7, 1, None, -8]


def test_the_letters_t_and_f_are_text_in_a_text_column() -> None:
    assert decode([b"t", b"f"], "t", TEXT).to_pylist() == ["t", "f"]
    assert decode([b"t", b"f", b"true"], "t", BOOLEAN).to_pylist() == [True, False, True]


def test_an_empty_string_is_not_null() -> None:
    assert decode([b"", None, b""], "bnt", TEXT).to_pylist() == ["", None, ""]


def test_values_may_lie_in_any_order() -> None:
    buffer = np.frombuffer(b"cccbbaXXXX", np.uint8)
    place, length = np.array([5, 3, 0, 3]), np.array([1, 2, 3, 2])
    array_ = decode_values(buffer, place, length, np.full(4, ord("b"), np.uint8), TEXT, where="x")
    assert array_.to_pylist() == ["a", "bb", "ccc", "bb"]


def test_a_buffer_without_padding_is_enough() -> None:
    for value, type_ in ((b"ab", TEXT), (numeric(0, 0, 2, 1), MONEY_LIKE), (numeric(0, 0, 0), NUMERIC)):
        one = np.array([0]), np.array([len(value)]), np.frombuffer(b"b", np.uint8)
        assert decode_values(np.frombuffer(value, np.uint8), *one, type_, where="x").null_count == 0


@pytest.mark.parametrize(("place", "length"), [(-1, 4), (15, 4), (10**12, 4), (0, 10**12), (0, -1), (2**63 - 2, 4)])
def test_a_place_outside_of_the_buffer_is_malformed(place: int, length: int) -> None:
    arguments = np.zeros(16, np.uint8), np.array([place]), np.array([length]), np.frombuffer(b"b", np.uint8)
    for type_ in (INTEGER, TEXT, NUMERIC):
        with pytest.raises(DecodeError, match=r"s\.t\.c"):
            decode_values(*arguments, type_, where="s.t.c")


def test_an_unknown_kind_is_malformed() -> None:
    with pytest.raises(DecodeError, match="unknown kind"):
        decode([b"", b""], "bx", TEXT)


@pytest.mark.parametrize(
    "type_",
    [column_type(oid, -1, {}) for oid in (16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 2950)],
)
def test_a_fixed_width_value_of_another_width_is_malformed(type_: ColumnType) -> None:
    with pytest.raises(DecodeError, match="bytes long"):
        decode([b"\0" * 3], "b", type_)


def test_text_that_is_not_utf8_is_malformed() -> None:
    for form in "bt":
        with pytest.raises(DecodeError, match="UTF-8"):
            decode([b"ok", b"\xc3("], form, TEXT)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numeric(0, 0, 2), "0.00"),
        (numeric(0, 0, 2, 1, 500), "1.05"),
        (numeric(0x4000, -1, 2, 100), "-0.01"),
        (numeric(0, 2, 2, 99, 9999, 9999, 9900), "9999999999.99"),
        (numeric(0, 1, 0, 1), "10000.00"),
    ],
)
def test_decimals(value: bytes, expected: str) -> None:
    assert decode([value, None, value], "bnb", MONEY_LIKE).to_pylist() == [Decimal(expected), None, Decimal(expected)]


@pytest.mark.parametrize(
    "value",
    [
        numeric(0xD000, 0, 0),
        numeric(0xF000, 0, 0),
        numeric(0, 2, 0, 100),
        numeric(0, 3, 0, 1),
        numeric(0, 32767, 0, 1),
        numeric(0, -1, 3, 10),
        numeric(0, -2, 8, 1),
        numeric(0, 0, 0, *[1] * 30),
    ],
)
def test_a_number_that_does_not_fit_is_refused(value: bytes) -> None:
    with pytest.raises(ValueRefused, match=r"s\.t\.c \(numeric\(12,2\)\)"):
        decode([value], "b", MONEY_LIKE)


@pytest.mark.parametrize("type_", NUMERICS, ids=lambda type_: type_.name)
@pytest.mark.parametrize("value", [numeric(0xD000, 0, 0), numeric(0xF000, 0, 0), numeric(0, 0, 0, *[1] * 30)])
def test_no_decimal_holds_infinity_or_endless_digits(value: bytes, type_: ColumnType) -> None:
    with pytest.raises(ValueRefused):
        decode([value], "b", type_)


def test_a_number_just_past_128_bits_is_refused() -> None:
    with pytest.raises(ValueRefused):
        decode([numeric(0, 9, 0, *[9999] * 10)], "b", column_type(1700, ((38 << 16) | 0) + 4, {}))


def test_text_that_does_not_fit_a_decimal_is_refused_and_other_text_malformed() -> None:
    for text in (b"Infinity", b"12345678901.00", b"0.001", b"9" * 50):
        with pytest.raises(ValueRefused):
            decode([text], "t", MONEY_LIKE)
    for text in (b"", b"abc", b"1,5", b"--1"):
        with pytest.raises(DecodeError):
            decode([text], "t", MONEY_LIKE)


def test_infinities_are_the_extreme_integers() -> None:
    top, bottom = struct.pack(">q", 2**63 - 1), struct.pack(">q", -(2**63))
    stamps = decode([top, bottom, b"infinity", b"-infinity"], "bbtt", column_type(1184, -1, {})).view(pa.int64())
    assert stamps.to_pylist() == [2**63 - 1, -(2**63)] * 2
    top, bottom = struct.pack(">i", 2**31 - 1), struct.pack(">i", -(2**31))
    dates = decode([top, bottom, b"infinity", b"-infinity"], "bbtt", column_type(1082, -1, {})).view(pa.int32())
    assert dates.to_pylist() == [2**31 - 1, -(2**31)] * 2


def test_24_00_00_is_a_time() -> None:
    times = decode([struct.pack(">q", 86_400_000_000), b"24:00:00"], "bt", column_type(1083, -1, {}))
    assert times.view(pa.int64()).to_pylist() == [86_400_000_000] * 2


def test_arrays_of_one_dimension_are_lists() -> None:
    values = [array(b"\0\0\0\1", None, b"\0\0\0\2"), struct.pack(">iii", 0, 0, 23), None, b"{3,NULL}", b"{}"]
    assert decode(values, "bbntt", column_type(1007, -1, {})).to_pylist() == [[1, None, 2], [], None, [3, None], []]


@pytest.mark.parametrize("type_", NUMERICS, ids=lambda type_: type_.name)
def test_nan_is_among_the_decimals_and_others_stay(type_: ColumnType) -> None:
    values = [numeric(0xC000, 0, 0), numeric(0, 0, 0), None, b"NaN", b"0"]
    zero = f"{Decimal(0):.{type_.scale}f}"
    for times in (1, 20):
        decoded = decode(values * times, "bbntt" * times, type_)
        assert to_text(decoded, type_).to_pylist() == ["NaN", zero, None, "NaN", zero] * times


@pytest.mark.parametrize("count", [1, 40])
def test_an_array_of_another_shape_brings_its_shape(count: int) -> None:
    values = [
        array(b"\0\0\0\1", dimensions=2),
        array(b"\0\0\0\2", None, first=0),
        array(b"\0\0\0\3"),
        None,
        b"{{1}}",
        b"[0:1]={2,NULL}",
        b"{3}",
    ]
    decoded = decode(values * count, "bbbnttt" * count, column_type(1007, -1, {}))
    assert shapes.elements_of(decoded).to_pylist() == [[1], [2, None], [3], None, [1], [2, None], [3]] * count
    assert shapes.shapes_of(decoded) == ["[1:1][1:1]", "[0:1]", None, None, "[1:1][1:1]", "[0:1]", None] * count


@pytest.mark.parametrize(
    "value",
    [
        struct.pack(">iii", 7, 0, 23) + struct.pack(">ii", 1, 1) * 7,
        struct.pack(">iiiiiii", 2, 0, 23, 2**31 - 1, 1, 2**31 - 1, 1),
        struct.pack(">iiiiiii", 2, 0, 23, 0, 1, 1, 1),
        array(b"\0\0\0\1", dimensions=2) + b"x",
        array(b"\0\0\0\1", dimensions=2)[:20],
    ],
)
def test_a_damaged_array_of_another_shape_is_malformed(value: bytes) -> None:
    for copies in (1, 40):
        with pytest.raises(DecodeError):
            decode([value] * copies, "b", column_type(1007, -1, {}))


@pytest.mark.parametrize(
    "text",
    [
        b"[0:1]",
        b"[0:1]=",
        b"[0:1]={1}",
        b"{{1},{2,3}}",
        b"{{1},2}",
        b"{{1}",
        b"{{1}}}",
        b"{{}}",
        b"{{1 2},{,}}",
        b"[a]={1}",
    ],
)
def test_damaged_text_of_an_array_of_another_shape_is_malformed(text: bytes) -> None:
    with pytest.raises(DecodeError):
        decode([text], "t", column_type(1007, -1, {}))


@pytest.mark.parametrize(
    "value",
    [
        array(b"\0\0\0\1") + b"x",
        array(b"\0\0\0\1")[:-1],
        array(b"\0\0\0\1")[:14],
        array(b"\0\0\0\1")[:20],
        struct.pack(">iiiii", 1, 0, 23, 2**31 - 1, 1),
        struct.pack(">iiiii", 1, 0, 23, -1, 1),
        struct.pack(">iiiiii", 1, 0, 23, 1, 1, -2),
    ],
)
def test_a_damaged_array_is_malformed(value: bytes) -> None:
    for copies in (1, 40):  # few rows are walked one by one, many together
        with pytest.raises(DecodeError):
            decode([value] * copies, "b", column_type(1007, -1, {}))


@pytest.mark.parametrize("text", [b"", b"1,2", b"{1", b'{"a}', b'{a,"b"x}', b'{"a",}', b'{"a"{}}', b"{1,2}x"])
def test_damaged_array_text_is_malformed(text: bytes) -> None:
    with pytest.raises(DecodeError):
        decode([text], "t", column_type(1009, -1, {}))


def test_an_error_names_the_column_and_not_the_value() -> None:
    with pytest.raises(DecodeError) as caught:
        decode([b"secret"], "t", INTEGER)
    assert "s.t.c" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_type_without_a_binary_decoder_is_refused_in_binary_only() -> None:
    point_cloud = ColumnType(Kind.OTHER, "public.vector")
    assert not has_binary_decoder(point_cloud)
    assert decode([b"[1,2]"], "t", point_cloud).to_pylist() == ["[1,2]"]
    with pytest.raises(ValueRefused, match=r"public\.vector") as caught:
        decode([b"\0\0"], "b", point_cloud)
    assert "text mode" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1082, b"10000-02-30"),
        (1082, b"2024-02-30"),
        (1114, b"10000-13-01 00:00:00"),
        (1114, b"10000-01-01 25:00:00"),
        (1114, b"2024-01-01 00:00:00+00"),
        (1083, b"25:00:00"),
        (1266, b"24:00:01+00"),
        (1186, b"2562047788:00:54.775808"),
        (1186, b"2147483648 days"),
        (1186, b"1 day "),
        (1186, b""),
        (16, b"y"),
        (17, b"\\x0"),
        (17, b"abc"),
        (23, b"2147483648"),
        (701, b"one"),
    ],
)
def test_text_that_no_server_prints_is_malformed(oid: int, text: bytes) -> None:
    with pytest.raises(DecodeError):
        decode([text], "t", column_type(oid, -1, {}))


def test_offsets_past_31_bits_do_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characters, "MAX_BYTES", 20)  # as if a buffer of 40 bytes were too long for 32-bit offsets
    assert decode([b"abc", b"defg", b""], "b", TEXT).to_pylist() == ["abc", "defg", ""]
    with pytest.raises(ValueRefused, match="2 GiB"):
        decode([b"x" * 15, b"x" * 6], "b", TEXT)


# --- damage ----------------------------------------------------------------------------------------------------------

SEEDS: dict[str, list[bytes]] = {
    "numeric": [numeric(0, 0, 2, 1, 500), numeric(0x4000, 20, 0, 1), numeric(0xC000, 0, 0)],
    "text": [
        b"{1,2}",
        b'{"a",NULL}',
        b"2024-01-01 00:00:00.5+00",
        b"1 year 2 mons",
        b"12:00:00+01",
        b"-1.50",
        b"infinity",
    ],
    "array": [array(b"\0\0\0\1", None), struct.pack(">iii", 0, 0, 23), array(b"ab")],
    "fixed": [b"\0", b"\1" * 2, b"\x7f" * 4, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 12, b"\1" * 16, b""],
    "other": [
        b"\2\x20\0\4\1\2\3\4",
        b"\0\0\0\1a\0\0\0",
        b"\0\0\0\1\1\0\0a\0",
        b"\2\0\0\0\4\0\0\0\1\0\0\0\4\0\0\0\2",
        b"\0\0\0\5\xf8",
    ],
}
SEED_VALUES = [value for values in SEEDS.values() for value in values]


def damaged(generator: random.Random) -> bytes:
    value = bytearray(generator.choice(SEED_VALUES))
    for _ in range(generator.randrange(4)):
        match generator.randrange(3):
            case 0 if value:
                value[generator.randrange(len(value))] = generator.choice(
                    (0, 1, 2, 0x7F, 0x80, 0xFF, generator.randrange(256))
                )
            case 1:
                value.insert(generator.randrange(len(value) + 1), generator.randrange(256))
            case _ if value:
                del value[generator.randrange(len(value))]
    return bytes(value)


@pytest.mark.parametrize("type_", BUILT_IN + ARRAYS + NUMERICS, ids=lambda type_: type_.name)
def test_damaged_bytes_raise_our_errors_only_and_nothing_outside_is_read(type_: ColumnType) -> None:
    generator = random.Random(20)
    for _ in range(60):
        values = [damaged(generator) for _ in range(generator.choice((1, 1, 2, 20)))]
        kinds = "".join(generator.choice("bbbtn") for _ in values)
        assert outcome(values, kinds, type_, b"\0") == outcome(values, kinds, type_, b"\xff")


def outcome(values: list[bytes], kinds: str, type_: ColumnType, noise: bytes) -> object:
    """What decoding gives with this noise behind every value."""
    length = np.array([len(value) for value in values], np.int64)
    place = np.cumsum(length + 16) - length - 16
    buffer = np.frombuffer(b"".join(value + noise * 16 for value in values), np.uint8)
    kind = np.frombuffer(kinds.encode(), np.uint8)
    try:
        result = decode_values(buffer, place, length, kind, type_, where="s.t.c")
    except (DecodeError, ValueRefused) as error:
        return type(error), str(error)
    result.validate()
    assert result.type == arrow_type(type_)
    return str(result)


def test_random_places_and_lengths_raise_our_errors_only() -> None:
    generator = np.random.default_rng(7)
    for type_ in BUILT_IN + ARRAYS + NUMERICS:
        for _ in range(20):
            buffer = generator.integers(0, 256, 64, np.uint8)
            place, length = generator.integers(-4, 64, 5), generator.integers(-1, 24, 5)
            kind = generator.choice(np.frombuffer(b"btnu", np.uint8), 5)
            with suppress(DecodeError, ValueRefused):
                decode_values(buffer, place, length, kind, type_, where="s.t.c")
