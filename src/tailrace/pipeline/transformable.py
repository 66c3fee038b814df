"""Which sinks may have transforms. Nothing of Spark is needed to tell."""

from __future__ import annotations

from tailrace.errors import ConfigError
from tailrace.sinks.base import ChangeSink, DatabaseSink, Sink


def refuse_untransformable(sink: Sink) -> None:
    """Raise ConfigError for a sink whose rows can not go through expressions: it would have them as the source does."""
    if isinstance(sink, DatabaseSink):
        return
    hint = "only databases can, as yet; write to this sink by a pipeline of its own, without `transforms`"
    kind = ", which takes every change," if isinstance(sink, ChangeSink) else ""
    raise ConfigError(f"sink {sink.name}{kind} can not have transforms", hint=hint)
