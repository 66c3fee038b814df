"""`tailrace snapshot`: copy a table again, also one that failed. A pipeline that is not running does so when it runs.

Readers of the sink see the table as it was until the new copy takes its place.
"""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("snapshot", help="copy a table again", description=__doc__)
    parser.add_argument("table", metavar="TABLE", help="such as public.orders")
    add_pipeline(parser)
    parser.add_argument("--sink", metavar="NAME", help="into this sink only (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.pipeline import copy_again as snapshot

    for sink in snapshot.ask(wanted, args.table, args.sink):
        print(f"{args.table} will be copied again into sink {sink}")
    return 0
