"""A preview as it is printed: the document, what it was made of, how it was asked for, and the index that takes it."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tailrace.pipeline.preview import Preview


def show(out: Console, name: str, found: Preview) -> None:
    if found.document is None:
        out.print(f"there is no document {name} with the id {found.id}: the row is not there, deleted or filtered out")
    else:
        _heading(out, f"document {name}, id {found.id}")
        _json(out, bytes(found.document))
        made = ", ".join(f"{count:,} of {table}" for table, count in found.made_of.items())
        _heading(out, f"made of {sum(found.made_of.values()):,} rows")
        out.print(Text(made))
    count = len(found.queries)
    _heading(out, f"{count} {'query' if count == 1 else 'queries'}, as many for a thousand documents")
    out.print(_queries(found))
    _heading(out, "index")
    _json(out, msgspec.json.encode(found.mapping))


def _heading(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))


def _json(out: Console, value: bytes) -> None:
    """As it is, with all digits."""
    text = msgspec.json.format(value, indent=2).decode()
    out.print(Syntax(text, "json", background_color="default") if out.is_terminal else Text(text))


def _queries(found: Preview) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("query")
    table.add_column("rows", justify="right")
    table.add_column("ms", justify="right")
    for query in found.queries:
        table.add_row(Text(query.sentence), f"{query.rows:,}", f"{query.seconds * 1000:.1f}")
    return table
