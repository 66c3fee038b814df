"""The texts of keys: equal for equal values, different for different ones."""

from __future__ import annotations

import itertools
from decimal import Decimal
from hashlib import sha256

import pyarrow as pa

from support.rows_in_memory import BIG, DOUBLE, INT, MONEY, NUMERIC, keys_of
from tailrace.documents.keys import distinct, ids, joined, key_texts, listed, terms, unlisted
from tailrace.model.types import ColumnType, Kind


def texts(*values: str | None) -> pa.StringArray:
    return pa.array(values, pa.string())


def test_a_number_has_one_text_whatever_its_type_and_scale() -> None:
    exact = [Decimal("5.00"), Decimal("0.50"), Decimal("-120.00"), None, Decimal("0.00")]
    assert key_texts(pa.array(exact, pa.decimal128(12, 2)), MONEY).to_pylist() == ["5", "0.5", "-120", None, "0"]
    numeric = texts("5.000", "0.5", "-120", None, "0", "100", "NaN", "10.010")
    assert key_texts(numeric, NUMERIC).to_pylist() == ["5", "0.5", "-120", None, "0", "100", "NaN", "10.01"]
    assert key_texts(pa.array([5, None], pa.int32()), INT).to_pylist() == ["5", None]
    assert key_texts(pa.array([5, None], pa.int64()), BIG).to_pylist() == ["5", None]
    assert key_texts(pa.array([-0.0, 1.5, None]), DOUBLE).to_pylist() == ["0", "1.5", None]


def test_blanks_at_the_end_count_only_where_the_type_says_so() -> None:
    padded, plain = ColumnType(Kind.TEXT, "character(5)"), ColumnType(Kind.TEXT, "character varying(5)")
    assert key_texts(texts("a    ", " b"), padded).to_pylist() == ["a", " b"]
    assert key_texts(texts("a "), plain).to_pylist() == ["a "]


def test_no_two_composite_keys_have_the_same_text() -> None:
    parts = ["", ":", "\\", "a", "a:", "\\:", ":\\", "a\\:b"]
    pairs = list(itertools.product(parts, repeat=2))
    columns = [texts(*(pair[place] for pair in pairs)) for place in range(2)]
    assert len(set(joined(columns).to_pylist())) == len(pairs)
    assert joined([texts("a", None), texts(None, "b")]).to_pylist() == [None, None]


def test_a_key_of_one_column_is_its_own_id() -> None:
    assert ids([texts("a:b", "c\\d", "ü")]).to_pylist() == ["a:b", "c\\d", "ü"]
    assert ids([texts("a:b", "x"), texts("c\\d", "")]).to_pylist() == ["a\\:b:c\\\\d", "x:"]


def test_what_can_not_be_an_id_is_hashed() -> None:
    longest, longer = "ü" * 256, "ü" * 256 + "a"
    assert ids([texts(longest, longer, "")]).to_pylist() == [
        longest,
        sha256(longer.encode()).hexdigest(),
        sha256(b"").hexdigest(),
    ]
    assert terms(3, [texts("a", "", "x" * 200, "x" * 201)]).to_pylist() == [
        "3:a",
        "3:",
        "3:" + "x" * 200,
        "3:" + sha256(b"x" * 201).hexdigest(),
    ]


def test_keys_as_lists_and_back() -> None:
    keys = keys_of(("a", "1"), ("b", "2"), ("c", "3"), names=("x", "y"))
    assert listed(keys.columns).to_pylist() == [["a", "1"], ["b", "2"], ["c", "3"]]
    assert unlisted(listed(keys.columns).slice(1), ("x", "y")).equals(keys.slice(1))
    assert listed(keys.slice(0, 0).columns).to_pylist() == []


def test_each_key_once_and_none_with_a_null() -> None:
    columns = [texts("a", "a", None, "b", "a"), texts("1", "1", "1", None, "2")]
    found = distinct(pa.RecordBatch.from_arrays(columns, names=["x", "y"]))
    assert found.to_pylist() == [{"x": "a", "y": "1"}, {"x": "a", "y": "2"}]
    assert distinct(found.slice(0, 0)).num_rows == 0
