"""The language that documents are described in: a table's rows as they are to be found by a search.

A field has a `type`; `name: keyword` is short for `name: {type: keyword}`. `table` is `schema.table` as all state
writes it, whatever the file has; a table without a schema is one of `public`, as everywhere in the file. What only the
catalog can tell (that a column exists and fits) is `documents.checking`'s.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tailrace.config.conditions import ColumnName, Described, Filter, OrderBy, SoftDelete, as_written
from tailrace.config.shorthand import ONE, short
from tailrace.errors import ConfigError
from tailrace.model.names import parse_table, table_name

FIELD = "^[A-Za-z][A-Za-z0-9_-]*$"

OWN = frozenset({"type", "properties", "dynamic"})
"""Keys of an OpenSearch mapping that are not options."""

FieldName = Annotated[str, Meta(pattern=FIELD, description="a letter, then letters, digits, _ and -")]
TableName = Annotated[str, Meta(min_length=1, description="schema.table, one of source.tables")]
Columns = Annotated[tuple[ColumnName, ...], short(ONE, "a column, or a list of them", min_length=1)]
Filters = Annotated[tuple[Filter, ...], Meta(description="conditions that a row has to meet, all of them")]
Orders = Annotated[tuple[Annotated[OrderBy, short("column")], ...], short(ONE, "columns that rows are ordered by")]
Limit = Annotated[int, Meta(ge=1, description="how many rows are taken at most, the first by `order_by`")]
Required = Annotated[bool, Meta(description="never null: `check` compares it with the catalog, a build refuses a null")]
Options = Annotated[dict[str, Any], Meta(description="more parameters of the OpenSearch mapping")]
Default = Annotated[
    Any,
    Meta(
        description="the value in place of a null", extra_json_schema={"type": ["string", "number", "boolean", "null"]}
    ),
]


class TextTransform(StrEnum):
    """In the order that they are written. `lowercase` is Unicode's; `trim` takes white space from both ends."""

    LOWERCASE = "lowercase"
    TRIM = "trim"


class ValueType(StrEnum):
    """What the values of a map or of an aggregate are in OpenSearch: the scalar field of this name."""

    TEXT = "text"
    IDENTIFIER = "identifier"
    KEYWORD = "keyword"
    UUID = "uuid"
    BOOLEAN = "boolean"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"


# --- scalars: a column of the row, or an array column, whose elements the field then has ---


class ScalarField(Described, frozen=True, kw_only=True):
    column: Annotated[ColumnName | None, Meta(description="default: the field's name")] = None
    required: Required = False
    options: Options = {}
    default: Default = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "default", as_written(self.default))
        _check_options(self.options)
        if isinstance(self.default, list | dict):
            raise ConfigError("`default` is one value", hint="write a text, a number, true or false")


class TextField(ScalarField, frozen=True, kw_only=True):
    transforms: Annotated[tuple[TextTransform, ...], short(ONE, "what becomes of the text, one after the other")] = ()


class Text(TextField, frozen=True, kw_only=True, tag="text"):
    """Words of a language: analyzed, with a subfield `keyword` to sort and filter by."""


class Identifier(TextField, frozen=True, kw_only=True, tag="identifier"):
    """Codes such as `SKU-123`: found by the whole, by their parts, and without their punctuation."""


class Keyword(TextField, frozen=True, kw_only=True, tag="keyword"):
    """Found as a whole only."""


class Enum(TextField, frozen=True, kw_only=True, tag="enum"):
    """A keyword; with `variants` its subfield `sort` is in their order."""

    variants: Annotated[tuple[str, ...], Meta(description="all values, in their order")] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = {each for each in self.variants if self.variants.count(each) > 1}
        if twice or "" in self.variants:
            raise ConfigError("a variant is empty, or stands there twice", hint="write each value once, in its order")


class Uuid(ScalarField, frozen=True, kw_only=True, tag="uuid"):
    pass


class Boolean(ScalarField, frozen=True, kw_only=True, tag="boolean"):
    pass


class Short(ScalarField, frozen=True, kw_only=True, tag="short"):
    pass


class Integer(ScalarField, frozen=True, kw_only=True, tag="integer"):
    pass


class Long(ScalarField, frozen=True, kw_only=True, tag="long"):
    pass


class Float(ScalarField, frozen=True, kw_only=True, tag="float"):
    pass


