"""PostgreSQL's types: from an OID and a type modifier to the neutral `ColumnType`.

The names are those of `format_type`: `numeric(12,2)`, `character varying(20)`, `integer[]`, `public.mood`. Types
outside `pg_catalog` always carry their schema. A domain is its base type, name included.

What no Arrow type can hold is `OTHER`, and its text travels: the text that the type's *output function* prints, which
is also what pgoutput sends in text mode and what COPY prints (a cast `::text` is something else for inet, bpchar and
bool). The difficulty: with `binary 'true'` pgoutput sends the binary form of every type that has one, and so does
COPY (FORMAT binary). So:

- `needs_text(type)`: values travel as text (OTHER, or an array of it).
- `has_binary_decoder(type)`: `decode_values` can make the exact text from the binary form. True for every built-in type
  whose text depends on its bytes alone (see `rendering.py`).
- It is false for composites, user-defined ranges, money (depends on `lc_monetary`), regclass and its kin (depend on the
  catalog), what extensions bring (hstore, ltree, vector, geometry), and for two kinds of arrays, which stay whole as
  OTHER: those with a delimiter of their own (PostGIS's), and those of a domain over arrays. If a published table has
  such a column, the stream must be in text mode (`binary 'false'`), with `CAPTURE_SETTINGS`; a snapshot's COPY selects
  `text_expression(column)` and passes the values as text. Their binary form is refused with `ValueRefused`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tailrace.errors import DecodeError
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres.values.rendering import renderer_of

CAPTURE_SETTINGS: dict[str, str] = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
}
"""Session parameters under which the text forms are those that `decode_values` reads, and the server reads those of
keys that it is asked for."""


class TypeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One row of the catalog about a type that is not built in. `name` is quoted and schema-qualified."""

    oid: int
    name: str
    typtype: str  # b(ase) c(omposite) d(omain) e(num) r(ange) m(ultirange)
    base: int = 0  # of a domain
    base_typmod: int = -1
    element: int = 0  # of an array
    labels: tuple[str, ...] = ()  # of an enum, each behind its number and who last altered it: `16400:731:sad`
    is_text: bool = False  # a base type that reads and writes as text does, such as citext
    delimiter: str = ","  # between elements in the text of an array
    attributes: tuple[tuple[int, int], ...] = ()  # of a composite: their numbers and types, 0 of one that was dropped
    subtype: int = 0  # of a range or multirange


TYPES_SQL = """
WITH RECURSIVE wanted (oid) AS (
    SELECT unnest(%(oids)s::oid[])
    UNION
    SELECT reference.oid
    FROM wanted JOIN pg_catalog.pg_type t ON t.oid = wanted.oid,
    LATERAL (
        VALUES (t.typbasetype), (t.typelem)
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) reference (oid)
    WHERE reference.oid <> 0
)
SELECT t.oid::bigint,
    CASE n.nspname WHEN 'pg_catalog' THEN format_type(t.oid, NULL)
        ELSE quote_ident(n.nspname) || '.' || quote_ident(t.typname) END,
    t.typtype::text,
    t.typbasetype::bigint,
    t.typtypmod,
    CASE WHEN t.typtype = 'b' AND t.typoutput = 'pg_catalog.array_out'::regproc THEN t.typelem::bigint ELSE 0 END,
    ARRAY(SELECT concat_ws(':', e.oid, e.xmin, e.enumlabel) FROM pg_catalog.pg_enum e
        WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
    t.typtype = 'b' AND o.prosrc = 'textout' AND coalesce(s.prosrc = 'textsend', true),
    t.typdelim::text,
    ARRAY(SELECT ARRAY[a.attnum::bigint, a.atttypid::bigint] FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 ORDER BY a.attnum),
    coalesce((SELECT r.rngsubtype::bigint FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)), 0)
FROM wanted
JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN pg_catalog.pg_proc o ON o.oid = t.typoutput
LEFT JOIN pg_catalog.pg_proc s ON s.oid = t.typsend
"""
"""The rows about the types `oids` and all that they are made of; for psycopg, with the parameter `oids`: a list."""


def load_types(rows: Iterable[Sequence[Any]]) -> dict[int, TypeInfo]:
    """The answer of `TYPES_SQL`, by OID."""
    return {
        row[0]: TypeInfo(*row[:6], tuple(row[6]), row[7], row[8], tuple(map(tuple, row[9])), row[10])  # type: ignore[call-arg]
        for row in rows
    }


def is_built_in(oid: int) -> bool:
    """`column_type` knows this type without a row of the catalog."""
    return oid in _BUILT_IN or oid in _ELEMENTS


