"""Named places where a test can make this process die, fail, wait or freeze.

A failpoint does nothing unless the environment asks for it:

- `TAILRACE_FAILPOINT=name[:nth][:action]` — `nth` counts from 1 within one process (without it: every time); the action
  is `kill` (SIGKILL of this process, the default), `raise`, `sleep=SECONDS` or `stop` (SIGSTOP). Several are separated
  by commas.
- `TAILRACE_FAILPOINT_ONCE=path` — fire only if this process is the one that creates the file `path.name`, so that a
  restarted process does not die again.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter

VARIABLE = "TAILRACE_FAILPOINT"
ONCE = "TAILRACE_FAILPOINT_ONCE"

ALL: dict[str, str] = {}
"""Every declared failpoint: its name, and the moment it stands for."""

_reached: Counter[str] = Counter()
_REQUEST = re.compile(r"(?P<name>[a-z0-9-]+)(:(?P<nth>[1-9]\d*))?(:(?P<action>kill|raise|stop|sleep=\d+(\.\d+)?))?")


class FailpointRaised(Exception):
    """What the action `raise` raises: an error that nobody expects."""


def declare(name: str, moment: str) -> str:
    """Make `name` known, once for the whole program; returns it."""
    if name in ALL:
        raise ValueError(f"failpoint {name} is declared twice")
    ALL[name] = moment
    return name


def environment(name: str, *, nth: int | None = None, action: str = "kill", once: str | None = None) -> dict[str, str]:
    """The variables that arm one failpoint in a child process. Refuses a name or an action that could never fire."""
    parts = [name] if nth is None else [name, str(nth)]
    request = ":".join([*parts, action])
    _parse(request)
    if name not in ALL:
        raise ValueError(f"no failpoint is called {name!r}; declared are {', '.join(ALL)}")
    return {VARIABLE: request} if once is None else {VARIABLE: request, ONCE: once}


def together(*armed: dict[str, str]) -> dict[str, str]:
    """The variables that arm several failpoints, which share their `once`."""
    requests = ",".join(each[VARIABLE] for each in armed)
    return armed[0] | {VARIABLE: requests}


def fired(name: str, once: str) -> bool:
    """Whether a failpoint that was armed with `once` has fired."""
    return os.path.exists(f"{once}.{name}")


def reached(name: str) -> None:
    """Say that the program stands at `name`. Costs one look into the environment when nothing is armed."""
    sys.audit("tailrace.reached", name)
    request = os.environ.get(VARIABLE)
    if request:
        _fire_if_asked(name, request)


def _fire_if_asked(name: str, request: str) -> None:
    if name not in ALL:
        raise ValueError(f"failpoint {name!r} is reached but not declared")
    for wanted, nth, action in map(_parse, request.split(",")):
        if name == wanted:
            _reached[name] += 1
            if nth in (None, _reached[name]) and _is_first(name, os.environ.get(ONCE)):
                _act(name, action)


def _parse(request: str) -> tuple[str, int | None, str]:
    match = _REQUEST.fullmatch(request)
    if match is None:
        raise ValueError(f"{VARIABLE}={request!r} is not name[:nth][:kill|raise|stop|sleep=SECONDS]")
    nth = match["nth"]
    return match["name"], None if nth is None else int(nth), match["action"] or "kill"


def _is_first(name: str, path: str | None) -> bool:
    if not path:
        return True
    try:
        os.close(os.open(f"{path}.{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "raise":
        raise FailpointRaised(name)
    else:
        time.sleep(float(action.removeprefix("sleep=")))


declare("log-segment-written", "a segment's bytes are written, not yet synced")
declare("log-segment-synced", "a segment's bytes are on disk, not yet under the segment's name")
declare("log-segment-published", "a segment is durable, the capture process has not heard of it yet")
declare("log-segments-merged", "a merged segment is durable, its parts are still there")
declare("capture-before-acknowledge", "changes are durable, the source has not been told")
declare("capture-after-acknowledge", "the source has been told that it may forget")
declare("snapshot-planned", "a table's chunks are planned and recorded, none is loaded")
declare("chunk-before-load", "a chunk is about to be loaded into the sink")
declare("chunk-loaded", "a chunk and its mark are committed in the sink, nobody else knows")
declare("snapshot-finished", "every chunk is loaded, the table's state is not yet CATCH_UP")
declare("catch-up-step-committed", "one step of a table's catch-up is committed in the sink")
declare("documents-remembered", "the rows that documents are built from are remembered, the documents are not written")
declare("documents-written", "documents are written, what they are not built from any more is still remembered")
declare("batch-staged", "tasks have staged a micro-batch, the driver has not begun to commit it")
declare("sink-before-commit", "a micro-batch and its watermark are written, the sink has not committed")
declare("kafka-before-flush", "all messages of a batch are handed to the producer, the broker may not have them")
declare("chunk-staged", "a chunk's messages are staged by a task, nobody has sent them")
declare("sink-committed", "the sink has committed a micro-batch, Spark's checkpoint has not")
declare("table-live", "a table has become LIVE in the sink")
declare("checkpoint-written", "a checkpoint's bytes are written beside it, not yet synced")
declare("checkpoint-synced", "a checkpoint's bytes are on disk, not yet under its name")
declare("checkpoint-before-commit", "a checkpoint is written in a transaction of its store, which is not committed")
declare("checkpoint-saved", "a checkpoint is durable, its writer has not heard of it yet")
declare("embedded-prepared", "slot and publication are there, no checkpoint is")
declare("embedded-planned", "the first checkpoint is durable, nothing was delivered")
declare("embedded-chunk-read", "a chunk of a snapshot is read, nobody has been given it")
declare("embedded-chunk-waits", "a chunk on demand is read, and waits for the stream to pass it")
declare("embedded-before-checkpoint", "a batch is acknowledged, its checkpoint is not durable")
declare("embedded-checkpoint-saved", "a checkpoint is durable, nothing else is done about it")
declare("embedded-before-source-told", "a checkpoint is durable, the source has not been told")
declare("embedded-source-told", "the source has been told that it may forget")
