"""The documents of a pipeline beside the catalog of its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tailrace import config, registry
from tailrace.config.describing import tables_of
from tailrace.config.documents import Document
from tailrace.documents import checking
from tailrace.documents.flat import flat_document
from tailrace.documents.judging import Remark
from tailrace.documents.outline import Outline, outline_of
from tailrace.errors import ConfigError, SinkError
from tailrace.model.details import TableDetails
from tailrace.model.schema import TableSchema
from tailrace.pipeline import copy_again, status
from tailrace.sinks.base import Documents
from tailrace.sources.base import Source

SCHEMA = "document"
"""Documents are filed as tables of a schema of this name."""


class DocumentLine(msgspec.Struct, frozen=True):
    """A document in a sink, or a description that no sink has yet; the rest as in `status.TableLine`.

    `tables` are those of its description: a flat document has none.
    """

    document: str
    tables: tuple[str, ...]
    sink: str
    state: str
    documents: int | None
    copied: int
    lag_seconds: float | None
    reason: str = ""


def look(pipeline: config.Pipeline) -> tuple[list[DocumentLine], dict[str, SinkError]]:
    """What is described, and what the sinks that answer have; and why the others do not."""
    lines, errors = status.look(pipeline)
    found = [_line(pipeline, line) for line in lines if line.table.startswith(f"{SCHEMA}.")]
    missing = pipeline.documents.keys() - {line.document for line in found}
    new = [DocumentLine(name, _tables(pipeline, name), "", "not built yet", None, 0, None) for name in missing]
    return sorted([*found, *new], key=lambda line: (line.document, line.sink)), errors


def _line(pipeline: config.Pipeline, line: status.TableLine) -> DocumentLine:
    name = line.table.removeprefix(f"{SCHEMA}.")
    tables = _tables(pipeline, name) if name in pipeline.documents else ()
    return DocumentLine(name, tables, line.sink, line.state, line.rows, line.copied, line.lag_seconds, line.reason)


def _tables(pipeline: config.Pipeline, name: str) -> tuple[str, ...]:
    """The root first, each once."""
    return tuple(dict.fromkeys(table for _, table in tables_of(pipeline.documents[name])))


def reindex(pipeline: config.Pipeline, name: str, sink: str | None = None) -> list[str]:
    """Ask for a new index of a document; the sinks that will have it."""
    try:
        return copy_again.ask(pipeline, f"{SCHEMA}.{name}", sink)
    except ConfigError as error:
        if sink is not None and sink not in pipeline.sinks:
            raise
        hint = "`tailrace documents list` shows them; one that is described now is built by the next run"
        raise ConfigError(f"no sink of the pipeline has a document {name}", hint=hint) from error


class Catalog(NamedTuple):
    """The documents of a pipeline, and the tables that they are made of, as they are now.

    `flat` are tables that a sink holds as they are, by the names of their documents.
    """

    documents: dict[str, Document]
    flat: dict[str, TableSchema]
    schemas: dict[str, TableSchema]
    details: dict[str, TableDetails]
    source: Source

    def document(self, name: str) -> Document:
        """Raises ConfigError if nobody described it, and no sink holds a table of this name."""
        if name not in self.documents:
            known = ", ".join(self.documents)
            hint = f"it has {known}" if known else "describe it under `documents:` in the pipeline file"
            raise ConfigError(f"the pipeline has no document {name}", hint=hint)
        return self.documents[name]

    def remarks(self, name: str) -> list[Remark]:
        return checking.check(name, self.document(name), self.schemas, self.details, self.source.index_statement)

    def outline(self, name: str) -> Outline:
        return outline_of(name, self.document(name), self.schemas)


def read_catalog(pipeline: config.Pipeline) -> Catalog:
    source = registry.make_source(pipeline)
    readable = {schema.table: schema for schema in source.readable()}
    flat = _flat(pipeline, readable)
    documents = {name: flat_document(schema) for name, schema in flat.items()} | pipeline.documents
    used = {table for document in documents.values() for _, table in tables_of(document)}
    schemas = {table: schema for table, schema in readable.items() if table in used}
    return Catalog(documents, flat, schemas, source.details(schemas.values()), source)


def _flat(pipeline: config.Pipeline, schemas: Mapping[str, TableSchema]) -> dict[str, TableSchema]:
    found: dict[str, TableSchema] = {}
    for sink in holding(pipeline):
        tables = [each for each in schemas.values() if sink.flat and sink.flat.matches(each.schema, each.name)]
        found |= {sink.flat_name(schema): schema for schema in tables}
    return found


def holding(pipeline: config.Pipeline) -> list[Documents]:
    """The sinks that hold documents. Nobody is asked."""
    sinks = [registry.make_sink(pipeline, name) for name in pipeline.sinks]
    for sink in sinks:
        sink.close()
    return [sink for sink in sinks if isinstance(sink, Documents)]
