"""The copies under way: a line a table, with as many columns as there is room for."""

from __future__ import annotations

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tailrace.views.board import Board, Copy
from tailrace.views.words import counted, part, span

BAR, SHARE, ROWS, BYTES, LEFT = 8, 4, 12, 16, 13
"""How wide the columns are, at least."""
HAS_BYTES, HAS_ROWS = 62, 78
"""From which width on there is a column for them."""
PADDING = 2


def bars(board: Board, now: float, most: int, width: int) -> list[RenderableType]:
    """In at most so many lines; the tables of which something is loaded come first."""
    copies = sorted(board.copies.values(), key=lambda copy: (copy.bytes == 0, copy.began_at, copy.table))
    shown = copies if len(copies) <= most else copies[: max(most - 1, 1)]
    sink = _sink_width(board, width)
    table = _columns(width, sink)
    for copy in shown:
        names = [Text(copy.table), *([Text(copy.sink)] if sink else [])]
        table.add_row(*names, _bar(copy), *_measures(copy, now, width - sink))
    left = len(copies) - len(shown)
    return [table, *([Text(f"and {counted(left, 'more table')}", style="dim")] if left else [])]


def _sink_width(board: Board, width: int) -> int:
    """0 where there is one sink only, which need not be named."""
    return 0 if len(board.sinks) < 2 else min(max(map(len, board.sinks)), 10 if width >= HAS_ROWS else 6)


def _columns(width: int, sink: int) -> Table:
    """A table without rows. The name gets what the others leave, and the bar what the name leaves."""
    room = width - sink
    measures = [SHARE, *([ROWS] if room >= HAS_ROWS else []), *([BYTES] if room >= HAS_BYTES else []), LEFT]
    rest = room - BAR - sum(measures) - PADDING * (len(measures) + 2)
    table = Table.grid(padding=(0, PADDING, 0, 0), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(rest, 8))
    if sink:
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=sink, style="dim")
    table.add_column(ratio=1, min_width=BAR)
    for least in measures:
        table.add_column(justify="right", no_wrap=True, min_width=least)
    return table


def _bar(copy: Copy) -> ProgressBar:
    return ProgressBar(total=1.0, completed=copy.share, complete_style="cyan", finished_style="green")


def _measures(copy: Copy, now: float, room: int) -> list[Text]:
    seconds = copy.seconds_left(now)
    done = part(copy.bytes, copy.total_bytes) if copy.total_bytes else "planning"
    return [
        Text(f"{copy.share:.0%}"),
        *([Text(f"{copy.rows:,} rows")] if room >= HAS_ROWS else []),
        *([Text(done)] if room >= HAS_BYTES else []),
        Text("" if seconds is None else f"{span(seconds)} left", style="dim"),
    ]
