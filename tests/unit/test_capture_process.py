"""The capture process: a parent that is gone, and what it believes of what it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.messages import Feed, transaction
from tailrace import config
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.pipeline.capture_process import Acknowledge, Pump
from tailrace.state.storage import Storage

LOST_READER = """
from tailrace.pipeline.capture_process import Failed, say
say(Failed("SourceUnavailable", "nobody hears this", None, True))
print("not reached")
"""


def test_a_word_to_a_parent_that_is_gone_ends_the_process_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        ended = subprocess.run(
            [sys.executable, "-c", LOST_READER], stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("order", ["", "{"], ids=["nothing", "half-a-line"])
def test_a_parent_that_dies_before_its_order_ends_the_process_quietly(order: str) -> None:
    command = [sys.executable, "-m", "tailrace.pipeline.capture_process"]
    ended = subprocess.run(command, input=order, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "")


def test_what_the_sinks_have_of_another_log_is_not_forgotten_of_this_one(tmp_path: Path) -> None:
    """A process that was started again, and made a log anew, is told again what its parent had heard before."""
    writer = LogWriter.create(Storage(str(tmp_path / "log")), None, "0/100")
    feed, told = Feed(writer, {}), []
    for _ in range(3):
        feed.append(*transaction(b"O"))
    capture: Any = SimpleNamespace(identity=None, acknowledge=told.append)
    source: Any = SimpleNamespace(capture=lambda *_: capture)
    control: Any = SimpleNamespace()
    pipeline = config.Pipeline(
        "under_test", config.Source("postgresql://localhost/none", ("public.*",)), {}, state=str(tmp_path)
    )
    pump = Pump(source, writer, pipeline, control)

    def hear(log: str) -> tuple[int, list[str]]:
        control.acknowledgement = lambda: Acknowledge(log, 500, "0/900")
        pump._hear()
        pump.retention.apply()
        return LogReader(writer.storage).begin(), told

    assert hear("another log") == (0, [])
    assert hear(writer.identity.id) == (6, ["0/900"])
    writer.close()
