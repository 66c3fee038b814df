"""`tailrace capture`: capture a pipeline's changes on a host of its own, while `tailrace run` works elsewhere.

Both need `capture: elsewhere` in their copy of the file, and the same state directory. SIGTERM and Ctrl-C end it.
"""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("capture", help="capture for a pipeline that runs elsewhere", description=__doc__)
    add_pipeline(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.pipeline import capture_alone

    return capture_alone.capture(wanted)
