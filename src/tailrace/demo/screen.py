"""What the demo shows while it works: lines with the time, and on a terminal a line at the bottom that lives."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

PLAIN_SECONDS = (2.0, 10.0)
"""Between two lines about how things are: at first, and at most, when it is about one and the same for long."""


class Screen:
    """`say` is for what happened, `show` for how things are: repainted on a terminal, a line now and then otherwise."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = self._shown_at = time.monotonic()
        self._patience = PLAIN_SECONDS[0]
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            self._spinner, console=console, refresh_per_second=8, transient=True, auto_refresh=console.is_terminal
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._shown_at, self._patience = time.monotonic(), PLAIN_SECONDS[0]
        clock = f"{time.monotonic() - self._began:5.1f} s  "
        self.console.print(Text.assemble((clock, "dim"), (text, style)))

    def show(self, text: str) -> None:
        if self.console.is_terminal:
            self._spinner.update(text=Text(text, style="cyan"))
        elif time.monotonic() - self._shown_at >= self._patience:
            patience = min(self._patience * 1.5, PLAIN_SECONDS[1])
            self.say(text)
            self._patience = patience
