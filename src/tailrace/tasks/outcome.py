"""How what a task did, or could not do, comes back to the driver."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tailrace.errors import EngineDisturbed, EngineLost, TailraceError

T = TypeVar("T")


def attempt(work: Callable[[], T]) -> tuple[bool, T | TailraceError]:
    """In a task: our own errors travel as values, so that the driver gets them with their type.

    What the task has freed goes back to the system: its worker lives on, and Arrow's allocator would keep it.
    """
    try:
        return True, work()
    except Exception as error:
        return False, ours(error)
    finally:
        pa.default_memory_pool().release_unused()


def ours(error: Exception) -> TailraceError:
    """Our own as it is. Of others the words stay here, unless they are the system's: they could quote a row."""
    if isinstance(error, TailraceError):
        return error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    words = f": {error}" if isinstance(error, OSError) else ""
    kind = EngineDisturbed if isinstance(error, OSError) else EngineLost
    return kind(f"a task failed: {type(error).__name__}{words} ({place})")


def unwrap(outcomes: Iterable[tuple[bool, Any]]) -> list[Any]:
    results = []
    for is_done, value in outcomes:
        if not is_done:
            raise value
        results.append(value)
    return results
