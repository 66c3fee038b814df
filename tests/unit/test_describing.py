"""Which columns a message means, told from a catalog that is newer than the message."""

from __future__ import annotations

import pytest

from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres.describing import UNLIKE_ANY, CatalogColumn, is_remade, numbers_then

OLD, THEN, NEW = 90, 100, 110


def column(name: str, number: int, altered: int = OLD, *, is_dropped: bool = False) -> CatalogColumn:
    return CatalogColumn(name, number, is_dropped, altered)


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


def test_a_name_that_is_another_column_s_than_it_was_is_not_believed():
    """A transaction that dropped the column and made it again may have a lower number, and have committed later."""
    text = ColumnType(Kind.TEXT, "text")
    known = TableSchema("public", "t", (Column("a", text, number=2), Column("b", text)), ())
    assert is_remade(known, ["a"], [3])
    assert not is_remade(known, ["a", "b", "c"], [2, 5, 6])
