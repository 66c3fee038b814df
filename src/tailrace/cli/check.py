"""`tailrace check`: look whether a pipeline can work, without changing anything, and say how to mend what can not."""

from __future__ import annotations

import argparse

from tailrace.cli.arguments import Commands, add_pipeline, pipeline

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("check", help="look whether a pipeline can work", description=__doc__)
    add_pipeline(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every finding; 1 if one of them stops the pipeline."""
    wanted = pipeline(args)

    from rich.table import Table
    from rich.text import Text

    from tailrace.cli.printing import console
    from tailrace.pipeline import preflight

    findings = preflight.check(wanted)
    table = Table("what", "state", "found", "fix", box=None, pad_edge=False)
    for finding in findings:
        state = Text(finding.level, style=STYLES[finding.level])
        table.add_row(Text(finding.subject), state, Text(finding.message), Text(finding.fix))
    console().print(table)
    return 1 if any(finding.level == "fail" for finding in findings) else 0
