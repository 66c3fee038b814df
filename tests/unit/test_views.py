"""What a person sees: what is going on from the first moment, the copies, the troubles until they are over, the end."""

from __future__ import annotations

import io
import os
import pty
import sys

import pytest
from rich.console import Console
from rich.spinner import Spinner

from tailrace import events
from tailrace.events import Event
from tailrace.testing.processes import wait_until
from tailrace.views.board import Board
from tailrace.views.display import Display
from tailrace.views.drawing import picture
from tailrace.views.lines import JsonLines
from tailrace.views.sentences import sentence
from tailrace.views.stray import StrayOutput
from tailrace.views.view import open_view
from tailrace.views.words import lag, part, size, span

NOON = 1000.0
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def progress(applied: int = 0, lag_seconds: float | None = 0.0, capture: str = "", changes: int = 0) -> events.Progress:
    sink = events.SinkProgress(applied=applied, copied=300_000, lag_seconds=lag_seconds, not_live=0, aside=0)
    return events.Progress(changes=changes, sinks={"replica": sink}, capture=capture)


def copying(rows: int, done: int, table: str = "public.orders", total: int = 60) -> events.Copying:
    return events.Copying(table=table, sink="replica", rows=rows, bytes=done << 20, total_bytes=total << 20)


def table(state: str, name: str = "public.orders", reason: str = "") -> events.Table:
    return events.Table(table=name, sink="replica", state=state, rows=None, reason=reason)


def board(*said: Event | tuple[float, Event]) -> Board:
    """What is known after events, which come at NOON unless a time stands beside them."""
    made = Board(NOON)
    for each in said:
        at, event = each if isinstance(each, tuple) else (0.0, each)
        made.hear(event, NOON + at)
    return made


def drawn(made: Board, after: float = 10.0, width: int = 80, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(picture(made, NOON + after, Spinner("dots"), console.size))
    return console.export_text()


RUNNING = events.Running(sinks=("replica",), tables=1)


def test_the_first_moments_say_what_is_done_and_for_how_long() -> None:
    shown = drawn(
        board((0, events.Starting(doing="checking the source")), (4, events.Starting(doing="starting Spark")))
    )
    assert "starting Spark  6 s" in shown
    assert "checking" not in shown


def test_a_copy_has_a_bar_with_rows_bytes_and_what_is_left() -> None:
    made = board(RUNNING, progress(), table("snapshot"), (0, copying(0, 0)), (10, copying(100_000, 20)))
    shown = drawn(made)
    assert "copying 1 table" in shown
    line = next(line for line in shown.splitlines() if "public.orders" in line)
    assert line.split()[-10:] == ["33%", "100,000", "rows", "20.0", "of", "60.0", "MiB", "20", "s", "left"]


def test_a_copy_that_is_resumed_is_measured_from_where_it_was() -> None:
    made = board(RUNNING, progress(), (0, copying(100_000, 30)), (10, copying(150_000, 45)))
    assert "10 s left" in drawn(made)


def test_a_bar_goes_with_its_copy_and_does_not_come_back() -> None:
    made = board(RUNNING, progress(), table("snapshot"), copying(1, 1), table("catch_up"), copying(2, 60))
    assert "public.orders" not in drawn(made)


def test_rates_are_of_the_last_seconds() -> None:
    made = board(RUNNING, (0, progress(1_000_000)), (100, progress(1_000_000)), (110, progress(1_005_000)))
    assert made.sinks["replica"].rate == 500


@pytest.mark.parametrize(("seconds", "words"), [(0.0, "none"), (0.4, "0.4 s"), (75.0, "1 m 15 s"), (None, "unknown")])
def test_the_lag_of_a_sink_is_shown(seconds: float | None, words: str) -> None:
    line = next(line for line in drawn(board(RUNNING, progress(5, seconds))).splitlines() if "replica" in line)
    assert line.split() == ["replica", *words.split(), "0", "5", "300,000", "live"]


def test_what_was_captured_is_counted_on_when_capture_is_started_anew() -> None:
    said = [progress(changes=count) for count in (100, 150, 20, 30)]
    assert board(*said).changes == 180


TROUBLES: list[tuple[Event, str, Event]] = [
    (events.SourceRetry(message="no server", retry_seconds=5.0), "no server", events.Starting(doing="checking")),
    (events.SourceRetry(sink="a", message="no server", retry_seconds=5.0), "no server", events.Recovered(sink="a")),
    (events.SinkRetry(sink="a", message="no disk", retry_seconds=5.0), "no disk", events.Recovered(sink="a")),
    (events.SinkRetry(sink="a", message="absent", retry_seconds=5.0), "absent", events.Running(sinks=("a",), tables=1)),
    (events.CaptureRestart(message="died", retry_seconds=1.0), "died", progress()),
    (progress(capture="capture is silent"), "capture is silent", progress()),
    (events.LogFull(message="the log is full", reader=None), "the log is full", progress()),
    (events.Waiting(message="others write"), "others write", events.Starting(doing="starting Spark")),
    (table("failed", reason="too wide"), "public.orders is failed: too wide", table("snapshot")),
    (table("paused", reason="left out"), "public.orders is paused: left out", table("live")),
    (
        events.NotPublished(sink="a", table="public.t", reason="locked"),
        "public.t is not published: locked",
        events.Published(sink="a", tables=("public.t",)),
    ),
]


@pytest.mark.parametrize(("trouble", "words", "over"), TROUBLES, ids=lambda each: type(each).__name__)
def test_a_trouble_is_in_sight_until_it_is_over(trouble: Event, words: str, over: Event) -> None:
    made = board(
        trouble, events.Copying(table="other", sink="b", rows=0, bytes=0, total_bytes=1), table("live", "other")
    )
    assert words in drawn(made)
    made.hear(over, NOON + 1)
    assert words not in drawn(made)


def test_a_trouble_of_one_sink_is_not_over_when_another_is_well() -> None:
    made = board(
        events.SinkRetry(sink="a", message="no disk", retry_seconds=5.0),
        events.Recovered(sink="b"),
        events.Running(sinks=("b",), tables=1),
        progress(),
    )
    assert "no disk; trying again" in drawn(made)


@pytest.mark.parametrize("width", [20, 50, 80, 200])
@pytest.mark.parametrize("height", [10, 24])
def test_it_fits_every_terminal(width: int, height: int) -> None:
    """Also with more tables and troubles than there are lines."""
    made = board(RUNNING, progress())
    for number in range(100):
        name = f"public.a_table_with_a_long_name_{number}"
        made.hear(table("snapshot", name), NOON)
        made.hear(copying(1000, 3, name), NOON)
        made.hear(table("failed", f"public.failed_{number}", "a sentence that does not fit in here " * 5), NOON)
    lines = drawn(made, width=width, height=height).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 16)
    assert "more" in "".join(lines)