def column_type(oid: int, typmod: int, types: Mapping[int, TypeInfo]) -> ColumnType:
    """The neutral type of a column, its domains and arrays resolved. `types` need only hold what is not built in."""
    if oid in _ELEMENTS:
        return _array(column_type(_ELEMENTS[oid], typmod, types))
    if oid in _BUILT_IN:
        return _built_in(oid, typmod)
    info = types.get(oid)
    if info is None:
        raise DecodeError(f"type {oid} is not built in, and the catalog's row about it was not loaded")
    if info.typtype == "d":
        return column_type(info.base, info.base_typmod, types)
    if info.element:
        array = _array(column_type(info.element, typmod, types))
        is_list = info.delimiter == "," and array.element is not None and array.element.kind is not Kind.ARRAY
        return array if is_list else ColumnType(Kind.OTHER, array.name)
    if info.typtype == "e":
        return ColumnType(Kind.ENUM, info.name, labels=info.labels)
    if info.is_text:
        return ColumnType(Kind.TEXT, info.name)
    return ColumnType(Kind.OTHER, info.name, labels=_labels(oid, types), attributes=_attributes(oid, types))


def _labels(oid: int, types: Mapping[int, TypeInfo]) -> tuple[str, ...]:
    """Of all enums that a type is made of."""
    info = types.get(oid)
    if info is None:
        return ()
    return info.labels + tuple(label for part in _parts(info) for label in _labels(part, types))


def _attributes(oid: int, types: Mapping[int, TypeInfo]) -> tuple[str, ...]:
    """Of all composites that a type is made of: each by its number and its type."""
    info = types.get(oid)
    if info is None:
        return ()
    own = tuple(f"{number}:{type_}" for number, type_ in info.attributes)
    return own + tuple(attribute for part in _parts(info) for attribute in _attributes(part, types))


def _parts(info: TypeInfo) -> list[int]:
    parts = [info.base, info.element, info.subtype, *(type_ for _, type_ in info.attributes)]
    return [part for part in parts if part]


def needs_text(type_: ColumnType) -> bool:
    """Values of this type travel as the source's own text."""
    return _innermost(type_).kind is Kind.OTHER


def has_binary_decoder(type_: ColumnType) -> bool:
    """`decode_values` reads the binary form of this type."""
    inner = _innermost(type_)
    return inner.kind is not Kind.OTHER or renderer_of(inner) is not None


def text_expression(column: str) -> str:
    """SQL for the text form of a column (given quoted), as its output function prints it; NULL stays NULL."""
    return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.concat({column}) END"


def _innermost(type_: ColumnType) -> ColumnType:
    while type_.element is not None:
        type_ = type_.element
    return type_


def _array(element: ColumnType) -> ColumnType:
    return ColumnType(Kind.ARRAY, f"{element.name}[]", element=element)


def _built_in(oid: int, typmod: int) -> ColumnType:
    kind, name = _BUILT_IN[oid]
    match name:
        case "numeric":
            return _numeric(typmod)
        case "character" | "bit" if typmod < 0:  # unlike these names in SQL, any length
            name = {"character": "bpchar", "bit": '"bit"'}[name]
        case "character" | "character varying" if typmod >= 4:
            name = f"{name}({typmod - 4})"
        case "bit" | "bit varying" if typmod >= 0:
            name = f"{name}({typmod})"
        case "interval" if typmod >= 0:
            name = _interval_name(typmod)
        case _ if kind in _TIMES and typmod >= 0:
            word, rest = name.split(" ", 1)
            name = f"{word}({typmod}) {rest}"
    return ColumnType(kind, name)


def _numeric(typmod: int) -> ColumnType:
    if typmod < 4:
        return ColumnType(Kind.NUMERIC, "numeric")
    precision = (typmod - 4) >> 16
    scale = (((typmod - 4) & 0x7FF) ^ 1024) - 1024  # 11 bits with a sign: since 15 the scale may be negative
    name = f"numeric({precision},{scale})"
    if 0 <= scale <= precision <= 38:
        return ColumnType(Kind.DECIMAL, name, precision, scale)
    return ColumnType(Kind.NUMERIC, name)


def _interval_name(typmod: int) -> str:
    """As intervaltypmodout: the fields are bits 16 and up, the precision below, 0xFFFF for none."""
    precision = typmod & 0xFFFF
    fields = _INTERVAL_FIELDS.get(typmod >> 16, "")
    return f"interval{fields}" + ("" if precision == 0xFFFF else f"({precision})")


_TIMES = {Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}

_MONTH, _YEAR, _DAY, _HOUR, _MINUTE, _SECOND = (1 << bit for bit in (1, 2, 3, 10, 11, 12))
_INTERVAL_FIELDS = {
    _YEAR: " year",
    _MONTH: " month",
    _DAY: " day",
    _HOUR: " hour",
    _MINUTE: " minute",
    _SECOND: " second",
    _YEAR | _MONTH: " year to month",
    _DAY | _HOUR: " day to hour",
    _DAY | _HOUR | _MINUTE: " day to minute",
    _DAY | _HOUR | _MINUTE | _SECOND: " day to second",
    _HOUR | _MINUTE: " hour to minute",
    _HOUR | _MINUTE | _SECOND: " hour to second",
    _MINUTE | _SECOND: " minute to second",
}

