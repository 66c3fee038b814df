"""`tailrace quarantine`: the rows that a sink refused and set aside (`on_error: quarantine`, `misfits: quarantine`).

`list` shows them, `replay` writes them again as the source has them now, `drop` forgets them. A run may go on.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from tailrace.cli.arguments import Commands, add_pipeline, pipeline
from tailrace.model.names import parse_table, table_name

if TYPE_CHECKING:
    from tailrace.pipeline.quarantine import Chosen
    from tailrace.sinks.base import Quarantined

ACTIONS = {
    "list": "print the rows: when, table, key, operation, position and reason",
    "replay": "write the rows as the source has them now; what is refused again stays",
    "drop": "forget the rows; the sink stays as it is",
}
COLUMNS = ("at", "sink", "table", "operation", "key", "offset", "position", "reason")


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser(
        "quarantine", help="list, replay or drop rows that a sink set aside", description=__doc__
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, help_ in ACTIONS.items():
        action = actions.add_parser(name, help=help_, description=help_)
        add_pipeline(action)
        action.add_argument("--sink", metavar="NAME", help="only this sink's rows")
        action.add_argument("--table", metavar="SCHEMA.NAME", help="only this table's rows, by its name in the source")
        action.set_defaults(run={"list": list_, "replay": replay, "drop": drop}[name])
        if name == "list":
            action.add_argument("--json", action="store_true", help="a JSON object a row, with all of its columns")


def list_(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.pipeline import quarantine

    found = quarantine.entries(wanted, _chosen(args))
    if args.json:
        for sink, entry in found:
            print(json.dumps({**_cells(sink, entry), "payload": entry.rejected.payload}, ensure_ascii=False))
    elif found:
        _print(found)
    else:
        print("no rows are set aside")
    return 0


def replay(args: argparse.Namespace) -> int:
    """Exit code 1 if rows are left."""
    wanted = pipeline(args)

    from tailrace.pipeline import quarantine

    results = quarantine.replay(wanted, _chosen(args))
    for result in results:
        left = f", {result.refused:,} left: {result.reason}" if result.refused else ""
        print(f"{result.sink}: {result.table}: {result.written:,} written or gone from the source{left}")
    if not results:
        print("no rows are set aside")
    return 1 if any(result.refused for result in results) else 0


def drop(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.pipeline import quarantine

    print(f"dropped {quarantine.drop(wanted, _chosen(args)):,} rows from quarantine")
    return 0


def _chosen(args: argparse.Namespace) -> Chosen:
    from tailrace.pipeline.quarantine import Chosen

    parts = parse_table(args.table or "")
    return Chosen(args.sink, table_name(*parts) if parts else args.table)


def _print(found: list[tuple[str, Quarantined]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tailrace.cli.printing import console

    table = Table(*COLUMNS, box=None, pad_edge=False)
    for sink, entry in found:
        table.add_row(*(Text(str(cell)) for cell in _cells(sink, entry).values()))
    console().print(table)


def _cells(sink: str, entry: Quarantined) -> dict[str, object]:
    rejected = entry.rejected
    key = ", ".join(f"{name}={value}" for name, value in rejected.key.items()) or "none"
    values = (entry.at, sink, rejected.table, rejected.operation, key, entry.place.offset, entry.place.position)
    return dict(zip(COLUMNS, (*values, rejected.reason), strict=True))
