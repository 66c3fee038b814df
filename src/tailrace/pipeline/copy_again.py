"""Asking a pipeline to copy a table again."""

from __future__ import annotations

from tailrace import config, registry
from tailrace.errors import ConfigError
from tailrace.state import requests


def ask(pipeline: config.Pipeline, table: str, sink: str | None = None) -> list[str]:
    """Ask for a new copy of a table; the sinks that have it. The run that is going takes it up, or the next one."""
    if sink is not None and sink not in pipeline.sinks:
        raise ConfigError(f"the pipeline has no sink {sink}", hint=f"it has {', '.join(pipeline.sinks)}")
    having = [name for name in pipeline.sinks if sink in (None, name) and _has(pipeline, name, table)]
    if not having:
        raise ConfigError(f"no sink of the pipeline has a table {table}", hint="`tailrace status` lists them")
    for name in having:
        requests.ask(pipeline.state, requests.CopyAgain(name, table))
    return having


def _has(pipeline: config.Pipeline, name: str, table: str) -> bool:
    sink = registry.make_sink(pipeline, name)
    try:
        return table in sink.read_state().tables
    finally:
        sink.close()
