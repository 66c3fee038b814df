"""How a run's sinks are doing, as events: while it goes on, and where they are at its end."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.events import Place, Progress, SinkProgress, Stopped
from tailrace.model.lifecycle import ASIDE, TableState
from tailrace.pipeline.capture_elsewhere import Capturing
from tailrace.pipeline.follower import SinkFollower


def progress_of(followers: Iterable[SinkFollower], capture: Capturing) -> Progress | None:
    """None before capture has said anything. Cheap: nothing is read."""
    if capture.progress is None:
        return None
    sinks = {follower.name: _sink(follower, capture) for follower in followers}
    return Progress(changes=capture.progress.changes, sinks=sinks, capture=capture.trouble)


def stopped_at(followers: Iterable[SinkFollower], capture: Capturing | None) -> Stopped:
    """Reads the log once more, so that it is true of the end."""
    places: dict[str, Place] = {}
    if capture is None:
        return Stopped(sinks=places)
    for follower in followers:
        _lag_seconds(follower, capture)  # what the next look is for
        follower.lag.look(at_once=True)
        mark = follower.watermark
        places[follower.name] = Place(mark.offset, mark.position, _lag_seconds(follower, capture))
    return Stopped(sinks=places)


def _sink(follower: SinkFollower, capture: Capturing) -> SinkProgress:
    statuses = list(follower.tables.values())
    return SinkProgress(
        applied=follower.applied,
        copied=sum(status.rows for status in statuses),
        lag_seconds=_lag_seconds(follower, capture),
        not_live=sum(status.state is not TableState.LIVE and status.state not in ASIDE for status in statuses),
        aside=sum(status.state in ASIDE for status in statuses),
    )


def _lag_seconds(follower: SinkFollower, capture: Capturing) -> float | None:
    """Of the sink's live tables; None where it is not known."""
    if capture.progress is None:
        return None
    is_captured = not capture.trouble
    return follower.lag.seconds(follower.watermark.offset, capture.progress.end, is_captured=is_captured)
