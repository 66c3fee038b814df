"""`tailrace run`: copy the tables, then carry every change on until stopped.

SIGTERM and Ctrl-C finish the micro-batch and end it with exit code 0.
"""

from __future__ import annotations

import argparse
import signal

from tailrace.cli.arguments import Commands, add_pipeline, pipeline


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("run", help="run a pipeline", description=__doc__)
    add_pipeline(parser)
    parser.add_argument(
        "--until-current", action="store_true", help="stop when the sinks have all that was committed when it started"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    from tailrace.events import Starting
    from tailrace.views.view import open_view

    signal.signal(signal.SIGTERM, _exit_on_signal)
    with open_view() as view:
        view.say(Starting(doing="loading"))  # pyspark alone takes a second

        from tailrace.pipeline import preflight

        preflight.refuse_other_spark()

        from tailrace.pipeline import runner

        return runner.run(wanted, until_current=args.until_current, view=view)


def _exit_on_signal(*_: object) -> None:
    """SIGTERM before there is a run to stop: the terminal is left as it was."""
    raise SystemExit(0)
