"""`tailrace readers`: the streams that read the change log under a name (the option `reader` of `format("tailrace")`).

The log keeps what they have not read. `list` shows how far each is, `drop` lets go of one that will not come back.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tailrace.cli.arguments import Commands, add_pipeline, pipeline

if TYPE_CHECKING:
    from rich.table import Table

    from tailrace.pipeline.readers import ReaderLine

COLUMNS = ("reader", "table", "offset", "behind", "kept", "last moved", "note")


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("readers", help="list or drop named readers of the change log", description=__doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print the readers: table, place, how much of the log waits for them")
    listing.add_argument("--json", action="store_true", help="print JSON")
    dropping = actions.add_parser("drop", help="forget a reader: the log waits for it no longer")
    dropping.add_argument("reader", metavar="NAME", help="the reader's name")
    for action, run in ((listing, list_), (dropping, drop)):
        add_pipeline(action)
        action.set_defaults(run=run)


def list_(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    import msgspec

    from tailrace.cli.printing import console
    from tailrace.pipeline import readers

    lines = readers.read(wanted)
    if args.json:
        print(msgspec.json.encode(lines).decode())
    elif lines:
        console().print(table(lines))
    else:
        print("there are no named readers")
    return 0


def drop(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.pipeline import readers

    readers.drop(wanted, args.reader)
    print(f"dropped reader {args.reader}")
    return 0


def table(lines: list[ReaderLine]) -> Table:
    from rich.table import Table
    from rich.text import Text

    found = Table(*COLUMNS, box=None, pad_edge=False)
    for line in lines:
        found.add_row(*(Text(cell) for cell in _cells(line)))
    return found


def _cells(line: ReaderLine) -> list[str]:
    from tailrace.views.words import size

    return [
        line.reader,
        line.table,
        f"{line.offset:,}",
        "" if line.behind is None else f"{line.behind:,}",
        "" if line.kept_bytes is None else size(line.kept_bytes),
        f"{_duration(line.silent_seconds)} ago",
        line.note,
    ]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
