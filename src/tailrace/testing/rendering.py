"""PostgreSQL's own rendering of its values, as the oracle: SQL on the server makes the text that a sink should hold.

Nothing here is shared with tailrace's decoders, so that one cannot hide the other's mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from tailrace.model.names import parse_table, table_name

Row = tuple[Any, ...]
Reader = Callable[[Any], Any]

SESSION = (
    "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c extra_float_digits=1 -c bytea_output=hex"
    " -c search_path=pg_catalog"
)

INTEGERS = {"bool", "int2", "int4", "int8", "oid"}
FLOATS = {"float4", "float8"}

_SHAPE = """
WITH RECURSIVE bare AS (
    SELECT attnum, attname, atttypid AS type FROM pg_attribute
    WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    UNION ALL
    SELECT attnum, attname, typbasetype FROM bare JOIN pg_type ON pg_type.oid = type WHERE typtype = 'd'
)
SELECT attname, pg_type.typname, element.typname
FROM bare JOIN pg_type ON pg_type.oid = type
LEFT JOIN pg_type element ON element.oid = pg_type.typelem AND pg_type.typcategory = 'A'
WHERE pg_type.typtype <> 'd' ORDER BY attnum
"""

_KEY = """
SELECT array_agg(attname ORDER BY array_position(indkey::int2[], attnum))
FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
WHERE indrelid = %(table)s::regclass AND (indisprimary OR indisreplident)
GROUP BY indexrelid ORDER BY bool_or(indisprimary) DESC LIMIT 1
"""


@dataclass(frozen=True)
class Column:
    """`type` is the name in pg_type, of the base type where it is a domain; `element` that of an array's elements."""

    name: str
    type: str
    element: str | None


@dataclass(frozen=True)
class Shape:
    """What a comparison needs to know about a table in PostgreSQL."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    is_partitioned: bool = False

    @property
    def sql_name(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def own_rows(self) -> str:
        """What to select from: a table's own rows, without those of tables that inherit from it."""
        return self.sql_name if self.is_partitioned else f"ONLY {self.sql_name}"

    @property
    def flat_name(self) -> str:
        """The table's name in a database without schemas."""
        return self.name if self.schema == "public" else f"{self.schema}_{self.name}"

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where the key's columns are in a row; without a key, the whole row is its own key."""
        names = [column.name for column in self.columns]
        return tuple(names.index(name) for name in self.key) or tuple(range(len(names)))


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, options=SESSION, application_name="tailrace content")


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def tables_of(url: str) -> list[str]:
    """Every table of the user's schemas, by the names that tailrace uses; a partitioned table is one table."""
    query = (
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND nspname <> 'information_schema' AND nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2"
    )
    with connect(url) as connection:
        return [table_name(schema, name) for schema, name in connection.execute(query)]


def shape_of(url: str, table: str) -> Shape:
    """The shape of `schema.name`, or of `name` in `public`."""
    parts = parse_table(table)
    assert parts is not None, table
    schema, name = parts
    with connect(url) as connection:
        parameters = {"table": f"{quote(schema)}.{quote(name)}"}
        columns = tuple(Column(*row) for row in connection.execute(_SHAPE, parameters))
        key = connection.execute(_KEY, parameters).fetchone()
        kind = connection.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = %(table)s::regclass", parameters)
        [is_partitioned] = kind.fetchone() or [False]
    return Shape(schema, name, columns, tuple(key[0]) if key else (), is_partitioned)


def rows_of(url: str, shape: Shape) -> Iterator[Row]:
    """Every row in its canonical form (`tailrace.columns.text` has the table), in the order of the key, as a stream.

    Integers and booleans come as `int`, floats as `float` (NaN as text), bytea as `bytes`, all else as text.
    """
    expressions = ", ".join(_expression(column) for column in shape.columns)
    order = ", ".join(quote(name) for name in shape.key) or ", ".join(str(n + 1) for n in range(len(shape.columns)))
    readers = readers_of(shape)
    with connect(url) as connection, connection.cursor(name="content") as cursor:
        cursor.itersize = 5_000
        for row in cursor.execute(f"SELECT {expressions} FROM {shape.own_rows} ORDER BY {order}".encode()):
            yield read(row, readers)