class Double(ScalarField, frozen=True, kw_only=True, tag="double"):
    pass


class Decimal(ScalarField, frozen=True, kw_only=True, tag="decimal"):
    """A number with all of its digits in the document; `documents.mapping` says how exactly it is searched."""


class Date(ScalarField, frozen=True, kw_only=True, tag="date"):
    pass


class Timestamp(ScalarField, frozen=True, kw_only=True, tag="timestamp"):
    pass


class Binary(ScalarField, frozen=True, kw_only=True, tag="binary"):
    """Bytes, as base64."""


class Json(ScalarField, frozen=True, kw_only=True, tag="json"):
    """Any JSON, kept in the document and not searched. `map`, or `custom` with `flat_object`, is searched."""


class Custom(TextField, frozen=True, kw_only=True, tag="custom"):
    """A column under a mapping that has no name here; its values are written as those of its column always are."""

    opensearch: Annotated[str, Meta(min_length=1, description="the type in OpenSearch's mapping")]


# --- structures of the same row ---


class Map(Described, frozen=True, kw_only=True, tag="map"):
    """A JSON column of objects with any keys, whose values are all of one type."""

    values: ValueType
    column: Annotated[ColumnName | None, Meta(description="default: the field's name")] = None
    required: Required = False
    options: Options = {}

    def __post_init__(self) -> None:
        _check_options(self.options)


class Geo(Described, frozen=True, kw_only=True, tag="geo"):
    """A point, of two columns, or of one: a point `(longitude,latitude)`, or a form that OpenSearch's geo_point takes.

    Null if one of its columns is.
    """

    lat: ColumnName | None = None
    lon: ColumnName | None = None
    column: ColumnName | None = None
    required: Required = False
    options: Options = {}

    def __post_init__(self) -> None:
        _check_options(self.options)
        has_both = self.lat is not None and self.lon is not None
        has_none = self.lat is None and self.lon is None
        if not (has_none if self.column is not None else has_both):
            raise ConfigError("a point has `lat` and `lon`, or `column`", hint="write {type: geo, lat: a, lon: b}")


class Constant(Described, frozen=True, kw_only=True, tag="constant"):
    """The same value, or list of values, in every document."""

    value: Annotated[
        Any, Meta(description="the value", extra_json_schema={"type": ["string", "number", "boolean", "array"]})
    ]
    options: Options = {}

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", as_written(self.value))
        _check_options(self.options)
        values = self.value if isinstance(self.value, list) else [self.value]
        kinds = {type(each) for each in values}
        if len(kinds) != 1 or not kinds <= {str, int, float, bool}:
            raise ConfigError(
                "a constant is a text, a number, true or false, or a list of one of these", hint="write value: shop"
            )


class Object(Described, frozen=True, kw_only=True, tag="object"):
    """Fields of the same row, together."""

    fields: Fields

    def __post_init__(self) -> None:
        _some_fields(self.fields)


# --- joins: rows of another table ---


class OnTable(Described, frozen=True, kw_only=True):
    table: TableName
    filters: Filters = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "table", full_table(self.table))


class Through(Described, frozen=True, kw_only=True):
    """The junction between two tables."""

    table: TableName
    left_key: Annotated[Columns, Meta(description="its columns that hold the key of the row above")]
    right_key: Annotated[Columns, Meta(description="its columns that hold the key of `table`")]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "table", full_table(self.table))


class Join(OnTable, frozen=True, kw_only=True):
    fields: Fields

    def __post_init__(self) -> None:
        super().__post_init__()
        _some_fields(self.fields)


class BelongsTo(Join, frozen=True, kw_only=True, tag="belongs_to"):
    """The row that this row points to: an object, or null."""

    column: Annotated[tuple[ColumnName, ...], short(ONE, "columns of this row; default: the field's name")] = ()
    references: Annotated[tuple[ColumnName, ...], short(ONE, "columns of `table`; default: its key")] = ()
    required: Required = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.references and len(self.references) != max(len(self.column), 1):
            raise ConfigError("`column` and `references` are not as many", hint="write them in the same order")


class HasOne(Join, frozen=True, kw_only=True, tag="has_one"):
    """The first row that points to this row: an object, or null."""

    foreign_key: Annotated[Columns, Meta(description="columns of `table` that hold the key of the row above")]
    order_by: Orders = ()
    required: Required = False


