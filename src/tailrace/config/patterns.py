"""Table patterns: which tables of the source belong to a pipeline.

`public.*` takes a schema, `*.orders` a name in any schema, `*` everything, `!public.audit_*` excludes. `*` and `?` are
the wildcards. Upper and lower case differ. A name that holds a dot, a star or a question mark is put in double quotes,
as in SQL: `public."odd.name"`. An exclusion always wins, wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tailrace.errors import ConfigError
from tailrace.model.names import parse_table, table_name

T = TypeVar("T")

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def by_table(settings: Mapping[str, T]) -> dict[str, T]:
    """Settings of single tables, under the names that all state uses, however the file writes them."""
    found: dict[str, T] = {}
    for text, value in settings.items():
        parts = parse_table(text)
        if parts is None:
            raise ConfigError(
                f"`{text}` is not the name of a table", hint='write schema.table: public.orders or public."odd.name"'
            )
        if table_name(*parts) in found:
            raise ConfigError(f"`{text}` stands here twice", hint="write each table once")
        found[table_name(*parts)] = value
    return found


class TablePatterns:
    """`matches(schema, name)` says whether a table belongs to the pipeline."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._included = {text: _compile(text) for text in self.patterns if not text.startswith("!")}
        self._excluded = [_compile(text[1:]) for text in self.patterns if text.startswith("!")]
        if not self._included:
            raise ConfigError("every pattern excludes tables and none includes any", hint='begin the list with "*.*"')

    def matches(self, schema: str, name: str) -> bool:
        return _any(self._included.values(), schema, name) and not _any(self._excluded, schema, name)

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """The including patterns that take none of these `(schema, name)` tables: a misspelt or a missing table."""
        known = list(tables)
        return [text for text, pattern in self._included.items() if not any(_any([pattern], *table) for table in known)]

    def __repr__(self) -> str:
        return f"TablePatterns({list(self.patterns)!r})"


def _any(patterns: Iterable[re.Pattern[str]], schema: str, name: str) -> bool:
    return any(pattern.fullmatch(f"{schema}\0{name}") for pattern in patterns)


def _compile(text: str) -> re.Pattern[str]:
    """One regular expression over schema and name, with a zero byte (which no name can hold) between."""
    if text == "*":
        text = "*.*"
    schema = _PART.match(text)
    name = _PART.fullmatch(text, schema.end() + 1) if schema and text[schema.end() : schema.end() + 1] == "." else None
    if schema is None or name is None:
        raise ConfigError(
            f"`{text}` is not a table pattern",
            hint='write schema.table, such as public.orders, public.*, *.orders or public."odd.name"',
        )
    return re.compile(f"{_expression(schema)}\0{_expression(name)}", re.DOTALL)


def _expression(part: re.Match[str]) -> str:
    quoted, plain = part.groups()
    if quoted is not None:
        return re.escape(quoted.replace('""', '"'))
    return re.escape(plain).replace(r"\*", "[^\0]*").replace(r"\?", "[^\0]")