def readers_of(shape: Shape) -> list[tuple[int, Reader]]:
    """What to do with the values of some columns, on both sides, so that equal values are equal in Python."""
    readers: list[tuple[int, Reader]] = []
    for place, column in enumerate(shape.columns):
        if column.element is not None:
            readers.append((place, _float_array if column.element in FLOATS else _array))
        elif column.type in FLOATS:
            readers.append((place, _float))
    return readers


def read(row: Row, readers: list[tuple[int, Reader]]) -> Row:
    if not readers:
        return row
    values = list(row)
    for place, reader in readers:
        if values[place] is not None:
            values[place] = reader(values[place])
    return tuple(values)


def _float(value: Any) -> Any:
    return "NaN" if value != value else value


def _array(value: Any, **options: Any) -> Any:
    """A JSON array in one spelling. The server's side has its dimensions before it: `[1:2][1:1]=[1, 2]`."""
    dimensions = _DIMENSIONS.match(value)
    try:
        found = json.loads(value[dimensions.end() :] if dimensions else value, **options)
    except ValueError:
        return value
    return json.dumps(_in_shape(found, dimensions[1]) if dimensions else found, ensure_ascii=False)


_DIMENSIONS = re.compile(r"((?:\[-?\d+:-?\d+\])+)=")


def _float_array(value: Any) -> Any:
    return _array(value, parse_int=float)


def _in_shape(elements: list[Any], dimensions: str) -> Any:
    """Nested lists; under their dimensions where these do not start at 1."""
    bounds = [tuple(map(int, part.split(":"))) for part in dimensions[1:-1].split("][")]
    for first, last in reversed(bounds[1:]):
        size = last - first + 1
        elements = [elements[at : at + size] for at in range(0, len(elements), size)]
    return elements if all(first == 1 for first, _ in bounds) else {dimensions: elements}


def _expression(column: Column) -> str:
    name = quote(column.name)
    if column.element is None:
        return _scalar(name, column.type)
    bare = column.element in INTEGERS | FLOATS
    element = "e" if bare else _scalar("e", "text" if column.element == "bytea" else column.element)
    elements = (
        f"SELECT coalesce(json_agg({element} ORDER BY n), '[]')::text FROM unnest({name}) WITH ORDINALITY u (e, n)"
    )
    is_plain = f"coalesce(array_ndims({name}) = 1 AND array_lower({name}, 1) = 1, true)"
    return (
        f"CASE WHEN {name} IS NULL THEN NULL WHEN {is_plain} THEN ({elements})"
        f" ELSE array_dims({name}) || '=' || ({elements}) END"
    )


def _scalar(value: str, type_: str) -> str:
    """SQL for the canonical form of one value. NULL stays NULL."""
    match type_:
        case "bool":
            return f"{value}::int"
        case "int2" | "int4" | "int8" | "bytea":
            return value
        case "oid":
            return f"{value}::int8"
        case "float4" | "float8":
            return f"{value}::float8"
        case "timestamp":
            return _moment(value, value, "")
        case "timestamptz":
            return _moment(f"({value} AT TIME ZONE 'UTC')", value, "+00:00")
        case "time":
            return _clock(f"{value}::interval", "HH24:MI:SS")
        case "timetz":
            zone = f"substring({value}::text, '[-+].*$')"
            whole = f"CASE WHEN length({zone}) = 3 THEN {zone} || ':00' ELSE {zone} END"
            return f"{_clock(f'{value}::time::interval', 'HH24:MI:SS')} || {whole}"
        case _:
            return _text(value)


def _text(value: str) -> str:
    """The output function's text: a plain cast to text would strip the blanks that char(n) ends with."""
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN format('%s', {value}) END"


def _moment(in_utc: str, value: str, zone: str) -> str:
    era = f"CASE WHEN {in_utc} < '0001-01-01' THEN ' BC' ELSE '' END"
    text = f"{_clock(in_utc, 'YYYY-MM-DD HH24:MI:SS')} || '{zone}' || {era}"
    return f"CASE WHEN isfinite({value}) THEN {text} ELSE {value}::text END"


def _clock(value: str, pattern: str) -> str:
    """Seconds with six digits after the point, or none."""
    return f"regexp_replace(to_char({value}, '{pattern}.US'), '\\.000000$', '')"
