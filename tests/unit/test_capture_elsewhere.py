"""A capture on another host, as the run sees it, without either: two files in a state directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tailrace import config
from tailrace.log.reader import IDENTITY, LogIdentity
from tailrace.pipeline import capture_elsewhere
from tailrace.pipeline.capture_elsewhere import (
    ABSENT,
    SILENT_SECONDS,
    CaptureElsewhere,
    Report,
    read_acknowledged,
)
from tailrace.pipeline.capture_process import Acknowledge, Progress
from tailrace.state.layout import ACKNOWLEDGED, CAPTURED
from tailrace.state.storage import Storage
from tailrace.testing.processes import wait_until

PROGRESS = Progress(received="0/200", end=7, log_bytes=10, changes=3, is_full=False)


@pytest.fixture
def state(tmp_path: Path) -> Storage:
    state = Storage(str(tmp_path))
    make_log(state)
    return state


def make_log(state: Storage, log: str = "a log") -> None:
    state.folder("log").create()
    state.folder("log").publish(IDENTITY, msgspec.json.encode(LogIdentity(log, None, "0/100")))


@pytest.fixture
def capture(state: Storage) -> Iterator[CaptureElsewhere]:
    source = config.Source("postgresql://localhost/none", ("public.*",))
    sinks = {"replica": config.Sink("null://")}
    capture = CaptureElsewhere(config.Pipeline("under_test", source, sinks, state=state.path), "slot a")
    capture.start()
    yield capture
    capture.stop()


def say(
    state: Storage,
    log: str = "a log",
    at: float | None = None,
    trouble: str = "",
    end: int = 7,
    reads_from: str = "slot a",
) -> None:
    progress = msgspec.structs.replace(PROGRESS, end=end)
    report = Report(log, progress, trouble, time.time() if at is None else at, reads_from)
    state.publish(CAPTURED, msgspec.json.encode(report))


def heard(capture: CaptureElsewhere, end: int) -> None:
    wait_until(lambda: capture.progress is not None and capture.progress.end == end, seconds=30, what="a report")


def say_and_forget(state: Storage, log: str, end: int) -> None:
    """Until the run has had the time to read it twice."""
    reads: list[str] = []
    read, say_it = Storage.read, pytest.MonkeyPatch()

    def counted(storage: Storage, name: str, *arguments: int) -> bytes:
        reads.append(name)
        return read(storage, name, *arguments)

    with say_it.context() as patch:
        patch.setattr(Storage, "read", counted)
        say(state, log=log, end=end)
        wait_until(lambda: reads.count(CAPTURED) >= 3, seconds=30, what="the run to look")


def test_nobody_there_is_trouble(capture):
    assert capture.trouble == ABSENT
    assert capture.progress is None


def test_a_report_is_heard_and_all_is_well(capture, state):
    say(state)
    heard(capture, 7)
    assert capture.trouble == ""


def test_what_capture_says_of_its_trouble_is_passed_on(capture, state):
    say(state, trouble="capture was stopped")
    heard(capture, 7)
    assert capture.trouble == "capture was stopped"


def test_the_last_word_of_a_dead_capture_tells_how_far_it_was_and_not_that_it_lives(capture, state):
    say(state, at=time.time() - 2 * SILENT_SECONDS)
    heard(capture, 7)
    assert "capture is silent since" in capture.trouble
    say(state, at=time.time() - 2 * SILENT_SECONDS + 5)  # its clock is wrong, and it lives
    wait_until(lambda: capture.trouble == "", seconds=30, what="the next report")


def test_a_capture_that_says_nothing_for_long_is_silent(capture, state, monkeypatch):
    say(state)
    heard(capture, 7)
    monkeypatch.setattr(capture_elsewhere, "SILENT_SECONDS", 0.0)
    assert "capture is silent since" in capture.trouble


def test_another_log_ends_the_run(capture, state):
    say(state)
    heard(capture, 7)
    capture.acknowledge(Acknowledge("a log", 5, "0/150"))
    make_log(state, "another log")
    say(state, log="another log", end=8)
    wait_until(lambda: capture.error is not None, seconds=30, what="the error")
    assert "was made anew" in str(capture.error)
    capture.stop()
    assert read_acknowledged(state, "another log") is None, "what the sinks have is of the log before"


def test_a_capture_that_reads_something_else_is_refused(capture, state):
    say(state, reads_from="slot b")
    wait_until(lambda: capture.error is not None, seconds=30, what="the error")
    assert str(capture.error) == "`tailrace capture` reads slot b, and this pipeline file says slot a"
    assert capture.progress is None


def test_the_last_word_about_a_log_that_is_gone_is_not_heard(capture, state):
    say(state, log="the log before", end=900)
    say_and_forget(state, "the log before", 901)
    assert (capture.progress, capture.trouble) == (None, ABSENT)
    say(state)
    heard(capture, 7)


def test_a_capture_of_the_log_before_that_still_speaks_disturbs_nobody(capture, state):
    say(state)
    heard(capture, 7)
    say_and_forget(state, "the log before", 901)
    say(state, end=8)
    heard(capture, 8)
    assert capture.error is None


def test_what_the_sinks_have_is_written_for_the_log_that_they_have_it_of(capture, state):
    say(state)
    heard(capture, 7)
    capture.acknowledge(Acknowledge("a log", 5, "0/150"))
    wait_until(lambda: read_acknowledged(state, "a log") is not None, seconds=30, what="the acknowledgement")
    assert read_acknowledged(state, "a log") == Acknowledge("a log", 5, "0/150")
    assert read_acknowledged(state, "another log") is None


def test_the_last_acknowledgement_is_written_when_the_run_stops(capture, state):
    say(state)
    heard(capture, 7)
    for offset in (5, 6, 7):
        capture.acknowledge(Acknowledge("a log", offset, f"0/{offset}"))
    capture.stop()
    assert read_acknowledged(state, "a log") == Acknowledge("a log", 7, "0/7")


@pytest.mark.parametrize("content", [b"", b"{", b'{"log": "a log"}'])
def test_an_acknowledgement_that_can_not_be_read_is_none(state, content):
    state.publish(ACKNOWLEDGED, content)
    assert read_acknowledged(state, "a log") is None
    state.publish(ACKNOWLEDGED, msgspec.json.encode(Acknowledge("a log", 1, "0/1")))
    assert read_acknowledged(state, "a log") == Acknowledge("a log", 1, "0/1")
