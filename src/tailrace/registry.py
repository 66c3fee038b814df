"""Connectors by the scheme of their URL, found through entry points.

Built-in connectors are registered in `pyproject.toml` like anybody else's: a package that declares the entry point
group `tailrace.sources` or `tailrace.sinks` is enough. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from tailrace.config import Pipeline, scheme
from tailrace.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from tailrace.sinks.base import Sink
    from tailrace.sources.base import Source

SOURCES = "tailrace.sources"
SINKS = "tailrace.sinks"

# Schemes whose extra has another name than the scheme.
EXTRAS = {"mariadb": "mysql"}


def source_class(url: str) -> Callable[[Pipeline], Source]:
    """The class of the source for this URL."""
    loaded: Callable[[Pipeline], Source] = _load(_find(SOURCES, url))
    return loaded


def sink_class(url: str) -> Callable[[Pipeline, str], Sink]:
    """The class of the sink for this URL."""
    loaded: Callable[[Pipeline, str], Sink] = _load(_find(SINKS, url))
    return loaded


def decoder(kind: str) -> type[Source]:
    """The class of the source that wrote a segment: it decodes without a database."""
    loaded: type[Source] = _load(_find(SOURCES, f"{kind}://"))
    return loaded


def make_source(pipeline: Pipeline) -> Source:
    return source_class(pipeline.source.url)(pipeline)


def make_sink(pipeline: Pipeline, name: str) -> Sink:
    """The sink that a pipeline calls `name`."""
    return sink_class(pipeline.sinks[name].url)(pipeline, name)


def schemes(group: str) -> list[str]:
    """The URL schemes that installed connectors of `SOURCES` or `SINKS` serve."""
    return sorted({entry.name for entry in entry_points(group=group)})


def _find(group: str, url: str) -> EntryPoint:
    name = scheme(url)
    found = list(entry_points(group=group, name=name))
    if not found:
        kind = "source" if group == SOURCES else "sink"
        known = ", ".join(f"{each}://" for each in schemes(group)) or "none: tailrace itself is not installed"
        raise ConfigError(f"no {kind} is known for {name}:// URLs", hint=f"known: {known}")
    return found[0]


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "tailrace":
            raise
        extra = EXTRAS.get(entry.name, entry.name)
        raise MissingExtra(f"pip install 'tailrace[{extra}]'", hint=f"{entry.name}:// needs {error.name}") from error
