"""The capture process and a parent that is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
