"""The index of a document in OpenSearch: a strict mapping made of its description, and the analysis that it needs.

Decimals. A column of at most 15 digits is a `scaled_float` of its scale: every value of it is found and summed exactly.
Any other is a `double`, which rounds after 15 digits, with a subfield `exact` of all of its digits as written. The
document itself has all digits in either case: a fraction of more than 15 is a string in it (see `fields`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.config import documents as d
from tailrace.documents import analysis
from tailrace.documents.kinds import Schemas, column_type, value_type_of
from tailrace.model.types import ColumnType, Kind

EXACT_DIGITS = 15
LONGEST_TERM = 8191  # characters; Lucene's limit is 32,766 bytes, and a longer term would have the document refused
SUBFIELD_LENGTH = 256
TOTAL_FIELDS, NESTED_FIELDS, DEPTH = 1000, 50, 20
"""OpenSearch's own limits, which a description may need to be higher."""

Json = dict[str, Any]

_KEYWORD: Json = {"type": "keyword", "ignore_above": LONGEST_TERM}
_LOWERCASE: Json = {"type": "keyword", "normalizer": analysis.LOWERCASE, "ignore_above": SUBFIELD_LENGTH}


def mapping_of(document: d.Document, schemas: Schemas) -> Json:
    """What the index is made with: `settings` and `mappings`. Equal descriptions of equal tables have equal ones.

    A column that its table has not is mapped by the field's type alone; `tree_of` and `checking` name it.
    """
    writer = _Writer(schemas)
    properties = writer.properties(document.fields, document.table, "")
    mappings: Json = {"dynamic": "strict", "properties": properties}
    if writer.templates:
        mappings["dynamic_templates"] = writer.templates
    return {"settings": {**_limits(properties), "analysis": writer.analysis}, "mappings": mappings}


class _Writer:
    """The mapping as it is written, with what it needs beside: analysis, and templates for the values of maps."""

    def __init__(self, schemas: Schemas) -> None:
        self.schemas = schemas
        self.analysis: analysis.Analysis = {}
        self.templates: list[Json] = []

    def properties(self, fields: Mapping[str, d.Field], table: str, path: str) -> Json:
        return {name: self.field(name, field, table, f"{path}{name}.") for name, field in fields.items()}

    def field(self, name: str, field: d.Field, table: str, path: str) -> Json:
        match field:
            case d.Object():
                return {"properties": self.properties(field.fields, table, path)}
            case d.BelongsTo() | d.HasOne():
                return {"properties": self.properties(field.fields, field.table, path)}
            case d.HasMany() | d.ManyToMany():
                return {"type": "nested", "properties": self.properties(field.fields, field.table, path)}
            case d.Map():
                template = {"path_match": f"{path}*", "mapping": self.value(field.values, None)}
                self.templates.append({f"tailrace_{path}values": template})
                return {"type": "object", "dynamic": "true", **field.options}
            case d.Geo():
                return {"type": "geo_point", **field.options}
            case d.Constant():
                return {**self.value(_constant_type(field.value), None), **field.options}
            case d.Min() | d.Max():
                schema = self.schemas.get(field.table)
                type_ = column_type(schema, field.column)
                return {**self.value(value_type_of(field, schema), type_), **field.options}
            case d.Count() | d.Sum() | d.Avg() | d.Ids():  # a sum may have more digits than its column
                return {**self.value(value_type_of(field, self.schemas.get(field.table)), None), **field.options}
            case _:
                type_ = column_type(self.schemas.get(table), field.column or name)
                return {**self.scalar(field, type_), **field.options}

    def scalar(self, field: d.Scalars, type_: ColumnType | None) -> Json:
        match field:
            case d.Custom():
                return {"type": field.opensearch}
            case d.Json():
                return {"type": "object", "enabled": False}
            case d.Binary():
                return {"type": "binary"}
            case d.Enum(variants=variants) if variants:
                name, needed = analysis.order_of(variants)
                self._use(needed)
                return {**_KEYWORD, "fields": {"sort": {**_KEYWORD, "normalizer": name}}}
            case d.Enum():
                return dict(_KEYWORD)
            case _:
                return self.value(d.ValueType(str(field.__struct_config__.tag)), type_)

    def value(self, name: d.ValueType, type_: ColumnType | None) -> Json:
        """The mapping of a scalar that is no more than its name."""
        match name:
            case d.ValueType.TEXT:
                self._use(analysis.known(analysis.TEXT), analysis.known(analysis.LOWERCASE))
                return {"type": "text", "analyzer": analysis.TEXT, "fields": _text_subfields()}
            case d.ValueType.IDENTIFIER:
                for each in (analysis.IDENTIFIER, analysis.IDENTIFIER_SEARCH, analysis.LOWERCASE):
                    self._use(analysis.known(each))
                analyzers = {"analyzer": analysis.IDENTIFIER, "search_analyzer": analysis.IDENTIFIER_SEARCH}
                return {"type": "text", **analyzers, "fields": _text_subfields()}
            case d.ValueType.KEYWORD:
                self._use(analysis.known(analysis.LOWERCASE))
                return {**_KEYWORD, "fields": {"lowercase": _LOWERCASE}}
            case d.ValueType.UUID:
                return dict(_KEYWORD)
            case d.ValueType.DECIMAL:
                return _decimal(type_)
            case d.ValueType.DATE | d.ValueType.TIMESTAMP:
                return {"type": "date"}
            case _:
                return {"type": name.value}

    def _use(self, *needed: analysis.Analysis) -> None:
        for each in needed:
            for part, named in each.items():
                self.analysis.setdefault(part, {}).update(named)


def _text_subfields() -> Json:
    return {"keyword": {"type": "keyword", "ignore_above": SUBFIELD_LENGTH}, "lowercase": dict(_LOWERCASE)}


def _decimal(type_: ColumnType | None) -> Json:
    digits = type_.precision if type_ is not None and type_.kind is Kind.DECIMAL else None
    scale = (type_.scale or 0) if type_ is not None else 0
    if digits is not None and digits <= EXACT_DIGITS and scale >= 0:
        return {"type": "scaled_float", "scaling_factor": 10**scale}
    return {"type": "double", "fields": {"exact": dict(_KEYWORD)}}


def _constant_type(value: Any) -> d.ValueType:
    match value[0] if isinstance(value, list) else value:
        case bool():
            return d.ValueType.BOOLEAN
        case int():
            return d.ValueType.LONG
        case float():
            return d.ValueType.DOUBLE
        case _:
            return d.ValueType.KEYWORD


def _limits(properties: Json) -> Json:
    """OpenSearch's limits on mappings, raised where this one is beyond them."""
    fields = list(_walk(properties))
    needed = {
        "total_fields": (len(fields) + 10, TOTAL_FIELDS),
        "nested_fields": (sum(each.get("type") == "nested" for _, each in fields), NESTED_FIELDS),
        "depth": (max(depth for depth, _ in fields) + 1, DEPTH),
    }
    raised = {name: {"limit": number} for name, (number, usual) in needed.items() if number > usual}
    return {"index": {"mapping": raised}} if raised else {}


def _walk(properties: Json, depth: int = 1) -> Iterator[tuple[int, Json]]:
    for field in properties.values():
        yield depth, field
        yield from _walk(field.get("fields", {}), depth)
        yield from _walk(field.get("properties", {}), depth + 1)
