"""Everything that a run says, as one union: the terminal, the JSON lines and the metrics are views of it.

An event has numbers and sentences, never a row's values and never a secret. Names and keys are part of what users read:
they stay as they are. A field that has its default is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class _Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """An event's tag is its name."""


class Starting(_Told, frozen=True, kw_only=True, tag="starting"):
    """What is being done now, before the sinks follow the log."""

    doing: str


class Waiting(_Told, frozen=True, kw_only=True, tag="waiting"):
    """The start waits for somebody else."""

    message: str


class Running(_Told, frozen=True, kw_only=True, tag="running"):
    """These sinks follow the log from now on."""

    sinks: tuple[str, ...]
    tables: int


class Table(_Told, frozen=True, kw_only=True, tag="table"):
    """A table's state in a sink is another now; `rows` are those of its copy, once it is done."""

    table: str
    sink: str
    state: str
    rows: int | None
    reason: str = ""


class Copying(_Told, frozen=True, kw_only=True, tag="copying"):
    """How far a table's copy is: the chunks that are loaded, of all of its plan. Bytes are the source's own."""

    table: str
    sink: str
    rows: int
    bytes: int
    total_bytes: int


class Published(_Told, frozen=True, kw_only=True, tag="published"):
    """Tables that were put into the publication."""

    sink: str
    tables: tuple[str, ...]


class NotPublished(_Told, frozen=True, kw_only=True, tag="not-published"):
    """A table that is to be captured and can not be published yet."""

    sink: str
    table: str
    reason: str


class SinkProgress(msgspec.Struct, frozen=True):
    """`lag_seconds` is the age of the oldest committed change that the sink's live tables lack.

    0 if they have all that there is; None if nobody knows, because nothing is captured at the moment.
    """

    applied: int
    copied: int
    lag_seconds: float | None
    not_live: int
    aside: int


class Progress(_Told, frozen=True, kw_only=True, tag="progress"):
    """How things are; `capture` says why nothing is captured at this moment."""

    changes: int
    sinks: dict[str, SinkProgress]
    capture: str = ""


class SourceRetry(_Told, frozen=True, kw_only=True, tag="source-retry"):
    """The source is in trouble that may pass; `sink` is empty before the sinks follow the log."""

    sink: str = ""
    message: str
    retry_seconds: float


class SinkRetry(_Told, frozen=True, kw_only=True, tag="sink-retry"):
    """A sink, or its part of Spark, is in trouble that may pass."""

    sink: str
    message: str
    retry_seconds: float


class Recovered(_Told, frozen=True, kw_only=True, tag="recovered"):
    """What was tried again for a sink is well."""

    sink: str


class SinkFailed(_Told, frozen=True, kw_only=True, tag="sink-failed"):
    """A sink is given up; the others go on."""

    sink: str
    message: str
    hint: str | None


class SinkAbandoned(_Told, frozen=True, kw_only=True, tag="sink-abandoned"):
    """A sink that hangs is not waited for any longer."""

    sink: str
    message: str


class CaptureRestart(_Told, frozen=True, kw_only=True, tag="capture-restart"):
    """The capture process has ended and is started again."""

    message: str
    retry_seconds: float


class CaptureRemark(_Told, frozen=True, kw_only=True, tag="capture"):
    """Something about the stream that an operator should know."""

    message: str


class LogFull(_Told, frozen=True, kw_only=True, tag="log-full"):
    """Nothing is captured until there is room; `reader` is whom the log waits for, if it is not a sink."""

    message: str
    reader: str | None


class Current(_Told, frozen=True, kw_only=True, tag="current"):
    """The sinks have all that was committed when the run began."""

    position: str


class Stopping(_Told, frozen=True, kw_only=True, tag="stopping"):
    """The micro-batches under way are being finished."""


class Place(msgspec.Struct, frozen=True):
    """How far a sink has come; `lag_seconds` as in SinkProgress."""

    offset: int
    position: str
    lag_seconds: float | None


class Stopped(_Told, frozen=True, kw_only=True, tag="stopped"):
    """The end of a run that was stopped or is done; no sinks if they never began."""

    sinks: dict[str, Place]


Trouble = Waiting | NotPublished | SourceRetry | SinkRetry | SinkFailed | SinkAbandoned | CaptureRestart | LogFull
"""Something is not as it should be, until another event says that it is."""

Event = (
    Trouble
    | Starting
    | Running
    | Table
    | Copying
    | Published
    | Progress
    | Recovered
    | CaptureRemark
    | Current
    | Stopping
    | Stopped
)

Say = Callable[[Event], None]


def facts(event: Event) -> dict[str, Any]:
    """An event as plain values, its name first: what a JSON line has beside the time."""
    found: dict[str, Any] = msgspec.to_builtins(event)
    return found


def parse(line: bytes | str) -> Event:
    """The event of a JSON line; what else stands in it is left alone."""
    found: Event = msgspec.json.decode(line, type=Event)
    return found
