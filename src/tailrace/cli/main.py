"""The `tailrace` command: finds the subcommand, and turns errors into sentences and exit codes.

Exit codes: 0 done, 1 differences or failure, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tailrace.cli import (
    capture,
    check,
    checkpoint,
    demo,
    documents,
    drop,
    init,
    quarantine,
    readers,
    reindex,
    run,
    schema,
    snapshot,
    status,
    tail,
    verify,
)
from tailrace.errors import ConfigError, TailraceError

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = (
    *(demo, init, schema, check, run, capture, status, verify, snapshot, documents, reindex, quarantine, readers),
    *(checkpoint, tail, drop),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except TailraceError as error:
        if args.debug:
            raise
        return _say(error)


def parser() -> argparse.ArgumentParser:
    """The whole command line. Building it imports nothing heavy."""
    top = argparse.ArgumentParser(
        prog="tailrace",
        description="Carry every committed change of a database on to other systems, on Apache Spark.",
        epilog="`tailrace COMMAND --help` tells more. Exit codes: 0 done, 1 differences or failure, 2 wrong use.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    for each in commands.choices.values():
        each.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
    return top


class _Version(argparse.Action):
    """Prints the version; reads the package's metadata only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"tailrace {version('tailrace')}")
        parser.exit()


def _say(error: TailraceError) -> int:
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return WRONG_USE if isinstance(error, ConfigError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
