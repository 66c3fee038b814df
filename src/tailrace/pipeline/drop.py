"""Removing what a pipeline left in its source and its sinks. The tables in the sinks stay as they are."""

from __future__ import annotations

from contextlib import ExitStack

from tailrace import config, registry
from tailrace.state.layout import CAPTURE_LOCK, RUN_LOCK
from tailrace.state.storage import Storage


def drop(pipeline: config.Pipeline) -> list[str]:
    """Remove slot, publication, the sinks' notes and the state directory; says what was removed."""
    storage = Storage(pipeline.state)
    with ExitStack() as held:
        for name in (RUN_LOCK, CAPTURE_LOCK) if storage.exists() else ():
            if (lock := storage.lock(name)) is not None:
                held.callback(lock.close)
        source = registry.make_source(pipeline)
        dropped: list[str] = source.drop()
        for name in pipeline.sinks:
            sink = registry.make_sink(pipeline, name)
            sink.forget()
            sink.close()
            dropped.append(f"what sink {name} remembered of the pipeline (its tables stay)")
    if storage.exists():
        storage.remove()
        dropped.append(f"state directory {config.redact(pipeline.state)}")
    return dropped