class HasMany(Join, frozen=True, kw_only=True, tag="has_many"):
    """The rows that point to this row: an array, empty if there are none."""

    foreign_key: Annotated[Columns, Meta(description="columns of `table` that hold the key of the row above")]
    order_by: Orders = ()
    limit: Limit | None = None


class ManyToMany(Join, frozen=True, kw_only=True, tag="many_to_many"):
    """The rows that a junction joins with this row: an array, empty if there are none, each row once."""

    through: Through
    order_by: Orders = ()
    limit: Limit | None = None


# --- aggregates: what rows of another table come to ---


class AggregateField(OnTable, frozen=True, kw_only=True):
    """Over the rows that `has_many` or `many_to_many` would take, each once."""

    foreign_key: Annotated[tuple[ColumnName, ...], short(ONE, "columns of `table`, as for has_many")] = ()
    through: Annotated[Through | None, Meta(description="the junction, as for many_to_many")] = None
    options: Options = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_options(self.options)
        if bool(self.foreign_key) == (self.through is not None):
            raise ConfigError(
                "an aggregate has one of `foreign_key` and `through`",
                hint="`foreign_key` are columns of its table; `through` is a junction between the two",
            )


class Count(AggregateField, frozen=True, kw_only=True, tag="count"):
    """How many rows: a long, 0 if there are none."""


class ColumnAggregate(AggregateField, frozen=True, kw_only=True):
    """Of the values that are not null; null if there are none, or `default`."""

    column: ColumnName
    default: Default = None


class Sum(ColumnAggregate, frozen=True, kw_only=True, tag="sum"):
    value_type: Annotated[ValueType | None, Meta(description="default: long, decimal or double, as the column")] = None


class Min(ColumnAggregate, frozen=True, kw_only=True, tag="min"):
    value_type: Annotated[ValueType | None, Meta(description="default: as the column")] = None


class Max(ColumnAggregate, frozen=True, kw_only=True, tag="max"):
    value_type: Annotated[ValueType | None, Meta(description="default: as the column")] = None


class Avg(ColumnAggregate, frozen=True, kw_only=True, tag="avg"):
    """A double."""


class Ids(AggregateField, frozen=True, kw_only=True, tag="ids"):
    """The keys of the rows, in their order: an array of numbers or texts, empty if there are none.

    A composite key is one text, as an id of a document is.
    """

    column: Annotated[ColumnName | None, Meta(description="default: the key of `table`")] = None
    value_type: Annotated[ValueType | None, Meta(description="default: long or keyword, as the column")] = None


# --- all of it ---

NamedScalars = (
    Text
    | Identifier
    | Keyword
    | Enum
    | Uuid
    | Boolean
    | Short
    | Integer
    | Long
    | Float
    | Double
    | Decimal
    | Date
    | Timestamp
    | Binary
    | Json
)
Scalars = NamedScalars | Custom
Structures = Object | Map | Geo | Constant
Joins = BelongsTo | HasOne | HasMany | ManyToMany
Aggregates = Count | Sum | Min | Max | Avg | Ids
Field = Annotated[Scalars | Structures | Joins | Aggregates, short("type", "what the field is")]
Fields = Annotated[dict[FieldName, Field], Meta(description="the fields, by name")]


class Document(OnTable, frozen=True, kw_only=True):
    """A row of `table` and what belongs to it: one for each row that passes `filters` and is not deleted."""

    key: Annotated[tuple[ColumnName, ...], short(ONE, "columns that make the id; default: the table's key")] = ()
    soft_delete: Annotated[
        SoftDelete | None, short("column", "a column that is true or set in a deleted row, or filters that it meets")
    ] = None
    fields: Fields

    def __post_init__(self) -> None:
        super().__post_init__()
        _some_fields(self.fields)


def full_table(text: str) -> str:
    """The name as all state writes it. Raises ConfigError."""
    parts = parse_table(text)
    if parts is None:
        raise ConfigError(
            f"`{text}` is not the name of a table", hint='write schema.table: public.orders or public."odd.name"'
        )
    return table_name(*parts)


def _check_options(options: dict[str, Any]) -> None:
    """What the field's own type says can not be said again."""
    for key in OWN & options.keys():
        raise ConfigError(f"`options` has no `{key}`", hint="another type is another field's: see `custom`")


def _some_fields(fields: dict[str, Any]) -> None:
    if not fields:
        raise ConfigError("`fields` is empty", hint="write at least one, such as name: keyword")
