"""`tailrace verify`: compare the content of source and sinks at one consistent moment.

Names the first keys that differ, never values. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("verify", help="compare the content of source and sinks", description=__doc__)
    add_pipeline(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.cli.printing import console, fields_table
    from tailrace.pipeline import verify

    comparisons = verify.verify(wanted)
    if not comparisons:
        print("nothing was compared: no table of the source matches source.tables")
        return 1
    console().print(fields_table(comparisons))
    return 0 if all(comparison.is_equal for comparison in comparisons) else 1
