"""The live display as a picture of the board: a line of what is going on, the sinks, the copies, the troubles.

It is never higher than the terminal: what does not fit is counted. A narrow terminal has fewer columns.
"""

from __future__ import annotations

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tailrace.views.bars import bars
from tailrace.views.board import Board, Sink, Trouble
from tailrace.views.words import counted, lag, span

WIDE = 72
"""Columns; below, a line has what matters most."""
FEWEST = 3
"""Lines that copies and troubles get on the lowest terminal."""


def picture(board: Board, now: float, spinner: Spinner, room: ConsoleDimensions) -> Group:
    """The board at a moment. What is returned does not look at it again."""
    is_wide = room.width >= WIDE
    parts: list[RenderableType] = [_headline(board, now, spinner, is_wide=is_wide)]
    lines = max(room.height - len(board.sinks) - 7, 2 * FEWEST)  # beside those of the sinks, and empty ones
    troubles = list(board.troubles.values())
    height = sum(_lines(trouble, room.width) for trouble in troubles)
    for_troubles = min(height, max(lines // 2, lines - len(board.copies)))
    if board.sinks:
        parts += ["", _sinks(board, is_wide=is_wide)]
    if board.copies:
        parts += ["", *bars(board, now, lines - for_troubles, room.width)]
    if troubles:
        parts += ["", *_troubles(troubles, now, for_troubles, room.width)]
    return Group(*parts, "")  # what a keyboard echoes, as Ctrl-C, has a line of its own


def _headline(board: Board, now: float, spinner: Spinner, *, is_wide: bool) -> RenderableType:
    words = Text(no_wrap=True, overflow="ellipsis")
    words.append(_doing(board), style="bold")
    if not board.is_running or board.is_stopping:
        words.append(f"  {span(now - board.doing_since)}", style="dim")
    elif is_wide:
        words.append(f"  {counted(board.changes, 'change')} captured · {span(now - board.began_at)}", style="dim")
    else:
        words.append(f"  {span(now - board.began_at)}", style="dim")
    line = Table.grid(padding=(0, 1))
    line.add_row(spinner, words)
    return line


def _doing(board: Board) -> str:
    if not board.is_running or board.is_stopping:
        return board.doing or "starting"
    if board.copies:
        return f"copying {counted(len(board.copies), 'table')}"
    if any(sink.progress.not_live for sink in board.sinks.values()):
        return "catching up"
    return "following the source"


def _sinks(board: Board, *, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("sink", overflow="ellipsis", no_wrap=True)
    table.add_column("lag", justify="right", no_wrap=True)
    table.add_column("rows/s", justify="right", no_wrap=True)
    for name in ("applied", "copied") if is_wide else ():
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tables", overflow="ellipsis", no_wrap=True)
    for name, sink in board.sinks.items():
        said = sink.progress
        sums = [f"{said.applied:,}", f"{said.copied:,}"] if is_wide else []
        table.add_row(Text(name), _lag(sink), f"{sink.rate:,.0f}", *sums, _state(sink))
    return table


def _lag(sink: Sink) -> Text:
    seconds = sink.progress.lag_seconds
    if seconds is None:
        return Text(lag(seconds), style="yellow")
    return Text(lag(seconds), style="green" if seconds < 5 else "yellow")


def _state(sink: Sink) -> Text:
    said = sink.progress
    words = Text()
    if said.not_live:
        words.append(f"{said.not_live:,} not live", style="cyan")
    if said.aside:
        words.append(f"{', ' if said.not_live else ''}{said.aside:,} aside", style="yellow")
    return words or Text("live", style="green")


def _troubles(troubles: list[Trouble], now: float, most: int, width: int) -> list[RenderableType]:
    """The worst and the newest first; whole sentences where there is room for all of them."""
    ordered = sorted(troubles, key=lambda trouble: (not trouble.is_bad, -trouble.since))
    is_whole = sum(_lines(trouble, width) for trouble in ordered) <= most
    shown = ordered if len(ordered) <= most else ordered[: max(most - 1, 1)]
    lines: list[RenderableType] = [_trouble(trouble, now, is_whole=is_whole) for trouble in shown]
    if left := len(ordered) - len(shown):
        lines.append(Text(f"and {left:,} more: see `tailrace status`", style="yellow"))
    return lines


def _trouble(trouble: Trouble, now: float, *, is_whole: bool) -> Table:
    line = Table.grid(padding=(0, 1, 0, 0), expand=True)
    line.add_column(width=1)
    line.add_column(ratio=1, no_wrap=not is_whole, overflow="fold" if is_whole else "ellipsis")
    words = Text(trouble.text, style="red" if trouble.is_bad else "yellow")
    if trouble.retry_at is not None:
        rest = trouble.retry_at - now
        words.append(f"; trying again in {span(rest)}" if rest >= 0.5 else "; trying again", style="dim")
    line.add_row(Text("✗" if trouble.is_bad else "!", style="bold red" if trouble.is_bad else "bold yellow"), words)
    return line


def _lines(trouble: Trouble, width: int) -> int:
    """At most, as words are not torn."""
    return 1 + (len(trouble.text) + len("; trying again in 10 m 00 s")) // max(width - 12, 1)
