"""The disk under the folder of a sink: what is durable, and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.state.storage import PASSING


def sync_folder(folder: Path) -> None:
    """Names in a folder are durable from here on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A disk that is full may get over it; one that is read-only may not."""
    try:
        yield
    except OSError as error:
        kind = SinkUnavailable if error.errno is None or error.errno in PASSING else SinkRejected
        reason = (error.strerror or type(error).__name__).lower()
        raise kind(f"cannot use the folder {folder}: {reason}") from error
