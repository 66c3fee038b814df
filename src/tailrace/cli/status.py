"""`tailrace status`: how far each table is in each sink: state, rows, lag. Changes nothing, and disturbs no run.

Exit code 1 if a sink can not be asked; what the others say is shown all the same.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tailrace.cli.arguments import Commands, add_pipeline, pipeline

if TYPE_CHECKING:
    from rich.table import Table

    from tailrace.config import Pipeline
    from tailrace.pipeline.status import TableLine

RIGHT = ("rows", "copied", "chunks", "offset", "lag", "behind", "end")
COLUMNS = ("sink", "table", "state", "rows", "copied", "chunks", "offset", "position", "lag", "behind")


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("status", help="print tables, their state, rows and lag", description=__doc__)
    add_pipeline(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    wanted = pipeline(args)

    import msgspec

    from tailrace.cli import readers as reader_tables
    from tailrace.cli.printing import console
    from tailrace.pipeline import readers, status

    lines, errors = status.look(wanted)
    for error in errors.values():
        print(f"error: {error}", file=sys.stderr)
    if args.json:
        print(msgspec.json.encode(lines).decode())
        return 1 if errors else 0
    out = console()
    if lines:
        out.print(_table(lines))
    for line in (line for line in lines if line.reason):
        print(f"{line.table} in sink {line.sink} is {line.state}: {line.reason}")
    for name in (name for name in wanted.sinks if name not in errors):
        if not any(line.sink == name for line in lines):
            print(f"sink {name} has nothing of this pipeline yet")
        _print_quarantine(wanted, name)
    if named := readers.read(wanted):
        out.print(reader_tables.table(named))
    _print_capture(wanted)
    for words in {line.source_error for line in lines if line.source_error}:
        print(f"how far the source is, is not known: {words}")
    return 1 if errors else 0


def _print_capture(wanted: Pipeline) -> None:
    from tailrace.config import Capture
    from tailrace.pipeline import status

    if wanted.capture is Capture.ELSEWHERE:
        print("the changes are captured elsewhere, by `tailrace capture`")
    if trouble := status.capture_trouble(wanted.state):
        print(trouble)


def _print_quarantine(wanted: Pipeline, sink: str) -> None:
    from tailrace.pipeline import quarantine

    if count := len(quarantine.entries(wanted, quarantine.Chosen(sink))):
        print(f"sink {sink} has {count:,} rows set aside: see `tailrace quarantine list`")


def _table(lines: list[TableLine]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    has_topics = any(line.topic for line in lines)
    for name in (*COLUMNS, *(("topic", "end") if has_topics else ())):
        table.add_column(name, justify="right" if name in RIGHT else "left")
    for line in lines:
        cells = _cells(line) + (_topic_cells(line) if has_topics else [])
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _topic_cells(line: TableLine) -> list[str]:
    if not line.topic:
        return ["", ""]
    return [line.topic, "gone" if line.end_offset is None else f"{line.end_offset:,}"]


def _cells(line: TableLine) -> list[str]:
    from tailrace.views.words import size

    return [
        line.sink,
        line.table,
        line.state,
        "not counted" if line.rows is None else f"{line.rows:,}",
        f"{line.copied:,}",
        "" if line.chunks is None else f"{line.chunks_loaded:,}/{line.chunks:,}",
        f"{line.offset:,}",
        line.position,
        _lag(line),
        "" if line.behind_bytes is None else size(line.behind_bytes),
    ]


def _lag(line: TableLine) -> str:
    if line.state in ("paused", "failed"):
        return "set aside"
    if line.run == "stopped":
        return "stopped"
    if line.chunks is not None:
        return "copying"
    return "unknown" if line.lag_seconds is None else f"{line.lag_seconds:.1f} s"
