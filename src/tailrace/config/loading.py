"""Reading a pipeline: YAML, then variables, then types, then meaning. Every error names the place in the file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tailrace.config.describing import check_tables, include
from tailrace.config.parsing import parse_file
from tailrace.config.patterns import by_table
from tailrace.config.pipeline import Log, Pipeline
from tailrace.config.reading import read
from tailrace.config.substitution import substitute
from tailrace.config.urls import redact, resolve_folder, resolve_url
from tailrace.errors import ConfigError
from tailrace.model.names import parse_table

DEFAULT_TABLES = ("*.*",)


def load(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Pipeline:
    """The pipeline of a file, checked whole. Relative paths in it are relative to its folder."""
    path = Path(path)
    try:
        document = parse_file(path, "`tailrace init` writes one to begin with")
        return _build(document, path.absolute().parent, environ)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error.__cause__


def from_urls(
    from_url: str,
    to_url: str,
    *,
    tables: Iterable[str] | None = None,
    state: str | None = None,
    name: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Pipeline:
    """The pipeline between two URLs. Relative paths are relative to the working directory.

    The default name depends on both URLs (not on their passwords), so two such pipelines share neither slot nor state.
    """
    folder = Path.cwd()
    document: dict[str, Any] = {
        "name": name or "unnamed",
        "source": {"url": from_url, "tables": list(tables or DEFAULT_TABLES)},
        "sinks": {"sink": {"url": to_url}},
    }
    pipeline = _build(document, folder, environ)
    name = name or _name(pipeline.source.url, pipeline.sinks["sink"].url)
    return msgspec.structs.replace(pipeline, name=name, state=resolve_folder(state or f"state/{name}", folder))


def _name(from_url: str, to_url: str) -> str:
    urls = [redact(from_url), redact(to_url)]
    database = re.sub("[^a-z0-9_]+", "_", urls[0].partition("?")[0].rpartition("/")[2].lower())[:24]
    return f"{database or 'pipeline'}_{hashlib.sha256(' '.join(urls).encode()).hexdigest()[:8]}"


def _build(document: Any, folder: Path, environ: Mapping[str, str]) -> Pipeline:
    pipeline = read(include(substitute(document, environ), folder, environ), Pipeline)
    with _at("source.tables"):
        _ = pipeline.source.patterns
    for name, described in pipeline.documents.items():
        check_tables(described, ("documents", name), pipeline.source.patterns)
    with _at("log.keep"):
        _check_keep(pipeline.log)
    with _at("source.url"):
        source = msgspec.structs.replace(pipeline.source, url=resolve_url(pipeline.source.url, folder))
    sinks = {}
    for name, sink in pipeline.sinks.items():
        with _at(f"sinks.{name}.url"):
            sinks[name] = msgspec.structs.replace(sink, url=resolve_url(sink.url, folder))
        with _at(f"sinks.{name}.tables"):
            sinks[name] = msgspec.structs.replace(sinks[name], tables=by_table(sink.tables))
        with _at(f"sinks.{name}.columns"):
            sinks[name] = msgspec.structs.replace(sinks[name], columns=by_table(sink.columns))
    with _at("transforms"):
        transforms = by_table(pipeline.transforms)
        for table in transforms:
            if not pipeline.source.patterns.matches(*(parse_table(table) or ("", ""))):
                raise ConfigError(f"{table} is not one of source.tables", hint="a transform names one captured table")
    state = resolve_folder(pipeline.state, folder)
    return msgspec.structs.replace(pipeline, source=source, sinks=sinks, transforms=transforms, state=state)


def _check_keep(log: Log) -> None:
    if log.kept is not None and log.kept.bytes > log.max_bytes:
        raise ConfigError("more than log.max_bytes, so it can not be kept", hint="raise log.max_bytes, or keep less")


class _at:
    """Puts the place in the file before a `ConfigError`'s message."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ConfigError):
            raise ConfigError(f"{self.place}: {error}", hint=error.hint) from None
