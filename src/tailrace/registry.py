"""Connectors by the scheme of their URL, found through entry points.

Built-in connectors are registered in `pyproject.toml` like anybody else's: a package that declares the entry point
group `tailrace.sources` or `tailrace.sinks` is enough. Nothing is imported before it is asked for: a connector whose
scheme no pipeline has may lack its driver.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from tailrace.config import Pipeline, Settings
    from tailrace.sinks.base import Sink
    from tailrace.sources.base import Source

SOURCES = "tailrace.sources"
SINKS = "tailrace.sinks"

# Schemes whose extra has another name than the scheme.
EXTRAS = {"mariadb": "mysql", "opensearchs": "opensearch"}


def scheme(url: str) -> str:
    """`postgresql` of `postgresql://…`, in lower case."""
    return url.partition(":")[0].lower()


class SourceClass(Protocol):
    """A class of sources."""

    settings_type: type[Settings]

    def __call__(self, pipeline: Pipeline) -> Source: ...


class SinkClass(Protocol):
    """A class of sinks."""

    settings_type: type[Settings]

    def __call__(self, pipeline: Pipeline, name: str) -> Sink: ...


def source_class(url: str) -> SourceClass:
    """The class of the source for this URL."""
    loaded: SourceClass = _load(_find(SOURCES, url))
    return loaded


def sink_class(url: str) -> SinkClass:
    """The class of the sink for this URL."""
    loaded: SinkClass = _load(_find(SINKS, url))
    return loaded


def installed_class(group: str, url: str) -> SourceClass | SinkClass | None:
    """The class of `SOURCES` or `SINKS` for this URL; None if it, or its driver, is not installed here."""
    try:
        loaded: SourceClass | SinkClass = _load(_find(group, url))
    except ConfigError:
        return None
    return loaded


def decoder(kind: str) -> type[Source]:
    """The class of the source that wrote a segment: it decodes without a database."""
    loaded: type[Source] = _load(_find(SOURCES, f"{kind}://"))
    return loaded


def make_source(pipeline: Pipeline) -> Source:
    """The source of a pipeline. What its section has of its own is checked here too: not all come from a file."""
    found = source_class(pipeline.source.url)
    pipeline.source_settings(found.settings_type)
    return found(pipeline)


def make_sink(pipeline: Pipeline, name: str) -> Sink:
    """The sink that a pipeline calls `name`."""
    found = sink_class(pipeline.sinks[name].url)
    pipeline.sink_settings(name, found.settings_type)
    return found(pipeline, name)


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
