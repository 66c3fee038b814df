"""The types of a PostgreSQL sink: what a column is declared as, and what goes into a column that is there already.

A type that PostgreSQL itself has keeps its name. What depends on the source's own catalog (enums, composites, types of
extensions, the reg* types, access lists) or on a server's locale (money) is text, exactly as the source prints it.
"""

from __future__ import annotations

import re

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Types

TEXT = ColumnType(Kind.TEXT, "text")

_PLAIN = {
    Kind.BOOLEAN: "boolean",
    Kind.INT16: "smallint",
    Kind.INT32: "integer",
    Kind.FLOAT32: "real",
    Kind.FLOAT64: "double precision",
    Kind.BYTES: "bytea",
    Kind.UUID: "uuid",
    Kind.DATE: "date",
    Kind.ENUM: "text",
}

_FIELDS = r"( (year|month|day|hour|minute|second)( to (month|hour|minute|second))?)?(\(\d\))?"
_OTHERS = (
    r"inet|cidr|macaddr8?|point|line|lseg|box|path|polygon|circle|xml|tsvector|tsquery|jsonpath|pg_lsn"
    r'|"bit"|bit\(\d+\)|bit varying(\(\d+\))?|tid|xid|xid8|cid|int2vector|oidvector|txid_snapshot|pg_snapshot'
    r"|(int4|int8|num|ts|tstz|date)(multi)?range"
)
_NAMED: dict[Kind, tuple[str, str]] = {
    Kind.INT64: ("oid", "bigint"),
    Kind.NUMERIC: (r"numeric\(\d+,-?\d+\)", "numeric"),
    Kind.TEXT: (r'character varying\(\d+\)|character\(\d+\)|character varying|bpchar|name|"char"', "text"),
    Kind.TIME: (r"time\(\d\) without time zone", "time without time zone"),
    Kind.TIMETZ: (r"time\(\d\) with time zone", "time with time zone"),
    Kind.TIMESTAMP: (r"timestamp\(\d\) without time zone", "timestamp without time zone"),
    Kind.TIMESTAMPTZ: (r"timestamp\(\d\) with time zone", "timestamp with time zone"),
    Kind.INTERVAL: (rf"interval{_FIELDS}", "interval"),
    Kind.JSON: ("jsonb", "json"),
    Kind.OTHER: (_OTHERS, "text"),
}
"""By kind: names that are kept, and the type for all others."""


class PostgresTypes(Types):
    own = {"name": "text", "text": "text", "integer": "bigint", "flag": "smallint", "moment": "timestamptz"}

    def declared(self, schema: TableSchema) -> dict[str, str]:
        return {column.name: declared(column.type) for column in schema.columns}

    def fits(self, declared: str, existing: str) -> bool:
        return fits(declared, existing)

    def can_widen(self, wanted: str, existing: str) -> bool:
        return fits(existing, wanted)


def declared(type_: ColumnType) -> str:
    """The type of a column that we make."""
    if type_.kind is Kind.DECIMAL:
        return f"numeric({type_.precision},{type_.scale})"
    if type_.kind is Kind.ARRAY:
        assert type_.element is not None
        return f"{declared(type_.element)}[]"
    if type_.kind in _PLAIN:
        return _PLAIN[type_.kind]
    kept, otherwise = _NAMED[type_.kind]
    return type_.name if re.fullmatch(kept, type_.name) else otherwise


def is_cast(type_: ColumnType) -> bool:
    """Values go to the server as text and are cast there: their binary form is not ours to write."""
    if type_.kind is Kind.ARRAY:
        return True
    return declared(type_) == '"char"' or (type_.kind is Kind.OTHER and declared(type_) != "text")


def keeps_form(type_: ColumnType) -> bool:
    """Whether the binary values of a PostgreSQL source are those of the column that we make for them."""
    return not is_cast(type_) and declared(type_) == type_.name


_ONE_FORM = {
    *(Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64, Kind.TEXT, Kind.BYTES, Kind.UUID, Kind.ENUM),
    *(Kind.DATE, Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ),
}


def has_forms(type_: ColumnType) -> bool:
    """Whether values that the server takes for equal may look different: 1.0 and 1.00, 30 days and a month."""
    return type_.kind not in _ONE_FORM or declared(type_) == "bpchar"


def sent(type_: ColumnType) -> str:
    """The type as which values go to the server, without its limits."""
    if is_cast(type_):
        return "text"
    if type_.kind is Kind.INTERVAL:
        return "interval"
    base = _parsed(declared(type_))[0]
    return "bpchar" if base == "character" else base


_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "name": 19,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "oid": 26,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "bpchar": 1042,
    "character varying": 1043,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "time with time zone": 1266,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}


def sent_oid(type_: ColumnType) -> int:
    return _OIDS[sent(type_)]


_WIDER = {"smallint": ("integer", "bigint"), "integer": ("bigint",)}
_TEXTS = ("text", "character varying")


def fits(wanted: str, existing: str) -> bool:
    """Whether all values of a column declared as `wanted` go unchanged into a column of the type `existing`."""
    if wanted == existing:
        return True
    base, limits = _parsed(wanted)
    other, others = _parsed(existing)
    if base == other == "numeric":
        return not others or (len(limits) == 2 and limits[1] == others[1] and limits[0] <= others[0])
    if base == other or (base in _TEXTS and other in _TEXTS):
        return not others or (bool(limits) and limits <= others)
    return other in _WIDER.get(base, ()) and not others


def has_same_form(wanted: str, existing: str) -> bool:
    """Whether the binary values of one type are those of the other."""
    return _parsed(wanted)[0] == _parsed(existing)[0] or {_parsed(wanted)[0], _parsed(existing)[0]} <= set(_TEXTS)


def _parsed(name: str) -> tuple[str, list[int]]:
    """`timestamp(3) with time zone` is `timestamp with time zone` and [3]."""
    limits = re.search(r"\(([-\d,]+)\)", name)
    return re.sub(r"\([-\d,]+\)", "", name), [int(part) for part in limits[1].split(",")] if limits else []