# (oid, oid of its array, kind, name); pg_type.dat
_TABLE: tuple[tuple[int, int, Kind, str], ...] = (
    (16, 1000, Kind.BOOLEAN, "boolean"),
    (17, 1001, Kind.BYTES, "bytea"),
    (18, 1002, Kind.TEXT, '"char"'),
    (19, 1003, Kind.TEXT, "name"),
    (20, 1016, Kind.INT64, "bigint"),
    (21, 1005, Kind.INT16, "smallint"),
    (22, 1006, Kind.OTHER, "int2vector"),
    (23, 1007, Kind.INT32, "integer"),
    (24, 1008, Kind.OTHER, "regproc"),
    (25, 1009, Kind.TEXT, "text"),
    (26, 1028, Kind.INT64, "oid"),
    (27, 1010, Kind.OTHER, "tid"),
    (28, 1011, Kind.OTHER, "xid"),
    (29, 1012, Kind.OTHER, "cid"),
    (30, 1013, Kind.OTHER, "oidvector"),
    (114, 199, Kind.JSON, "json"),
    (142, 143, Kind.OTHER, "xml"),
    (600, 1017, Kind.OTHER, "point"),
    (601, 1018, Kind.OTHER, "lseg"),
    (602, 1019, Kind.OTHER, "path"),
    (603, 1020, Kind.OTHER, "box"),
    (604, 1027, Kind.OTHER, "polygon"),
    (628, 629, Kind.OTHER, "line"),
    (650, 651, Kind.OTHER, "cidr"),
    (700, 1021, Kind.FLOAT32, "real"),
    (701, 1022, Kind.FLOAT64, "double precision"),
    (718, 719, Kind.OTHER, "circle"),
    (774, 775, Kind.OTHER, "macaddr8"),
    (790, 791, Kind.OTHER, "money"),
    (829, 1040, Kind.OTHER, "macaddr"),
    (869, 1041, Kind.OTHER, "inet"),
    (1033, 1034, Kind.OTHER, "aclitem"),
    (1042, 1014, Kind.TEXT, "character"),
    (1043, 1015, Kind.TEXT, "character varying"),
    (1082, 1182, Kind.DATE, "date"),
    (1083, 1183, Kind.TIME, "time without time zone"),
    (1114, 1115, Kind.TIMESTAMP, "timestamp without time zone"),
    (1184, 1185, Kind.TIMESTAMPTZ, "timestamp with time zone"),
    (1186, 1187, Kind.INTERVAL, "interval"),
    (1266, 1270, Kind.TIMETZ, "time with time zone"),
    (1560, 1561, Kind.OTHER, "bit"),
    (1562, 1563, Kind.OTHER, "bit varying"),
    (1700, 1231, Kind.NUMERIC, "numeric"),
    (1790, 2201, Kind.OTHER, "refcursor"),
    (2202, 2207, Kind.OTHER, "regprocedure"),
    (2203, 2208, Kind.OTHER, "regoper"),
    (2204, 2209, Kind.OTHER, "regoperator"),
    (2205, 2210, Kind.OTHER, "regclass"),
    (2206, 2211, Kind.OTHER, "regtype"),
    (2950, 2951, Kind.UUID, "uuid"),
    (2970, 2949, Kind.OTHER, "txid_snapshot"),
    (3220, 3221, Kind.OTHER, "pg_lsn"),
    (3614, 3643, Kind.OTHER, "tsvector"),
    (3615, 3645, Kind.OTHER, "tsquery"),
    (3734, 3735, Kind.OTHER, "regconfig"),
    (3769, 3770, Kind.OTHER, "regdictionary"),
    (3802, 3807, Kind.JSON, "jsonb"),
    (3904, 3905, Kind.OTHER, "int4range"),
    (3906, 3907, Kind.OTHER, "numrange"),
    (3908, 3909, Kind.OTHER, "tsrange"),
    (3910, 3911, Kind.OTHER, "tstzrange"),
    (3912, 3913, Kind.OTHER, "daterange"),
    (3926, 3927, Kind.OTHER, "int8range"),
    (4072, 4073, Kind.OTHER, "jsonpath"),
    (4089, 4090, Kind.OTHER, "regnamespace"),
    (4096, 4097, Kind.OTHER, "regrole"),
    (4191, 4192, Kind.OTHER, "regcollation"),
    (4451, 6150, Kind.OTHER, "int4multirange"),
    (4532, 6151, Kind.OTHER, "nummultirange"),
    (4533, 6152, Kind.OTHER, "tsmultirange"),
    (4534, 6153, Kind.OTHER, "tstzmultirange"),
    (4535, 6155, Kind.OTHER, "datemultirange"),
    (4536, 6157, Kind.OTHER, "int8multirange"),
    (5038, 5039, Kind.OTHER, "pg_snapshot"),
    (5069, 271, Kind.OTHER, "xid8"),
)
_BUILT_IN = {oid: (kind, name) for oid, _, kind, name in _TABLE}
_ELEMENTS = {array: oid for oid, array, _, _ in _TABLE}
