"""The view for a person: one live display at the bottom of the terminal, and above it what happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from tailrace.events import Event, Progress
from tailrace.views.board import Board
from tailrace.views.drawing import picture
from tailrace.views.sentences import sentence
from tailrace.views.stray import StrayOutput

FRAMES_A_SECOND = 4.0
TICK_SECONDS = 0.5
AGAIN_SECONDS = 60.0
"""How soon the same sentence is worth a line again."""


class Display:
    """Also what others print goes above the display. On a dumb terminal there are the sentences only."""

    def __init__(
        self, stream: TextIO, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console or Console(file=stream, highlight=False)
        self._clock = clock
        self._lock = threading.Lock()
        self._board = Board(clock())
        self._spinner = Spinner("dots", style="cyan")
        self._ticked_at = float("-inf")
        self._told: dict[str, float] = {}  # a sentence, and when it was printed
        self._stray = StrayOutput(lambda line: self.console.print(Text(line, style="dim")))
        self._live = Live(
            get_renderable=self.picture, console=self.console, refresh_per_second=FRAMES_A_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        if self.console.is_interactive:
            self._stray.start()
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stray.stop()
        self._live.stop()

    def picture(self) -> Group:
        with self._lock:
            return picture(self._board, self._clock(), self._spinner, self.console.size)

    def say(self, event: Event) -> None:
        now = self._clock()
        words = sentence(event, now - self._board.began_at)
        with self._lock:  # and not while it prints: rich draws under a lock of its own
            self._board.hear(event, now)
            is_news = words is not None and self._is_news(words.plain, now)
        if words is not None and is_news:
            self.console.print(Text.assemble((time.strftime("%H:%M:%S  "), "dim"), words))

    def _is_news(self, words: str, now: float) -> bool:
        self._told = {told: at for told, at in self._told.items() if now - at < AGAIN_SECONDS}
        is_news = words not in self._told
        self._told.setdefault(words, now)
        return is_news

    def tick(self, progress: Progress) -> None:
        now = self._clock()
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            self.say(progress)
