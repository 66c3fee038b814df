"""`tailrace drop`: remove a pipeline's slot and publication from the source. The sinks keep what they have."""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("drop", help="remove slot and publication from the source", description=__doc__)
    add_pipeline(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was removed, a line each."""
    wanted = pipeline(args)

    from tailrace.pipeline import drop

    for removed in drop.drop(wanted):
        print(f"dropped {removed}")
    return 0
