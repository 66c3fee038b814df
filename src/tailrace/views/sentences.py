"""What of a run's events stays on the terminal, above the live display: a sentence an event that matters later."""

from __future__ import annotations

from rich.text import Text

from tailrace import events
from tailrace.events import Event
from tailrace.views.words import counted, lag, span


def sentence(event: Event, seconds: float) -> Text | None:
    """Of an event `seconds` after the run's beginning; None for one that is only shown while it lasts."""
    match event:
        case events.Table():
            return _table(event)
        case events.Published(tables=tables):
            return Text(f"published {' and '.join(tables)}")
        case events.Recovered(sink=sink):
            return Text(f"sink {sink} is well again", style="green")
        case events.CaptureRemark(message=message):
            return Text(message, style="yellow")
        case events.Current(position=position):
            return Text(f"current: the sinks have all up to {position}", style="green")
        case events.Stopped():
            return _stopped(event, seconds)
        case events.Progress() | events.Starting() | events.Running() | events.Copying() | events.Stopping():
            return None
        case _:
            return _trouble(event)


def _table(event: events.Table) -> Text | None:
    name = f"{event.table} → {event.sink}"
    match event.state:
        case "live":
            return Text.assemble((f"{name}: ", ""), ("live", "green"))
        case "failed" | "paused":
            style = "red" if event.state == "failed" else "yellow"
            return Text(f"{name}: {event.state}: {event.reason}", style=style)
        case "is copied again":
            return Text(f"{name}: is copied again{': ' + event.reason if event.reason else ''}", style="cyan")
        case _ if event.rows is not None:
            return Text(f"{name}: {counted(event.rows, 'row')} copied")
        case _:
            return None


def _trouble(event: events.Trouble) -> Text:
    match event:
        case events.NotPublished(table=table, reason=reason):
            return Text(f"{table} is not published: {reason}", style="yellow")
        case events.SinkFailed(sink=sink, message=message):
            return Text(f"sink {sink} is given up: {message}; the other sinks go on", style="red")
        case _:
            return Text(event.message, style="yellow")


def _stopped(event: events.Stopped, seconds: float) -> Text:
    words = Text(f"stopped after {span(seconds)}", style="bold")
    if not event.sinks:
        return words.append("; no sink had begun", style="not bold")
    for name, place in event.sinks.items():
        at = f"{place.position or 'its beginning'}, offset {place.offset:,}"
        words.append(f"\n  {name} is at {at}: {_has(place)}", style="not bold")
    return words


def _has(place: events.Place) -> str:
    match place.lag_seconds:
        case None:
            return "it has what was captured, and nobody knows what was not"
        case 0.0:
            return "it has all that was captured"
        case seconds:
            return f"{lag(seconds)} behind"
