"""The document of a table that nobody described: all of its columns, and nothing else."""

from __future__ import annotations

import re

from tailrace.config import documents as d
from tailrace.documents.kinds import FIELDS, element_of
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import Kind


def flat_document(schema: TableSchema) -> d.Document:
    """A field a column, under its name where OpenSearch takes it. That a table needs a key is said by `checking`."""
    fields: dict[str, d.Field] = {}
    for column in schema.columns:
        name = _free(field_name(column.name), fields)
        kind = d.Keyword if _is_text_key(column, schema) else FIELDS[element_of(column.type).kind]
        fields[name] = kind(column=None if name == column.name else column.name)
    return d.Document(table=schema.table, fields=fields)


def field_name(column: str) -> str:
    """The column's name as a field's: dots would make objects of it, and names with a leading `_` are OpenSearch's."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", column).lstrip("_-")
    return name if name[:1].isalpha() else f"column_{name}".rstrip("_")


def _free(name: str, taken: dict[str, d.Field]) -> str:
    number = 1
    while (free := name if number == 1 else f"{name}_{number}") in taken:
        number += 1
    return free


def _is_text_key(column: Column, schema: TableSchema) -> bool:
    return column.name in schema.key and column.type.kind is Kind.TEXT
