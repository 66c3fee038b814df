"""The documents that a pipeline file describes: those in files of their own, and the tables that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tailrace.config.documents import AggregateField, Document, Join, ManyToMany, Object
from tailrace.config.parsing import parse_file
from tailrace.config.patterns import TablePatterns
from tailrace.config.reading import Place, at, read
from tailrace.config.substitution import substitute
from tailrace.errors import ConfigError
from tailrace.model.names import parse_table


def include(pipeline: Any, folder: Path, environ: Mapping[str, str]) -> Any:
    """The pipeline's mapping with the descriptions in place of the paths of their files."""
    documents = pipeline.get("documents") if isinstance(pipeline, dict) else None
    if not isinstance(documents, dict):
        return pipeline
    found = {
        name: _included(each, ("documents", name), folder, environ) if isinstance(each, str) else each
        for name, each in documents.items()
    }
    return {**pipeline, "documents": found}


def _included(path: str, place: Place, folder: Path, environ: Mapping[str, str]) -> Document:
    try:
        content = parse_file(folder / Path(path).expanduser(), "the path is relative to the pipeline file")
        return read(substitute(content, environ), Document)
    except ConfigError as error:
        raise ConfigError(f"{at(place)}: {path}: {error}", hint=error.hint) from error.__cause__


def check_tables(document: Document, place: Place, captured: TablePatterns) -> None:
    """Every table that a document is made of has to be captured, or its changes would not be seen."""
    for where, table in tables_of(document, place):
        if not captured.matches(*(parse_table(table) or ("", ""))):
            raise ConfigError(
                f"{at(where)}: {table} is not one of source.tables", hint=f"add {table} to source.tables: {USE}"
            )


USE = "a document is kept right by the changes of all of its tables"


def tables_of(document: Document, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every table that a document names, with the place of its name."""
    yield (*place, "table"), document.table
    yield from _tables_of_fields(document.fields, place)


def _tables_of_fields(fields: Mapping[str, Any], place: Place) -> Iterator[tuple[Place, str]]:
    for name, field in fields.items():
        here = (*place, "fields", name)
        if isinstance(field, Join | AggregateField):
            yield (*here, "table"), field.table
        if isinstance(field, ManyToMany | AggregateField) and field.through is not None:
            yield (*here, "through", "table"), field.through.table
        if isinstance(field, Join | Object):
            yield from _tables_of_fields(field.fields, here)
