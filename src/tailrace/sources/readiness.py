"""Waiting for something to read, however many files the program around us has open.

`select.select` knows descriptors up to 1023, and a service with many connections has more.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Any


def readable(files: Sequence[Any], seconds: float) -> list[Any]:
    """Those of `files` that can be read, or are at their end, as soon as there is one; none after `seconds`."""
    poller, numbers = select.poll(), {}
    for file in files:
        number = file if isinstance(file, int) else file.fileno()
        numbers[number] = file
        poller.register(number, select.POLLIN)
    return [numbers[number] for number, _ in poller.poll(math.ceil(seconds * 1000))]
