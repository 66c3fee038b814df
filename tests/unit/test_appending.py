"""Writing a segment while the next is read: durable before anybody hears of it, and never two at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.messages import Feed, insert, transaction
from tailrace import config
from tailrace.errors import StateError
from tailrace.log.appending import Appender
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.model.frames import Frames
from tailrace.pipeline.capture_process import SOME_BYTES, Pump
from tailrace.sources.readiness import readable
from tailrace.state.storage import Storage

LARGE = transaction(insert(1, b"x" * SOME_BYTES))


class Held:
    """What a feed would append, kept."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer, self.taken = writer, list[tuple[Frames, str]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def append(self, frames: Frames, position: str) -> None:
        self.taken.append((frames, position))


def frames_of(writer: LogWriter, messages: list[bytes]) -> tuple[Frames, str]:
    held: Any = Held(writer)
    Feed(held, {}).append(*messages)
    return held.taken[0]  # type: ignore[no-any-return]


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter.create(Storage(str(tmp_path / "log")), None, "0/100")


def test_a_large_segment_is_durable_when_it_is_finished_and_says_so(writer: LogWriter) -> None:
    appender = Appender(writer)
    frames, position = frames_of(writer, LARGE)
    appender.begin(frames, position, None)
    assert readable([appender], 60.0)
    assert appender.finish() == (frames, position)
    assert LogReader(writer.storage).end() == frames.last
    assert not readable([appender], 0)
    assert not appender.is_busy


def test_a_small_segment_is_durable_at_once(writer: LogWriter) -> None:
    appender = Appender(writer)
    frames, position = frames_of(writer, transaction(insert(1, b"x")))
    appender.begin(frames, position, None)
    assert not appender.is_writing
    assert LogReader(writer.storage).end() == frames.last
    assert appender.finish() == (frames, position)


def test_what_a_large_segment_fails_with_is_raised_when_it_is_finished(writer: LogWriter) -> None:
    appender, failing = Appender(writer), StateError("the disk is full")

    def fail(*_: object) -> None:
        raise failing

    writer.append = fail  # type: ignore[method-assign]
    appender.begin(*frames_of(writer, LARGE), None)
    with pytest.raises(StateError, match="the disk is full"):
        appender.finish()


def test_the_source_hears_of_a_segment_when_it_is_durable_and_is_read_on_meanwhile(
    writer: LogWriter, tmp_path: Path
) -> None:
    told: list[str] = []
    taken = [frames_of(writer, LARGE)]
    may_write, append = threading.Event(), writer.append
    capture: Any = SimpleNamespace(identity=None, acknowledge=told.append, remarks=list, received="0/200")
    capture.polls, capture.pending_bytes = 0, SOME_BYTES
    control: Any = SimpleNamespace(is_closed=False, acknowledgement=lambda: None)

    def take() -> tuple[Frames, str] | None:
        capture.pending_bytes = 0
        return taken.pop() if taken else None

    def poll(*_: object) -> None:
        capture.polls += 1
        if capture.polls == 10:
            assert not told
            may_write.set()
        control.is_closed = bool(told)

    def write(frames: Frames, position: str) -> None:
        assert may_write.wait(60.0)
        append(frames, position)

    capture.take, capture.poll = take, poll
    writer.append = write  # type: ignore[method-assign]
    source: Any = SimpleNamespace(capture=lambda *_: capture)
    settings = config.Source("postgresql://localhost/none", ("public.*",), acknowledge=config.Acknowledge.LOG)
    pump = Pump(source, writer, config.Pipeline("under_test", settings, {}, state=str(tmp_path)), control)
    pump.run()
    assert len(told) == 1
    assert LogReader(writer.storage).end() == writer.end > 0
