"""Rows as numbers, as the memory of documents has them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from tailrace.documents import keys
from tailrace.documents.lists import Lists, none
from tailrace.sinks.opensearch import row_numbers
from tailrace.sinks.opensearch.bodies import entries, upserts
from tailrace.sinks.opensearch.memory import left_over
from tailrace.sinks.opensearch.row_numbers import node_range, numbers_of


def test_a_row_has_the_number_that_it_always_had() -> None:
    """They are stored in indexes: others would be of no row."""
    terms = pa.array(["0:1", "1:1", "12:a-b", "3:", "7:é", "1:" + "x" * 300])
    assert numbers_of(terms).tolist() == [
        260417496982486,
        468326763723023,
        3473074175278095,
        969664398487516,
        2184040351777786,
        361706906775730,
    ]


def test_many_rows_have_many_numbers_each_in_the_range_of_its_node() -> None:
    texts = pa.array([str(number) for number in range(200_000)])
    found = [numbers_of(keys.terms(node, [texts])) for node in (0, 1, 300)]
    assert len(np.unique(np.concatenate(found))) == 600_000
    for node, numbers in zip((0, 1, 300), found, strict=True):
        least, most = node_range(node)
        assert least <= numbers.min() <= numbers.max() <= most


def test_a_row_has_one_number_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = pa.array([f"{number % 40}:{'k' * (number % 7)}{number}" for number in range(1000)])
    whole = numbers_of(terms)
    assert numbers_of(terms.slice(500)).tolist() == whole[500:].tolist()
    monkeypatch.setattr(row_numbers, "AT_ONCE", 7)
    assert numbers_of(terms).tolist() == whole.tolist()
    assert numbers_of(pa.array([], pa.string())).tolist() == []


def test_an_entry_has_the_key_and_the_numbers() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"id": ["a", "b"], "document": ["{}", "{}"], "rows": [["1:x", "2:y"], []], "key": [['"'], ["b", "c"]]}
    )
    (piece,) = upserts(rows, 7, 1000)
    assert piece.rows is not None
    first, second = numbers_of(pa.array(["1:x", "2:y"])).tolist()
    action = '{"index":{"_id":"%s","version":7,"version_type":"external_gte"}}\n'
    assert entries(piece, piece.rows).lines.to_pylist() == [
        action % "a" + f'{{"key":["\\""],"rows":[{first},{second}]}}\n',
        action % "b" + '{"key":["b","c"],"rows":[]}\n',
    ]
    assert piece.take([1]).lines.to_pylist() == [action % "b" + "{}\n"]
    assert [len(each) for each in upserts(rows, 7, 100)] == [1, 1]


def test_of_former_rows_those_are_left_over_that_are_not_among_the_new_ones() -> None:
    former = Lists(np.array([0, 2, 4, 4, 6, 9]), np.array([1, 2, 3, 4, 5, 6, 7, 1, 7]))
    rows = Lists(np.array([0, 2, 4, 5, 6, 6]), np.array([2, 1, 3, 9, 8, 5]))
    found = left_over(former, rows)
    assert (found.offsets.tolist(), found.values.tolist()) == ([0, 0, 1, 1, 2, 4], [4, 6, 1, 7])
    assert left_over(none(3), none(3)).lengths.tolist() == [0, 0, 0]


def test_a_part_of_a_request_has_its_own_rows_and_keys() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "id": ["a", "b", "c"],
            "document": ["{}"] * 3,
            "rows": [["1:a"], [None, "1:b"], []],
            "key": [["a"], ["b"], ["c"]],
        }
    )
    *_, second, third = upserts(rows, 7, 1)
    lines = [json.loads(entries(each, each.rows).lines[0].as_py().splitlines()[1]) for each in (second, third)]
    nobody, own = numbers_of(pa.array(["32767:", "1:b"])).tolist()
    assert lines == [{"key": ["b"], "rows": [nobody, own]}, {"key": ["c"], "rows": []}]
