"""How results are printed: folded to the terminal, unfolded into a pipe or a file."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_OF_A_PIPE = 1000


def console() -> Console:
    """A console on standard output. A reader of a pipe gets whole lines without trailing blanks or colours."""
    out = Console(soft_wrap=False, highlight=False)
    return out if out.is_terminal else Console(width=WIDTH_OF_A_PIPE, highlight=False)


def fields_table(rows: Sequence[Struct]) -> Table:
    """Structs of one kind as a table: a row each, a column a field."""
    names = rows[0].__struct_fields__ if rows else ()
    table = Table(*(name.replace("_", " ") for name in names), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_text(getattr(row, name))) for name in names))
    return table


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case list() | tuple():
            return ", ".join(str(item) for item in value)
        case _:
            return str(value)
