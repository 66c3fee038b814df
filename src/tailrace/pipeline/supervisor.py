"""Keeps the capture process alive: notices its death at once, and starts it again with backoff."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from tailrace import errors
from tailrace.errors import SourceUnavailable, TailraceError
from tailrace.pipeline.capture import Acknowledge, Event, Failed, Order, Progress, Remark

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
STOP_SECONDS = 10.0
FULL_SECONDS = 5
AGAIN_SECONDS = 60.0


class CaptureSupervisor:
    """Runs in a thread of the driver. `progress` is the latest word of the capture process."""

    def __init__(self, order: Order, say: Callable[..., None]) -> None:
        self._order = order
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._acknowledged: Acknowledge | None = None
        self._lock = threading.Lock()
        self.progress: Progress | None = None
        self.error: TailraceError | None = None
        self._told_full_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="capture supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def acknowledge(self, offset: int, position: str) -> None:
        """Tell the capture process what every sink has; a restarted one is told again."""
        said = Acknowledge(offset, position)
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
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            failure = self._run_once()
            if self._stopping.is_set():
                return
            if not failure.retry:
                self.error = failure
                return
            if time.monotonic() - began > LONGEST_BACKOFF_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            self._say("capture-restart", message=str(failure), retry_seconds=backoff)
            self._stopping.wait(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)

    def _run_once(self) -> TailraceError:
        """Run one capture process to its end; what ended it."""
        command = [sys.executable, "-m", "tailrace.pipeline.capture"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with self._lock:
            self._process = process
            self._send(msgspec.json.encode(self._order))
            if self._acknowledged is not None:
                self._send(msgspec.json.encode(self._acknowledged))
        failure: TailraceError | None = None
        assert process.stdout is not None
        for line in process.stdout:
            event: Event = msgspec.json.decode(line, type=Event)
            if isinstance(event, Failed):
                failure = _as_error(event)
            elif isinstance(event, Remark):
                self._say("capture", message=event.message)
            else:
                self.progress = event
                self._tell_if_full(event)
        code = process.wait()
        return failure or SourceUnavailable(f"the capture process died ({_how(code)})")

    def _tell_if_full(self, progress: Progress) -> None:
        """Once a minute while it lasts: nothing is captured meanwhile, and the source must keep what comes."""
        now = time.monotonic()
        if progress.full_seconds >= FULL_SECONDS and now - self._told_full_at >= AGAIN_SECONDS:
            self._told_full_at = now
            self._say("log-full", message=_full(progress.held_by), reader=progress.held_by)

    def _send(self, line: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
        except OSError:
            return  # it is dead; its end is noticed where its output is read


def _as_error(event: Failed) -> TailraceError:
    kind: type[TailraceError] = getattr(errors, event.kind, TailraceError)
    error = kind(event.message, hint=event.hint)
    error.retry = event.retry
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
