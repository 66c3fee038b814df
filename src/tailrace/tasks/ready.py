"""Whether a worker has what tasks need, found out by a task of its own before there is any work."""

from __future__ import annotations

import socket
from importlib import import_module

from tailrace import config, registry
from tailrace.errors import ConfigError, MissingExtra, StateError
from tailrace.state.layout import RUN_LOCK
from tailrace.state.storage import Storage

_TASKS = ("tailrace.tasks.stage", "tailrace.tasks.load")


def look(pipeline: config.Pipeline) -> str:
    """In a task: raise what this worker lacks. Returns the worker's name. The run holds the state directory by now."""
    host = socket.gethostname()
    try:
        _import_all(pipeline)
        sees_state = bool(Storage(pipeline.state).sizes(RUN_LOCK))
    except (MissingExtra, ModuleNotFoundError) as error:
        cause = error.__cause__ if isinstance(error, MissingExtra) else error
        raise lacks(host, str(getattr(cause, "name", cause))) from error
    if not sees_state:
        raise StateError(
            f"worker {host} does not see the state directory {config.redact(pipeline.state)} of this run",
            hint="put `state` where the driver and all workers reach it: on a network file system, or on s3://…",
        )
    return host


def _import_all(pipeline: config.Pipeline) -> None:
    """What tasks of this pipeline need."""
    for module in _TASKS:
        import_module(module)
    registry.source_class(pipeline.source.url)
    for sink in pipeline.sinks.values():
        registry.sink_class(sink.url)


def lacks(who: str, package: str) -> ConfigError:
    return ConfigError(
        f"worker {who} has no Python package {package.partition('.')[0]}",
        hint="install what tailrace needs on every worker, or send it along with spark.archives: see docs/cluster.md",
    )
