"""What a run says: every event has one form as a JSON line, and can be read back from it."""

from __future__ import annotations

import io
import json
from typing import Any, get_args

import pytest

from tailrace import events
from tailrace.events import Event
from tailrace.views.lines import JsonLines

SINK = events.SinkProgress(applied=5, copied=7, lag_seconds=0.4, not_live=1, aside=0)
SINK_FACTS = {"applied": 5, "copied": 7, "lag_seconds": 0.4, "not_live": 1, "aside": 0}

FORMS: list[tuple[Event, dict[str, Any]]] = [
    (events.Starting(doing="starting Spark"), {"event": "starting", "doing": "starting Spark"}),
    (events.Waiting(message="others"), {"event": "waiting", "message": "others"}),
    (events.Running(sinks=("a", "b"), tables=3), {"event": "running", "sinks": ["a", "b"], "tables": 3}),
    (
        events.Table(table="public.t", sink="a", state="live", rows=None),
        {"event": "table", "table": "public.t", "sink": "a", "state": "live", "rows": None},
    ),
    (
        events.Table(table="public.t", sink="a", state="failed", rows=3, reason="too wide"),
        {"event": "table", "table": "public.t", "sink": "a", "state": "failed", "rows": 3, "reason": "too wide"},
    ),
    (
        events.Copying(table="public.t", sink="a", rows=1, bytes=2, total_bytes=3),
        {"event": "copying", "table": "public.t", "sink": "a", "rows": 1, "bytes": 2, "total_bytes": 3},
    ),
    (
        events.Published(sink="a", tables=("public.t",)),
        {"event": "published", "sink": "a", "tables": ["public.t"]},
    ),
    (
        events.NotPublished(sink="a", table="public.t", reason="locked"),
        {"event": "not-published", "sink": "a", "table": "public.t", "reason": "locked"},
    ),
    (
        events.Progress(changes=9, sinks={"a": SINK}),
        {"event": "progress", "changes": 9, "sinks": {"a": SINK_FACTS}},
    ),
    (
        events.Progress(changes=9, sinks={"a": SINK}, capture="capture is down"),
        {"event": "progress", "changes": 9, "sinks": {"a": SINK_FACTS}, "capture": "capture is down"},
    ),
    (
        events.SourceRetry(message="down", retry_seconds=0.5),
        {"event": "source-retry", "message": "down", "retry_seconds": 0.5},
    ),
    (
        events.SourceRetry(sink="a", message="down", retry_seconds=0.5),
        {"event": "source-retry", "sink": "a", "message": "down", "retry_seconds": 0.5},
    ),
    (
        events.SinkRetry(sink="a", message="down", retry_seconds=0.5),
        {"event": "sink-retry", "sink": "a", "message": "down", "retry_seconds": 0.5},
    ),
    (events.Recovered(sink="a"), {"event": "recovered", "sink": "a"}),
    (
        events.SinkFailed(sink="a", message="refused", hint=None),
        {"event": "sink-failed", "sink": "a", "message": "refused", "hint": None},
    ),
    (
        events.SinkAbandoned(sink="a", message="it hangs"),
        {"event": "sink-abandoned", "sink": "a", "message": "it hangs"},
    ),
    (
        events.CaptureRestart(message="died", retry_seconds=1.0),
        {"event": "capture-restart", "message": "died", "retry_seconds": 1.0},
    ),
    (events.CaptureRemark(message="a remark"), {"event": "capture", "message": "a remark"}),
    (events.LogFull(message="full", reader=None), {"event": "log-full", "message": "full", "reader": None}),
    (events.Current(position="0/10"), {"event": "current", "position": "0/10"}),
    (events.Stopping(), {"event": "stopping"}),
    (
        events.Stopped(sinks={"a": events.Place(7, "0/10", None)}),
        {"event": "stopped", "sinks": {"a": {"offset": 7, "position": "0/10", "lag_seconds": None}}},
    ),
]


@pytest.mark.parametrize(("event", "form"), FORMS, ids=lambda each: type(each).__name__)
def test_an_event_is_a_line_that_can_be_read_back(event: Event, form: dict[str, Any]) -> None:
    out = io.StringIO()
    JsonLines(out).say(event)
    line = json.loads(out.getvalue())
    assert list(line) == ["at", *form]
    assert {key: value for key, value in line.items() if key != "at"} == form
    assert events.parse(out.getvalue()) == event


def test_every_event_has_its_form_here() -> None:
    assert {type(event) for event, _ in FORMS} == set(get_args(Event))


def test_progress_is_a_line_now_and_then_and_only_if_it_is_news() -> None:
    out = io.StringIO()
    view = JsonLines(out, seconds=0.0)
    first = events.Progress(changes=1, sinks={})
    for progress in (first, first, events.Progress(changes=2, sinks={})):
        view.tick(progress)
    assert [json.loads(line)["changes"] for line in out.getvalue().splitlines()] == [1, 2]

    seldom = JsonLines(out := io.StringIO(), seconds=3600.0)
    seldom.tick(first)
    seldom.tick(events.Progress(changes=2, sinks={}))
    assert len(out.getvalue().splitlines()) == 1
