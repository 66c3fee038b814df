"""Which columns a message means, told from a catalog that is newer than the message."""

from __future__ import annotations

import pytest

from tailrace.sources.postgres.describing import (
    UNLIKE_ANY,
    CatalogColumn,
    numbers_at_first,
    numbers_since,
    numbers_then,
)

OLD, THEN, NEW = 90, 100, 110


def column(name: str, number: int, altered: int = OLD, *, is_dropped: bool = False) -> CatalogColumn:
    return CatalogColumn(name, number, is_dropped, False, altered)


def gone(number: int, altered: int) -> CatalogColumn:
    return column("", number, altered, is_dropped=True)


CASES = {
    "nothing was altered": ([column("a", 1), column("b", 2)], "ab", [1, 2]),
    "one came later": ([column("a", 1), column("b", 2, NEW)], "a", [1]),
    "one was renamed later": ([column("a", 1), column("c", 2, NEW)], "ab", [1, 2]),
    "two exchanged their names later": ([column("b", 1, NEW), column("a", 2, NEW)], "ab", [1, 2]),
    "two had exchanged their names": ([column("a", 1, THEN), column("b", 2, THEN)], "ba", [1, 2]),
    "it came in the same transaction": ([column("a", 1), column("b", 2, THEN)], "ab", [1, 2]),
    "one was dropped long ago": ([column("a", 1), gone(2, OLD), column("b", 3)], "ab", [1, 3]),
    "one was dropped later": ([column("a", 1), gone(2, NEW)], "ab", [1, 2]),
    "one was dropped later, and came back": ([column("a", 1), gone(2, NEW), column("b", 3, NEW)], "ab", None),
    "one is not published": ([column("a", 1), column("b", 2, NEW), column("c", 3, NEW)], "ac", None),
    "the catalog does not show it yet": ([column("a", 1)], "ab", None),
    "numbers have come full circle": ([column("a", 1, 2**32 - 5), column("b", 2)], "ab", [1, 2]),
}


@pytest.mark.parametrize(("rows", "names", "expected"), CASES.values(), ids=CASES)
def test_a_column_has_the_number_that_it_can_only_have_had(rows, names, expected):
    assert numbers_then(rows, list(names), THEN) == (expected or [UNLIKE_ANY] * len(names))


SINCE = {
    "nothing was altered": ({"a": 1, "b": 2}, [column("a", 1, NEW), column("b", 2)], "ab", [1, 2]),
    "a name is another column's": ({"a": 2}, [gone(2, OLD), column("a", 3)], "a", None),
    "two exchanged their names, and took them back": (
        {"a": 1, "b": 2},
        [column("a", 1, NEW), column("b", 2, NEW)],
        "ba",
        None,
    ),
    "one came": ({"a": 1}, [column("a", 1), column("b", 2, THEN)], "ab", [1, 2]),
    "one came, and another one later": ({"a": 1}, [column("a", 1), column("b", 2), column("c", 3, NEW)], "ab", [1, 2]),
    "one came, and an older one made it again": (
        {"a": 1},
        [column("a", 1), gone(2, OLD), column("b", 3)],
        "ab",
        None,
    ),
    "one came, and lost its name to another by an older one": (
        {"a": 1},
        [column("a", 1), column("c", 2), column("b", 3)],
        "ab",
        None,
    ),
}


@pytest.mark.parametrize(("known", "rows", "names", "expected"), SINCE.values(), ids=SINCE)
def test_what_was_known_before_is_believed_rather_than_the_order_of_transactions(known, rows, names, expected):
    """An older transaction may have committed later."""
    assert numbers_since(known, rows, list(names), THEN) == (expected or [UNLIKE_ANY] * len(names))


FIRST = {
    "it was made since": ([column("a", 1), column("b", 2)], "ab", [1, 2]),
    "one was made again by an older one": ([column("a", 1), gone(2, OLD), column("b", 3)], "ab", None),
    "one was dropped before": ([column("a", 1), gone(2, OLD - 20), column("b", 3, OLD - 20)], "ab", [1, 3]),
    "one is generated": ([column("a", 1), CatalogColumn("b", 2, False, True, OLD)], "a", [1]),
}


@pytest.mark.parametrize(("rows", "names", "expected"), FIRST.values(), ids=FIRST)
def test_of_a_table_that_nobody_knows_only_old_alterations_are_believed(rows, names, expected):
    assert numbers_at_first(rows, list(names), THEN, OLD - 10) == (expected or [UNLIKE_ANY] * len(names))
