"""A capture that can not be started, or dies, or whose supervisor does: seen and said, and never a silent end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tailrace import config
from tailrace.errors import EngineLost, SinkRejected
from tailrace.events import CaptureRestart, Event
from tailrace.model.backoff import Backoff
from tailrace.model.watermark import SourceIdentity
from tailrace.pipeline import capture_supervisor as supervisor
from tailrace.pipeline.capture_process import Order
from tailrace.pipeline.capture_supervisor import CaptureSupervisor
from tailrace.pipeline.threads import WatchedThread
from tailrace.state import capture_note
from tailrace.state.capture_note import CaptureNote, CaptureState
from tailrace.testing.processes import wait_until


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fails = False

    def say(self, event: Event) -> None:
        if self.fails:
            raise BrokenPipeError("nobody reads our output")
        self.events.append(event)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def capture(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[CaptureSupervisor]:
    monkeypatch.setattr(supervisor, "Backoff", partial(Backoff, 0.01))
    source = config.Source("postgresql://postgres@127.0.0.1:1/nowhere", ("*.*",))
    pipeline = config.Pipeline("any", source, {}, state=str(tmp_path))
    made = CaptureSupervisor(Order(pipeline, "0/1", SourceIdentity("1", "1", "nowhere (1)", "any")), heard.say)
    yield made
    made.stop()


def test_a_capture_that_can_not_be_started_is_tried_again_and_said_to_be_down(
    capture: CaptureSupervisor, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    capture.start()
    wait_until(lambda: len(heard.events) >= 2, seconds=30, what="two tries")
    assert capture.error is None
    assert {type(event) for event in heard.events} == {CaptureRestart}
    assert "the capture process can not be started: " in capture.trouble
    note = capture_note.read(str(tmp_path))
    assert note is not None
    assert note.state is CaptureState.DOWN
    assert note.sentence.startswith("capture is down since 2")
    assert "; next try at 2" in note.sentence


def test_a_capture_that_says_nonsense_is_started_again(
    capture: CaptureSupervisor, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho nonsense\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    capture.start()
    wait_until(lambda: len(heard.events) >= 2, seconds=30, what="two tries")
    assert isinstance(heard.events[0], CaptureRestart)
    assert "not understood" in heard.events[0].message


def test_a_supervisor_that_dies_is_an_error_that_the_run_sees(
    capture: CaptureSupervisor, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    heard.fails = True
    capture.start()
    wait_until(lambda: capture.error is not None, seconds=30, what="the error")
    assert str(capture.error).startswith("the thread for capture ended: BrokenPipeError in test_capture_supervisor.py")


def test_a_thread_that_dies_keeps_its_own_error_and_hides_the_words_of_others() -> None:
    def refuse() -> None:
        raise SinkRejected("a table is full")

    def leak() -> None:
        raise ValueError("card number 4111")

    threads = [WatchedThread(refuse, "one"), WatchedThread(leak, "two"), WatchedThread(lambda: None, "three")]
    for thread in threads:
        thread.start()
        thread.join(10)
    assert str(threads[0].error) == "a table is full"
    assert isinstance(threads[1].error, EngineLost)
    assert "4111" not in str(threads[1].error)
    assert threads[2].error is None


def test_a_full_log_is_said_with_its_size() -> None:
    assert capture_note.full(10 << 30) == "the log is full (10 GiB)"
    assert capture_note.full(64 << 20) == "the log is full (64 MiB)"
    note = CaptureNote(CaptureState.WAITING, capture_note.full(10 << 30), since=0.0)
    assert note.sentence == "capture is waiting since 1970-01-01 00:00:00 UTC: the log is full (10 GiB)"
    assert CaptureNote(CaptureState.RUNNING).sentence == ""


@pytest.mark.parametrize("content", [b"", b"{", b'{"state": "odd"}'])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "capture.json").write_bytes(content)
    assert capture_note.read(str(tmp_path)) is None
    assert capture_note.read(str(tmp_path / "nowhere")) is None
