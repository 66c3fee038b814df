"""The arguments that say which pipeline a command is about: a file, or two URLs."""

from __future__ import annotations

import argparse
from typing import Any

from tailrace.config import Pipeline, from_urls, load
from tailrace.errors import ConfigError

DEFAULT_FILE = "pipeline.yml"

Commands = Any
"""What `add_subparsers` returns; argparse keeps its type private."""


def add_pipeline(parser: argparse.ArgumentParser) -> None:
    """Add `FILE`, and what takes its place."""
    parser.add_argument("file", metavar="FILE", nargs="?", help=f"the pipeline file (default: {DEFAULT_FILE})")
    urls = parser.add_argument_group("without a file")
    urls.add_argument("--from", dest="from_url", metavar="URL", help="the source, such as postgresql://user@host/shop")
    urls.add_argument("--to", dest="to_url", metavar="URL", help="the sink, such as sqlite:///replica.db")
    urls.add_argument(
        "--tables",
        nargs="+",
        action="extend",
        metavar="PATTERN",
        help="such as 'public.*' '!public.audit_*' (default: all)",
    )
    urls.add_argument("--state", metavar="DIR", help="folder of the change log (default: ./state/NAME)")
    urls.add_argument("--name", help="names what is made in the source (default: made from the two URLs)")


def pipeline(args: argparse.Namespace) -> Pipeline:
    """The pipeline that the arguments of `add_pipeline` name."""
    only_urls = {"--from": args.from_url, "--to": args.to_url, "--tables": args.tables, "--state": args.state}
    only_urls["--name"] = args.name
    given = [option for option, value in only_urls.items() if value is not None]
    if not given:
        return load(args.file or DEFAULT_FILE)
    if args.file is not None:
        raise ConfigError(f"both the file {args.file} and {given[0]} are given", hint="use a file, or --from and --to")
    if args.from_url is None or args.to_url is None:
        missing = "--to" if args.from_url else "--from"
        raise ConfigError(f"{missing} is missing", hint="without a file, --from URL and --to URL belong together")
    return from_urls(args.from_url, args.to_url, tables=args.tables, state=args.state, name=args.name)
