"""Keeps the capture process alive: notices its death at once, and starts it again with backoff."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress

import msgspec

from tailrace import errors, events
from tailrace.errors import SourceUnavailable, TailraceError
from tailrace.model.backoff import Backoff
from tailrace.model.stored import from_json
from tailrace.pipeline.capture_process import Acknowledge, Failed, Order, Progress, Remark, Word
from tailrace.pipeline.threads import WatchedThread
from tailrace.state import scratch
from tailrace.state.capture_note import SILENT_SECONDS, CaptureState, Notice, full, silent

STOP_SECONDS = 10.0
FULL_SECONDS = 5
AGAIN_SECONDS = 60.0


class CaptureSupervisor:
    """Runs in a thread of the driver. `progress` is the latest word of the capture process."""

    def __init__(self, order: Order, say: events.Say) -> None:
        self._order = order
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._acknowledged: Acknowledge | None = None
        self._lock = threading.Lock()
        self.progress: Progress | None = None
        self._error: TailraceError | None = None
        self._notice = Notice(order.pipeline.state)
        self._news = scratch.news(order.pipeline.state)
        self._told_full_at = float("-inf")
        self._heard_at = time.time()
        self._thread = WatchedThread(self._run, "capture")

    def start(self) -> None:
        self._thread.start()

    def acknowledge(self, said: Acknowledge) -> None:
        """Tell the capture process what every sink has; a restarted one is told again."""
        with self._lock:
            if said != self._acknowledged:
                self._acknowledged = said
                self._send(msgspec.json.encode(said))

    def stop(self) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.stdin is not None:
            with self._lock, suppress(OSError):  # it may be dead already
                process.stdin.close()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    @property
    def error(self) -> TailraceError | None:
        """Why capture has ended for good, if it did."""
        return self._error or self._thread.error

    @property
    def trouble(self) -> str:
        """Why nothing is captured at this moment; empty if all is well."""
        is_silent = time.time() - self._heard_at > SILENT_SECONDS
        return self._notice.now.sentence or (silent(self._heard_at) if is_silent else "")

    def note(self, state: CaptureState, message: str = "") -> None:
        """What others are to see of it from now on."""
        self._notice.write(state, message)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            began = time.monotonic()
            failure = self._run_safely()
            if self._stopping.is_set():
                return
            if not failure.retry:
                self._error = failure
                return
            if time.monotonic() - began > backoff.longest:
                backoff.reset()
            seconds = backoff.wait()
            self._notice.write(CaptureState.DOWN, str(failure), time.time() + seconds)
            self._say(events.CaptureRestart(message=str(failure), retry_seconds=seconds))
            self._stopping.wait(seconds)

    def _run_safely(self) -> TailraceError:
        """What ended a capture process, or kept it from being started: all of it may pass."""
        try:
            return self._run_once()
        except OSError as error:
            return SourceUnavailable(f"the capture process can not be started: {error}")
        except msgspec.MsgspecError:
            self._kill()
            return SourceUnavailable("the capture process said something that is not understood")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def _run_once(self) -> TailraceError:
        """Run one capture process to its end; what ended it."""
        command = [sys.executable, "-m", "tailrace.pipeline.capture_process"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with self._lock:
            self._process = process
            self._send(msgspec.json.encode(self._order))
            if self._acknowledged is not None:
                self._send(msgspec.json.encode(self._acknowledged))
        failure: TailraceError | None = None
        assert process.stdout is not None
        for line in process.stdout:
            word: Word = from_json(line, Word)
            self._heard_at = time.time()
            if isinstance(word, Failed):
                failure = _as_error(word)
            elif isinstance(word, Remark):
                self._say(events.CaptureRemark(message=word.message))
            else:
                if self.progress is None or word.end != self.progress.end:
                    self._news.write(word.end)
                self.progress = word
                self._note(word)
                self._tell_if_full(word)
        code = process.wait()
        return failure or SourceUnavailable(f"the capture process died ({_how(code)})")

    def _note(self, progress: Progress) -> None:
        if progress.is_full and progress.full_seconds >= FULL_SECONDS:
            self._notice.write(CaptureState.WAITING, full(self._order.pipeline.log.max_bytes))
        elif not progress.is_full:
            self._notice.write(CaptureState.RUNNING)

    def _tell_if_full(self, progress: Progress) -> None:
        """Once a minute while it lasts: nothing is captured meanwhile, and the source must keep what comes."""
        now = time.monotonic()
        if progress.full_seconds >= FULL_SECONDS and now - self._told_full_at >= AGAIN_SECONDS:
            self._told_full_at = now
            self._say(events.LogFull(message=_full(progress.held_by), reader=progress.held_by))

    def _send(self, line: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
        except OSError:
            return  # it is dead; its end is noticed where its output is read


def _as_error(word: Failed) -> TailraceError:
    kind: type[TailraceError] = getattr(errors, word.kind, TailraceError)
    error = kind(word.message, hint=word.hint)
    error.retry = word.retry
    return error


def _full(reader: str | None) -> str:
    if reader is None:
        return "the change log is full: capture waits for the slowest sink"
    return (
        f"the change log is full: capture waits for the reader {reader}; if it will not come back,"
        f" `tailrace readers drop {reader}` lets it go"
    )


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
