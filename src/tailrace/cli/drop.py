"""`tailrace drop`: remove a pipeline's slot, publication, state folder and the sinks' notes on it.

The tables in the sinks stay. A later `tailrace run` copies every table again.
"""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("drop", help="remove slot, publication and state of a pipeline", description=__doc__)
    add_pipeline(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was removed, a line each."""
    wanted = pipeline(args)

    from tailrace.pipeline import drop

    for removed in drop.drop(wanted):
        print(f"dropped {removed}")
    return 0
