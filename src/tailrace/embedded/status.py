"""How a stream is: what it has done, and whether somebody should look."""

from __future__ import annotations

import time
from enum import StrEnum

import msgspec

from tailrace.embedded.control import Progress, progress_of
from tailrace.embedded.feed import Feed
from tailrace.embedded.states import State
from tailrace.embedded.waiting import Waiting
from tailrace.model.checkpoint import Checkpoint
from tailrace.sources.base import Source


class Health(StrEnum):
    HEALTHY = "healthy"
    IDLE = "idle"  # it runs, and there is nothing to do
    STALLED = "stalled"  # somebody should look: the reason says where
    NOT_RUNNING = "not running"


class Status(msgspec.Struct, frozen=True):
    """Positions are the source's own: `position` is acknowledged and durable, `received` was read, `told` is what the
    source was told. Bytes are as the source sent them. Seconds are since the last of its kind; None before the first.
    """

    state: State
    health: Health
    reason: str
    position: str
    received: str
    told: str
    events: int  # acknowledged, ever
    in_flight: bool  # a batch waits for its acknowledgement
    buffered_bytes: int
    spooled_bytes: int
    lag_bytes: int | None
    reconnects: int
    seconds_since_poll: float | None
    seconds_since_ack: float | None
    snapshots: tuple[Progress, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return self.state is State.RUNNING

    @property
    def is_alive(self) -> bool:
        return self.state is not State.STOPPED

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


class Moments(msgspec.Struct):
    """When something happened last, by the stream's clock."""

    started: float = 0.0
    polled: float | None = None
    delivered: float = 0.0
    acknowledged: float | None = None


class Signs(msgspec.Struct, frozen=True):
    """What the health of a stream is told by. Seconds that something goes on; None for what does not."""

    state: State
    error: str = ""  # why no more will come
    trouble: str = ""  # why the source can not be read at the moment
    trouble_seconds: float = 0.0
    waits_for: str = ""  # whom its start has to wait for
    waits_seconds: float = 0.0
    untold_seconds: float | None = None  # a checkpoint is durable, and the source does not hear of it
    unpolled_seconds: float | None = None  # there is something to take, and nobody takes it
    unacknowledged_seconds: float | None = None
    has_work: bool = False


def health_of(signs: Signs, stall_seconds: float) -> tuple[Health, str]:
    """Stalled, with the reason, if something lasts longer than it may."""
    if signs.state in (State.IDLE, State.STOPPED):
        return Health.NOT_RUNNING, ""
    if signs.error:
        return Health.STALLED, signs.error
    waits = {
        f"the source can not be read: {signs.trouble}": signs.trouble_seconds if signs.trouble else None,
        f"it has not begun yet: {signs.waits_for}": signs.waits_seconds if signs.waits_for else None,
        "a checkpoint is durable, and the source could not be told": signs.untold_seconds,
        "there are changes, and nobody polls": signs.unpolled_seconds,
        "a batch was polled, and nobody acknowledges it": signs.unacknowledged_seconds,
    }
    for reason, seconds in waits.items():
        if seconds is not None and seconds >= stall_seconds:
            return Health.STALLED, f"{reason} ({seconds:.0f} s)"
    return (Health.HEALTHY if signs.has_work else Health.IDLE), ""


def status_of(
    source: Source,
    state: State,
    in_flight: bool,
    checkpoint: Checkpoint | None,
    feed: Feed | None,
    moments: Moments,
    now: float,
    stall_seconds: float,
    waiting: Waiting,
) -> Status:
    live = None if feed is None else feed.live
    health, reason = health_of(_signs(state, in_flight, feed, moments, now, waiting), stall_seconds)
    position = "" if checkpoint is None else checkpoint.position
    received = position if live is None else live.buffer.received
    troubles = (
        [] if live is None else [f"{table}: {why}" for table, why in (live.watch.remarks | live.watch.troubles).items()]
    )
    return Status(
        state=state,
        health=health,
        reason=reason,
        position=position,
        received=received,
        told="" if live is None else live.pump.told,
        events=0 if checkpoint is None else checkpoint.events,
        in_flight=in_flight,
        buffered_bytes=0 if live is None else live.buffer.memory,
        spooled_bytes=0 if live is None else live.buffer.spooled,
        lag_bytes=source.distance(position, received) if position else None,
        reconnects=0 if live is None else live.pump.reconnects,
        seconds_since_poll=None if moments.polled is None else now - moments.polled,
        seconds_since_ack=None if moments.acknowledged is None else now - moments.acknowledged,
        snapshots=() if checkpoint is None else tuple(map(progress_of, checkpoint.copies)),
        remarks=tuple(troubles) if live is None else (*live.pump.remarks, *troubles),
    )


def _signs(state: State, in_flight: bool, feed: Feed | None, moments: Moments, now: float, waiting: Waiting) -> Signs:
    if waiting.words:
        return Signs(state, waits_for=waiting.words, waits_seconds=time.monotonic() - waiting.since, has_work=True)
    if feed is None or feed.live is None:
        return Signs(state, has_work=in_flight or (feed is not None and feed.is_copying))
    buffer, pump = feed.live.buffer, feed.live.pump
    waits = buffer.committed > buffer.given and not in_flight
    since = moments.started if moments.polled is None else moments.polled
    trouble = pump.trouble
    return Signs(
        state=state,
        error="" if buffer.error is None else str(buffer.error),
        trouble="" if trouble is None else str(trouble),
        trouble_seconds=0.0 if trouble is None else time.monotonic() - pump.trouble_since,
        untold_seconds=pump.untold_seconds,
        unpolled_seconds=now - since if waits else None,
        unacknowledged_seconds=now - moments.delivered if in_flight else None,
        has_work=waits or in_flight or feed.is_copying,
    )
