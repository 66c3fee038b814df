"""What somebody asks of a pipeline from outside: small files in the state directory that the run takes away.

A request to a pipeline that is not running waits for the next run.
"""

from __future__ import annotations

import uuid

import msgspec

from tailrace.model.stored import from_json
from tailrace.state.layout import REQUESTS
from tailrace.state.storage import Storage

SUFFIX = ".request"


class CopyAgain(msgspec.Struct, frozen=True):
    """Copy a table again into a sink."""

    sink: str
    table: str


def ask(state: str, request: CopyAgain) -> None:
    Storage(state).create()
    folder = Storage(state).folder(REQUESTS)
    folder.create()
    folder.publish(f"{uuid.uuid4().hex}{SUFFIX}", msgspec.json.encode(request))


def waiting(state: str, sink: str) -> dict[str, CopyAgain]:
    """What is asked of one sink, by the name under which it is `done`."""
    folder = Storage(state).folder(REQUESTS)
    found = {name: from_json(folder.read(name), CopyAgain) for name in folder.sizes(SUFFIX)}
    return {name: request for name, request in found.items() if request.sink == sink}


def done(state: str, name: str) -> None:
    Storage(state).folder(REQUESTS).delete(name)
