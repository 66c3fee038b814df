"""Embedded streams under test: what they deliver, in short, and consumers in processes of their own."""

from __future__ import annotations

import hmac
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import tailrace
from tailrace.checkpoints.files import FileStore
from tailrace.embedded.stream import Stream
from tailrace.model.event import Event, EventOp

PATIENCE = 120.0
"""How long a test waits for what has to come, on a busy machine."""


def taken(stream: Stream, count: int) -> list[Event]:
    """The next events, `count` of them at least, acknowledged batch by batch."""
    found: list[Event] = []
    while len(found) < count:
        batch = stream.poll(PATIENCE)
        assert batch is not None, f"{len(found)} of {count} events came"
        found += batch.events()
        batch.ack()
    return found


def until(stream: Stream, table: str, key: Any) -> list[Event]:
    """The next events up to one of this key."""
    found: list[Event] = []
    while not any(each.table == table and each.key == key and each.op != "read" for each in found):
        batch = stream.poll(PATIENCE)
        assert batch is not None, f"{key} of {table} did not come"
        found += batch.events()
        batch.ack()
    return found


def short(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Operation, and the row."""
    return [(str(e.op), None if e.after is None else tuple(e.after.values())) for e in events]


def rows_after(events: Iterable[Event], key: str = "id", before: Mapping[Any, Any] | None = None) -> dict[Any, Any]:
    """What somebody has who writes rows by their key, and keeps the values of a row that are not told again."""
    rows: dict[Any, dict[str, Any]] = dict(before or {})
    for event in events:
        match event.op:
            case EventOp.READ | EventOp.INSERT | EventOp.UPDATE:
                assert event.after is not None
                old = {} if event.before is None else rows.pop(event.before[key], {})
                rows[event.after[key]] = {**rows.get(event.after[key], {}), **old, **event.after}
            case EventOp.DELETE:
                assert event.key is not None
                rows.pop(event.key[key], None)
            case EventOp.TRUNCATE:
                rows.clear()
    return rows


class Consumer:
    """Programs that consume a stream, one after the other, with one folder: each batch is written down, then
    acknowledged, then marked as that."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.order = {"url": url, "checkpoint": str(folder / "checkpoints"), **options}
        self.notes = folder / "notes"
        self._log = folder / "consumer.log"

    def launch(self, environment: Mapping[str, str] | None = None, **orders: Any) -> subprocess.Popen[bytes]:
        """`events`: how many to take; `quiet`: seconds of silence after which it ends."""
        order = json.dumps({"options": self.order, "notes": str(self.notes), **orders})
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", __name__, order], env={**os.environ, **(environment or {})}, stderr=log
            )

    def run(self, environment: Mapping[str, str] | None = None, **orders: Any) -> int:
        """To its end; its exit code."""
        process = self.launch(environment, **orders)
        try:
            return process.wait(10 * PATIENCE)
        finally:
            process.kill()

    def dies(self, environment: Mapping[str, str], **orders: Any) -> None:
        code = self.run(environment, **orders)
        assert code == -signal.SIGKILL, f"it ended with {code}:\n{self._log.read_text()[-4000:]}"

    def ends(self, **orders: Any) -> None:
        code = self.run(**orders)
        assert code == 0, self._log.read_text()[-4000:]

    def delivered(self) -> list[list[list[Any]]]:
        """The batches that were delivered, in order, each a list of events in short."""
        return [line[1] for line in self._lines() if line[0] == "batch"]

    def acknowledged(self) -> list[list[list[Any]]]:
        lines = self._lines()
        return [a[1] for a, b in pairwise(lines) if (a[0], b[0]) == ("batch", "acknowledged")]

    def durable(self) -> int:
        """How many events the checkpoint counts."""
        with FileStore(self.order["checkpoint"]) as store:
            checkpoint = store.load("embedded")
        return 0 if checkpoint is None else checkpoint.events

    def _lines(self) -> list[Any]:
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines() if line.endswith("]")]


def consume(
    options: dict[str, Any],
    notes: str,
    events: int = 1 << 60,
    quiet: float = 3.0,
    snapshot_of: str = "",
    hangs_after: int = 1 << 60,
    encrypts: str = "",
    step: int = 1 << 60,
) -> None:
    """What a Consumer's program does: it takes and acknowledges at most `step` events of a batch at a time.

    It hangs, to be killed, with the batch that makes its events so many.
    """
    count = 0
    with tailrace.capture(**options) as stream, open(notes, "a", buffering=1) as file:
        if snapshot_of and not any(each.table == snapshot_of for each in stream.status().snapshots):
            stream.snapshot(snapshot_of)
        while count < events and (batch := stream.poll(quiet)) is not None:
            some = islice(batch.events(), step)
            found = [[str(e.op), e.table, encrypted(e.after or e.key or {}, encrypts)] for e in some]
            count += len(found)
            file.write(json.dumps(["batch", found]) + "\n")
            if count >= hangs_after:
                signal.pause()
            batch.ack(len(found))
            file.write(json.dumps(["acknowledged"]) + "\n")


def encrypted(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    """A user's own function on what was delivered: it depends on the value alone."""
    if column not in row:
        return dict(row)
    return {**row, column: f"enc:{hmac.digest(b'a key', str(row[column]).encode(), 'sha256').hex()}"}


if __name__ == "__main__":
    consume(**json.loads(sys.argv[1]))
