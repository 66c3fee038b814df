"""`tailrace demo`: the whole way, on a database of its own, with a kill in the middle and a comparison at the end.

Exit code 0 only if every table ended identical. Ctrl-C ends and removes everything it started.
"""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from tailrace.cli.arguments import Commands
from tailrace.errors import MissingExtra


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("demo", help="see it work, on a database of its own", description=__doc__)
    parser.add_argument(
        "--source",
        choices=("postgresql", "mysql", "mariadb"),
        default="postgresql",
        help="postgresql is embedded (the default); mysql and mariadb are servers that are installed on this machine",
    )
    parser.add_argument(
        "--seconds",
        type=_at_least_one,
        default=20.0,
        metavar="N",
        help="how long it follows the changes, half of it before the kill and half after (default: 20)",
    )
    parser.add_argument(
        "--workload-rate", type=_at_least_one, default=500.0, metavar="N", help="changes a second (default: 500)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the databases and the state folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        from tailrace.demo import story

        if args.source != "postgresql":
            from tailrace.demo import on_mysql  # noqa: F401  - whether it can be had
    except ModuleNotFoundError as error:
        extras = "demo" if args.source == "postgresql" else "demo,mysql"
        raise MissingExtra(f"pip install 'tailrace[{extras}]'", hint=f"the demo needs {error.name}") from error

    from tailrace.cli.printing import console

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    return story.run(story.Options(args.seconds, int(args.workload_rate), args.keep, source=args.source), console())


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    """As Ctrl-C: everything is ended and removed on the way out."""
    sys.exit(128 + number)


def _at_least_one(text: str) -> float:
    number = float(text)
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1,000,000")
    return number
