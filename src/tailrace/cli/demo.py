"""`tailrace demo`: the whole way, on an embedded PostgreSQL, with a kill in the middle and a comparison at the end."""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("demo", help="see it work, on a database of its own", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, metavar="N", help="how long the workload runs")
    parser.add_argument("--workload-rate", type=int, default=500, metavar="N", help="changes a second")
    parser.add_argument("--keep", action="store_true", help="keep the databases and the state folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    raise NotImplementedError
