"""Spark masters: those that keep everything on this machine, and those of a cluster. Needs no pyspark."""

from __future__ import annotations

from tailrace import config
from tailrace.errors import ConfigError
from tailrace.registry import make_sink


def is_local(master: str) -> bool:
    """Whether all tasks run on the driver's machine: `local`, `local[*]`, `local-cluster[…]`."""
    return master.startswith("local")


def refuse_local_sinks(pipeline: config.Pipeline, master: str) -> None:
    """Raise if a sink can be written on the driver's machine only, and tasks run on others."""
    for name in pipeline.sinks if not is_local(master) else ():
        refuse_local_sink(pipeline, name, master)


def refuse_local_sink(pipeline: config.Pipeline, name: str, master: str) -> None:
    url = pipeline.sinks[name].url
    if not is_local(master) and make_sink(pipeline, name).is_local_only:
        raise ConfigError(
            f"sink {name} ({config.redact(url)}) is on this machine, where the workers of {master} can not write",
            hint="run this pipeline with the master local[*], or let the sink be a database server",
        )