def test_a_name_is_not_markup() -> None:
    made = board(RUNNING, progress(), table("failed", 'public."[bold]"', "[red]"))
    assert 'public."[bold]" is failed: [red]' in drawn(made)


class Terminal:
    """A display on a terminal that remembers everything; its clock stands still."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        console = Console(file=self.stream, force_terminal=True, width=80, height=24, color_system=None)
        self.now = NOON
        self.display = Display(self.stream, console=console, clock=lambda: self.now)

    @property
    def output(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_the_terminal_is_given_back_after_an_exception(terminal: Terminal) -> None:
    before = sys.stdout
    try:
        with terminal.display:
            assert terminal.output.count(HIDE_CURSOR) == 1
            raise ValueError("anything")
    except ValueError:
        pass
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.rindex(HIDE_CURSOR)
    assert sys.stdout is before


def test_what_others_print_is_whole_and_above(terminal: Terminal) -> None:
    with terminal.display as display:
        display.say(events.Starting(doing="starting Spark"))
        print("a plain print")
        display._live.refresh()
    assert "a plain print\n" in terminal.output
    assert terminal.output.rindex("starting Spark") > terminal.output.index("a plain print")


def test_the_same_trouble_is_one_line_a_minute(terminal: Terminal) -> None:
    trouble = events.SinkRetry(sink="a", message="no disk", retry_seconds=5.0)
    for terminal.now in (NOON, NOON + 5, NOON + 61):
        terminal.display.say(trouble)
    assert terminal.output.count("no disk") == 2


def test_the_last_line_says_where_each_sink_is() -> None:
    places = {
        "replica": events.Place(1234, "0/10", 0.0),
        "warehouse": events.Place(17, "0/8", 3.5),
        "other": events.Place(0, "", None),
    }
    words = sentence(events.Stopped(sinks=places), 75.0)
    assert words is not None
    assert words.plain.splitlines() == [
        "stopped after 1 m 15 s",
        "  replica is at 0/10, offset 1,234: it has all that was captured",
        "  warehouse is at 0/8, offset 17: 3.5 s behind",
        "  other is at its beginning, offset 0: it has what was captured, and nobody knows what was not",
    ]
    early = sentence(events.Stopped(sinks={}), 2.0)
    assert early is not None
    assert early.plain == "stopped after 2 s; no sink had begun"


def test_what_other_processes_write_does_not_tear_the_display() -> None:
    """They inherit standard error, which is a terminal."""
    heard: list[str] = []
    ours, theirs = pty.openpty()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    try:
        stray = StrayOutput(heard.append)
        stray.start()
        os.write(2, b"a stray line\n")
        wait_until(lambda: heard == ["a stray line"], seconds=10, what="the line")
        stray.stop()
        assert os.isatty(2)
    finally:
        os.dup2(kept, 2)
        for each in (kept, ours, theirs):
            os.close(each)


def test_a_pipe_gets_lines_and_a_terminal_a_display() -> None:
    assert isinstance(open_view(io.StringIO()), JsonLines)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb"), os.fdopen(theirs, "w") as stream:
        assert isinstance(open_view(stream), Display)


def test_sizes_and_times_are_words() -> None:
    assert [size(0), size(2048), size(5 << 20), size(3 << 40)] == ["0 B", "2.0 KiB", "5.0 MiB", "3.0 TiB"]
    assert [part(0, 100), part(6 << 20, 57_147_392)] == ["0 of 100 B", "6.0 of 54.5 MiB"]
    assert [span(8), span(125), span(12_000), span(200_000)] == ["8 s", "2 m 05 s", "3 h 20 m", "2 d 7 h"]
    assert [lag(None), lag(0.0), lag(59.94), lag(61)] == ["unknown", "none", "59.9 s", "1 m 01 s"]
