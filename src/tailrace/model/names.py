"""Names of tables as people write them, and as all state is filed under.

`public.orders`; a part that holds a dot or a double quote is in double quotes, as in SQL: `public."odd.name"`. No two
tables have the same name, and `parse_table` reads back what `table_name` wrote.
"""

from __future__ import annotations

import re

_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


def table_name(schema: str, name: str) -> str:
    return f"{_written(schema)}.{_written(name)}"


def parse_table(text: str) -> tuple[str, str] | None:
    """Schema and name; `public` where no schema is written. None for what is not the name of a table."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    quoted_schema, plain_schema, quoted, plain = match.groups()
    return _read(quoted_schema, plain_schema) or "public", _read(quoted, plain)


def _written(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part


def _read(quoted: str | None, plain: str | None) -> str:
    return quoted.replace('""', '"') if quoted is not None else plain or ""
