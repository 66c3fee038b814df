"""`tailrace documents`: what the pipeline makes of several tables for a search.

`list` shows their state, `explain` draws the tables that one is made of, `preview` builds one as it would be now.
Changes nothing, and disturbs no run.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tailrace.cli.arguments import Commands, add_pipeline, pipeline

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tailrace.documents.judging import Remark
    from tailrace.pipeline.described import DocumentLine

COLUMNS = ("document", "made of", "sink", "state", "documents", "copied", "lag")
RIGHT = ("documents", "copied", "lag")


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("documents", help="list, explain or preview documents", description=__doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print the documents: their tables, state and number in each sink")
    listing.add_argument("--json", action="store_true", help="print JSON")
    explaining = actions.add_parser("explain", help="draw the tables of a document, and name the indexes they lack")
    previewing = actions.add_parser("preview", help="print a document as it would be built now, its mapping and how")
    previewing.add_argument(
        "--key", action="append", metavar="VALUE", help="its key, once for each column (default: that of some row)"
    )
    previewing.add_argument("--json", action="store_true", help="print JSON")
    for action, run in ((listing, list_), (explaining, explain), (previewing, preview)):
        if action is not listing:
            action.add_argument("document", metavar="NAME", help="the document's name")
        add_pipeline(action)
        action.set_defaults(run=run)


def list_(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    import msgspec

    from tailrace.cli.printing import console
    from tailrace.pipeline import described

    lines, errors = described.look(wanted)
    for error in errors.values():
        print(f"error: {error}", file=sys.stderr)
    if args.json:
        print(msgspec.json.encode(lines).decode())
    elif lines:
        console().print(_table(lines))
        for line in (line for line in lines if line.reason):
            print(f"{line.document} in sink {line.sink} is {line.state}: {line.reason}")
    else:
        print("the pipeline describes no documents, and no sink has any")
    return 1 if errors else 0


def _table(lines: list[DocumentLine]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in RIGHT else "left")
    for line in lines:
        counted = "" if line.documents is None else f"{line.documents:,}"
        lag = "" if line.lag_seconds is None else f"{line.lag_seconds:.1f} s"
        copied = f"{line.copied:,}" if line.sink else ""
        cells = (line.document, ", ".join(line.tables), line.sink, line.state, counted, copied, lag)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def explain(args: argparse.Namespace) -> int:
    """Exit code 1 if the document can not be built."""
    wanted = pipeline(args)

    from rich.text import Text

    from tailrace.cli.outlines import drawn
    from tailrace.cli.printing import console
    from tailrace.pipeline import described

    catalog = described.read_catalog(wanted)
    remarks = catalog.remarks(args.document)
    out = console()
    out.print(drawn(args.document, catalog.outline(args.document), catalog.details))
    _print_remarks(out, [remark for remark in remarks if not remark.is_index], "  ")
    if indexes := [remark for remark in remarks if remark.is_index]:
        out.print("\nindexes that look-ups lack:")
        for statement in (remark.fix for remark in indexes):
            out.print(Text(f"  {statement}"))
    return 1 if any(remark.is_failing for remark in remarks) else 0


def _print_remarks(out: Console, remarks: list[Remark], indent: str) -> None:
    from rich.text import Text

    for remark in remarks:
        level = ("error", "red") if remark.is_failing else ("warning", "yellow")
        out.print(Text.assemble("\n", level, f": {remark.place}: {remark.message}\n{indent}{remark.fix}"))


def preview(args: argparse.Namespace) -> int:
    """Exit code 1 if there is no such document."""
    wanted = pipeline(args)

    import msgspec

    from tailrace.cli.previews import show
    from tailrace.cli.printing import console
    from tailrace.pipeline import preview as building

    found = building.preview(wanted, args.document, args.key or ())
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        show(console(), args.document, found)
    return 0 if found.document is not None else 1
