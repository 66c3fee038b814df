"""What a run says: a line an event, in words on a terminal and in JSON otherwise; numbers, never a row's values."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from rich.console import Console
from rich.markup import escape


class Reporter:
    """Thread-safe. `say` is for events; `tick` for the state of things, at most once a `seconds`."""

    def __init__(self, *, seconds: float = 2.0, stream: Any = None) -> None:
        self._stream = stream or sys.stdout
        self._console = Console(file=self._stream, highlight=False)
        self._lock = threading.Lock()
        self._seconds = seconds
        self._ticked_at = 0.0
        self._last: dict[str, Any] = {}

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def say(self, event: str, **facts: Any) -> None:
        with self._lock:
            if self.is_terminal:
                self._console.print(_sentence(event, facts))
            else:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                print(json.dumps({"at": stamp, "event": event, **facts}), file=self._stream, flush=True)

    def tick(self, **facts: Any) -> None:
        now = time.monotonic()
        if facts == self._last or now - self._ticked_at < self._seconds:
            return
        self._ticked_at, self._last = now, facts
        self.say("progress", **facts)


def _sentence(event: str, facts: dict[str, Any]) -> str:
    match event:
        case "progress":
            return _progress(facts)
        case "table":
            extra = f", {facts['rows']:,} rows" if facts.get("rows") is not None else ""
            reason = f" ({escape(facts['reason'])})" if facts.get("reason") else ""
            return f"[bold]{escape(facts['table'])}[/] → {facts['sink']}: {facts['state']}{extra}{reason}"
        case "capture-restart" | "source-retry" | "sink-retry":
            return f"[yellow]{escape(facts['message'])}; trying again in {facts['retry_seconds']:g} s[/]"
        case "sink-failed":
            return f"[red]sink {facts['sink']} is given up: {escape(facts['message'])}; the other sinks go on[/]"
        case "capture" | "sink-abandoned" | "log-full":
            return f"[yellow]{escape(facts['message'])}[/]"
        case _:
            told = ", ".join(f"{key} {_words(value)}" for key, value in facts.items())
            return escape(f"{event.replace('-', ' ')}{': ' + told if told else ''}")


def _words(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def _progress(facts: dict[str, Any]) -> str:
    parts = [f"{facts['changes']:,} changes captured"]
    for name, sink in facts["sinks"].items():
        lag = {None: "behind", 0.0: "current"}.get(sink["lag_seconds"]) or f"{sink['lag_seconds']:.1f} s behind"
        waiting = f", {sink['not_live']} tables not live yet" if sink["not_live"] else ""
        waiting += f", {sink['aside']} set aside (see `tailrace status`)" if sink["aside"] else ""
        parts.append(f"{name}: {sink['applied']:,} applied, {sink['copied']:,} copied, {lag}{waiting}")
    return "  ".join(parts)
