"""Which tables of a server a pipeline reads: patterns over all databases, where a database is a table's schema.

A URL that names a database is about that one: a pattern that leaves the database open (`*.*`, `*.orders`) is about it
alone, and only one that names others reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.config import TablePatterns

SYSTEM = frozenset({"mysql", "sys", "information_schema", "performance_schema"})


class Wanted:
    """`matches(schema, name)`, as TablePatterns has it. Picklable."""

    def __init__(self, patterns: Iterable[str], database: str) -> None:
        self.all = TablePatterns(patterns)
        self.database = database
        self._excluded = [text for text in self.all.patterns if text.startswith("!")]
        self._named = _patterns([text for text in self.all.patterns if _names_a_database(text)], self._excluded)

    def matches(self, schema: str, name: str) -> bool:
        if schema.lower() in SYSTEM:
            return False
        reaching = self.all if not self.database or schema == self.database else self._named
        return reaching is not None and reaching.matches(schema, name)

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        return self.all.unmatched(tables)


def _patterns(named: list[str], excluded: list[str]) -> TablePatterns | None:
    return TablePatterns([*named, *excluded]) if named else None


def _names_a_database(text: str) -> bool:
    return not text.startswith("!") and text.partition(".")[0].strip("*") != ""
