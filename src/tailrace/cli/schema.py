"""`tailrace schema`: print the JSON Schema of the pipeline file."""

from __future__ import annotations

import argparse
import json

from tailrace.cli.arguments import Commands
from tailrace.config import json_schema


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("schema", help="print the JSON Schema of the pipeline file", description=__doc__)
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0
