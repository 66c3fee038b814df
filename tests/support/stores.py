"""An S3-compatible server for tests: moto's, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tailrace.testing.processes import free_port, wait_until


@contextmanager
def object_store(log: Path | None = None) -> Iterator[Callable[[str], str]]:
    """Gives the address of a folder in it; in `log` it notes each request."""
    pytest.importorskip("moto", reason="pip install 'moto[server]'")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(log or os.devnull, "w") as file:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
    try:
        wait_until(lambda: _put_bucket(port), seconds=60, what="the object store", every=0.2)
        where = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        yield lambda name: f"s3://key:secret@bucket/{name}?{where}"
    finally:
        server.kill()
        server.wait(10)


def requests_in(log: Path) -> list[str]:
    """The requests that the store has had so far: method and path, in order."""
    return re.findall(r"(?:GET|PUT|POST|DELETE|HEAD) /\S*", log.read_text())


def _put_bucket(port: int) -> bool:
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}/bucket", method="PUT"), timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
