"""Positions of every kind: read, written in one way, compared; and what is no position is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.model.positions import FORMS, GtidSet, Order, compare, parse

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
NUMBERS = st.sets(st.integers(1, 12), min_size=1)


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        ("postgresql", "16/b374d848", "16/B374D848"),
        ("postgres", "0/1", "0/1"),
        ("postgresql", "FFFFFFFF/FFFFFFFF", "FFFFFFFF/FFFFFFFF"),
        ("mysql", "binlog.000042:1337", "binlog.000042:1337"),
        ("mysql", "my.server-bin.000001:4", "my.server-bin.000001:4"),
        ("mariadb", "mariadb-bin.000004:1234", "mariadb-bin.000004:1234"),
        ("mysql", f"{A.upper()}:1-5", f"{A}:1-5"),
        ("mysql", f"{A}:7:1-3:4", f"{A}:1-4:7"),
        ("mysql", f"{B}:1 ,\n{A}:2-2", f"{A}:2,{B}:1"),
        ("mysql", f"{A}:1,{A}:2", f"{A}:1-2"),
        ("mysql", f"{A}:1-5:Blue:3:4", f"{A}:1-5,{A}:blue:3-4"),
        ("mariadb", "0-1-100", "0-1-100"),
        ("mariadb", "2-1-3, 0-1-100", "0-1-100,2-1-3"),
    ],
)
def test_a_position_is_read_and_written_in_one_way(kind, text, written):
    assert str(parse(kind, text)) == written
    assert str(parse(kind, written)) == written


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[
            ("postgresql", text)
            for text in ("", "0/0", "seven", "1", "1/", "/1", "1/123456789", "1/G", "-1/1", " 1/1", "1/1\n")
        ],
        *[
            ("mysql", text)
            for text in ("", "binlog.000042", "binlog.000042:0", "binlog.000042:3", "binlog:4", "binlog.1:x")
        ],
        *[
            ("mysql", text)
            for text in (A, f"{A}:", f"{A}:0", f"{A}:5-1", f"{A}:x", f"{A}:x:y:1", f"{A[1:]}:1", f"{A}:1,")
        ],
        *[("mysql", text) for text in ("0-1-100", "16/B374D848", f"{A}:1-5\n{A}:1", "binlog.٤٢:4")],
        *[("mariadb", text) for text in ("", "0-1", "0-1-100,0-1-101", "0-1-100,", f"{A}:1-5", "a-b-c", "-1-1-1")],
        ("mine", ""),
    ],
)
def test_what_is_no_position_is_refused_with_the_form_that_it_has(kind, text):
    with pytest.raises(ConfigError, match="is no position of a") as caught:
        parse(kind, text)
    assert caught.value.hint.startswith("a position is ")


@pytest.mark.parametrize(
    ("kind", "one", "other", "order"),
    [
        ("postgresql", "0/A", "0/a", Order.SAME),
        ("postgresql", "1/0", "0/FFFFFFFF", Order.AFTER),
        ("postgresql", "0/9", "0/10", Order.BEFORE),
        ("mysql", "binlog.999999:900", "binlog.1000000:4", Order.BEFORE),
        ("mysql", "binlog.000002:4", "binlog.000001:999", Order.AFTER),
        ("mysql", "binlog.000002:9", "binlog.000002:10", Order.BEFORE),
        ("mysql", "binlog.000002:9", "mysql-bin.000002:9", Order.APART),
        ("mysql", "binlog.000002:9", f"{A}:1-5", Order.APART),
        ("mysql", f"{A}:1-5", f"{A.upper()}:1:2-5", Order.SAME),
        ("mysql", f"{A}:1-5", f"{A}:1-6", Order.BEFORE),
        ("mysql", f"{A}:1-5", f"{A}:1-5,{B}:1", Order.BEFORE),
        ("mysql", f"{A}:1-5:7", f"{A}:1-6", Order.APART),
        ("mysql", f"{A}:1-5", f"{B}:1-5", Order.APART),
        ("mysql", f"{A}:1-5", f"{A}:blue:1-5", Order.APART),
        ("mariadb", "0-1-100", "0-2-101", Order.BEFORE),
        ("mariadb", "0-1-100", "0-2-100", Order.APART),
        ("mariadb", "0-1-100,1-1-1", "0-1-100", Order.AFTER),
        ("mariadb", "0-1-9,1-1-4", "0-1-8,1-1-5", Order.APART),
        ("mine", "a", "a", Order.SAME),
        ("mine", "a", "b", None),
    ],
)
def test_positions_are_compared_by_what_lies_before_them(kind, one, other, order):
    mirrored = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    assert compare(kind, one, other) == order
    assert compare(kind, other, one) == mirrored.get(order, order)


@given(st.dictionaries(st.sampled_from([A, B, f"{A}:tag"]), NUMBERS, min_size=1), st.randoms())
def test_a_gtid_set_is_the_set_of_its_transactions(numbers, random):
    parts = [f"{key}:{number}" for key, each in numbers.items() for number in each]
    random.shuffle(parts)
    found = GtidSet.parse(",".join(parts))
    assert found is not None
    assert {key: {n for a, b in each for n in range(a, b + 1)} for key, each in found.intervals.items()} == numbers
    assert GtidSet.parse(str(found)) == found


@given(NUMBERS, NUMBERS)
def test_gtid_sets_are_compared_as_sets(one, other):
    texts = [":".join([A, *map(str, each)]) for each in (one, other)]
    expected = {(True, True): Order.SAME, (True, False): Order.AFTER, (False, True): Order.BEFORE}
    assert compare("mysql", *texts) == expected.get((one >= other, other >= one), Order.APART)


@pytest.mark.parametrize("kind", FORMS)
def test_no_text_has_two_forms(kind):
    texts = ["16/B374D848", "binlog.000042:1337", f"{A}:1-5", "0-1-100"]
    assert all(sum(form.parse(text) is not None for form in FORMS[kind]) <= 1 for text in texts)
