"""`tailrace status`: how far each table is in each sink: state, rows, lag. Reads the state folder and the sinks."""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("status", help="print tables, their state, rows and lag", description=__doc__)
    add_pipeline(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    import msgspec

    from tailrace.cli.printing import console, fields_table
    from tailrace.pipeline import status

    tables = status.read(wanted)
    if args.json:
        print(msgspec.json.encode(tables).decode())
    else:
        console().print(fields_table(tables))
    return 0
