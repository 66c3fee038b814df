"""`tailrace reindex`: build a document's index anew. A pipeline that is not running does so when it runs.

Searches see the index as it is until the new one is complete and up to date, and takes its place in one step.
"""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("reindex", help="build a document's index anew", description=__doc__)
    parser.add_argument("document", metavar="NAME", help="the document's name")
    add_pipeline(parser)
    parser.add_argument("--sink", metavar="NAME", help="in this sink only (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.pipeline import described

    for sink in described.reindex(wanted, args.document, args.sink):
        print(f"document {args.document} will be built anew in sink {sink}")
    return 0
