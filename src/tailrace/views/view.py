"""What a view is, and which one a stream gets."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self, TextIO

from tailrace.events import Event, Progress


class View(Protocol):
    """Thread-safe. A context manager: what it has changed of the terminal is undone at the end, however that comes."""

    def say(self, event: Event) -> None:
        """Something happened."""

    def tick(self, progress: Progress) -> None:
        """How things are; called all the time, and shown as often as is good."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_view(stream: TextIO | None = None) -> View:
    """A live display on a terminal, JSON lines otherwise."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty():
        from tailrace.views.display import Display

        return Display(stream)

    from tailrace.views.lines import JsonLines

    return JsonLines(stream)
