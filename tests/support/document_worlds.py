"""Random worlds for documents: tables, rows, a description, changes; and the documents that plain SQL builds of it.

The SQL is written from the description alone and shares no code with the builder. A field whose name begins with `u_`
is a list in no order: its table has no key. One that begins with `avg_` is a double, and may be rounded differently.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

import psycopg
from psycopg import sql

from tailrace.config import documents as d
from tailrace.config.conditions import Direction, Filter, Nulls, Op, OrderBy, SoftDelete

VALUES = {
    "n": "integer",
    "big": "bigint",
    "t": "text",
    "v": "varchar(20)",
    "c": "character(4)",
    "d": "numeric(10,2)",
    "x": "numeric",
    "f": "double precision",
    "b": "boolean",
    "at": "timestamptz",
    "day": "date",
    "m": "mood",
    "tags": "text[]",
    "extra": "jsonb",
}
TEXTS = ["", "a", "B", "Ü x", 'q"u\\o', "a:b", "c\\:d", " pad ", "line\nbreak", "%_", "null", "ab", "é"]
UUIDS = [f"{n:08x}-0000-4000-8000-00000000000{n}" for n in range(1, 7)]
KEYS = {
    "integer": [str(n) for n in range(1, 8)],
    "bigint": ["1", "2", "3", "5000000000", "-4"],
    "numeric": ["1", "2", "3.50", "4", "-1"],
    "text": ["a", "B", "x:y", "c\\d", 'q"', "é"],
    "uuid": UUIDS,
    "date": ["2024-01-01", "2024-02-29", "1999-12-31"],
}
NUMBERS = ("integer", "bigint", "numeric")
MOODS = ["sad", "ok", "happy"]


@dataclass
class Table:
    name: str
    key: dict[str, str]
    links: dict[str, str] = field(default_factory=dict)
    is_full: bool = False
    key_is_links: bool = False

    @property
    def full_name(self) -> str:
        return f"public.{self.name}"

    @property
    def columns(self) -> dict[str, str]:
        return {**self.key, **VALUES, **self.links}

    def ddl(self) -> str:
        columns = ", ".join(f'"{name}" {type_}' for name, type_ in self.columns.items())
        key = f", PRIMARY KEY ({', '.join(self.key)})" if self.key else ""
        full = f"; ALTER TABLE {self.name} REPLICA IDENTITY FULL" if self.is_full or not self.key else ""
        return f"CREATE TABLE {self.name} ({columns}{key}){full}"


class World:
    """One seed, one world."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tables: list[Table] = []
        self.count = 0
        self.nodes = 0
        root = self._table(has_key=True)
        self.document = d.Document(
            table=root.full_name,
            fields=self._fields(root, 0),
            filters=self._filters(0.15),
            soft_delete=self.chance.choice(
                [None] * 4 + [SoftDelete("b"), SoftDelete("at"), SoftDelete(None, self._filters(1.0))]
            ),
        )
        self.root = root

    # --- tables

    def _table(self, *, has_key: bool | None = None) -> Table:
        number = len(self.tables)
        if has_key is None:
            has_key = self.chance.random() < 0.85
        key: dict[str, str] = {}
        if has_key:
            kinds = self.chance.sample(list(KEYS), self.chance.choice([1, 1, 1, 2]))
            key = {f"k{place}": kind for place, kind in enumerate(kinds)}
        table = Table(f"t{number}", key, is_full=self.chance.random() < 0.2)
        self.tables.append(table)
        return table

    def _other(self, *, has_key: bool | None = None) -> Table:
        known = [table for table in self.tables if (has_key is None or table.key) and not table.name.startswith("j")]
        if known and (self.chance.random() < 0.35 or len(self.tables) > 6):
            return self.chance.choice(known)
        return self._table(has_key=has_key)

    def _link(self, table: Table, key: dict[str, str]) -> tuple[str, ...]:
        """Columns of a table that hold another's key; numbers may be of another width."""
        names = []
        for kind in key.values():
            self.count += 1
            name = f"l{self.count}"
            table.links[name] = self.chance.choice(NUMBERS) if kind in NUMBERS and self.chance.random() < 0.3 else kind
            names.append(name)
        return tuple(names)

    # --- the description

    def _fields(self, table: Table, depth: int) -> dict[str, Any]:
        fields = self._scalars()
        if depth < 4:
            most = [3, 2, 2, 1][depth]
            for _ in range(self.chance.randint(1 if depth < 2 else 0, most)):
                if self.nodes < 14:
                    name, made = self._join(table, depth)
                    fields[name] = made
                    if isinstance(made, d.HasMany) and self.chance.random() < 0.4:  # of the same rows
                        fields.update([self._alike(made)])
        if self.chance.random() < 0.3 and len(fields) > 2:
            inner = self.chance.sample(sorted(fields), 2)
            fields["inside"] = d.Object(fields={name: fields.pop(name) for name in inner})
        return fields

    def _scalars(self) -> dict[str, Any]:
        c = self.chance
        made: dict[str, Any] = {
            "n": d.Integer(),
            "big": d.Long(default=c.choice([None, 7])),
            "text": d.Text(
                column="t", transforms=c.choice([(), (d.TextTransform.LOWERCASE,), (d.TextTransform.TRIM,)])
            ),
            "word": d.Keyword(column="v", default=c.choice([None, 'none "of" it'])),
            "d": d.Decimal(),
            "x": d.Decimal(),
            "f": d.Double(),
            "b": d.Boolean(),
            "at": d.Timestamp(),
            "day": d.Date(),
            "m": d.Enum(),
            "tags": d.Keyword(),
            "extra": d.Json(),
            "point": d.Geo(lat="d", lon="f"),
            "fixed": d.Constant(value=["shop", "ü"]),
        }
        return {name: made[name] for name in sorted(c.sample(sorted(made), c.randint(1, 4)))}

    def _join(self, table: Table, depth: int) -> tuple[str, Any]:
        self.nodes += 1
        number, c = self.nodes, self.chance
        kinds = ["belongs_to", "has_many", "has_one", "many_to_many", "aggregate", "aggregate"]
        kind = c.choice(kinds if table.key else ["belongs_to"])
        if kind == "belongs_to":
            other = self._other(has_key=True)
            column = self._link(table, other.key)
            return f"one_{number}", d.BelongsTo(
                table=other.full_name, column=column, fields=self._fields(other, depth + 1), filters=self._filters(0.2)
            )
        if kind == "aggregate":
            return self._aggregate(table, number)
        if kind == "many_to_many":
            self.nodes += 1
            other = self._other(has_key=True)
            return f"many_{number}", d.ManyToMany(
                table=other.full_name,
                through=self._through(table, other),
                fields=self._fields(other, depth + 1),
                filters=self._filters(0.3),
                order_by=self._order(),
                limit=c.choice([None, None, 2]),
            )
        other = self._other(has_key=True if kind == "has_one" else None)
        common = {
            "table": other.full_name,
            "foreign_key": self._link(other, table.key),
            "fields": self._fields(other, depth + 1),
            "filters": self._filters(0.3),
        }
        if kind == "has_one":
            return f"first_{number}", d.HasOne(**common, order_by=self._order())
        if not other.key:
            return f"u_{number}", d.HasMany(**common)
        return f"many_{number}", d.HasMany(**common, order_by=self._order(), limit=c.choice([None, None, 1, 3]))

    def _through(self, table: Table, other: Table) -> d.Through:
        junction = Table(f"j{len(self.tables)}", {})
        self.tables.append(junction)
        left, right = self._link(junction, table.key), self._link(junction, other.key)
        match self.chance.choice(["links", "own", "none"]):
            case "links":
                junction.key = {name: junction.links.pop(name) for name in (*left, *right)}
            case "own":
                junction.key = {"k0": "integer"}
        return d.Through(table=junction.full_name, left_key=left, right_key=right)

    def _aggregate(self, table: Table, number: int) -> tuple[str, Any]:
        c = self.chance
        other = self._other(has_key=True)
        where: dict[str, Any] = {"table": other.full_name, "filters": self._filters(0.4)}
        if c.random() < 0.3:
            self.nodes += 1
            where["through"] = self._through(table, other)
        else:
            where["foreign_key"] = self._link(other, table.key)
        return self._value_of(where, number)

    def _alike(self, made: d.HasMany) -> tuple[str, Any]:
        self.nodes += 1
        where = {"table": made.table, "foreign_key": made.foreign_key, "filters": self._filters(0.4)}
        is_keyless = not next(table for table in self.tables if table.full_name == made.table).key
        return (f"count_{self.nodes}", d.Count(**where)) if is_keyless else self._value_of(where, self.nodes)

    def _value_of(self, where: dict[str, Any], number: int) -> tuple[str, Any]:
        c = self.chance
        match c.choice(["count", "sum", "min", "max", "avg", "ids"]):
            case "count":
                return f"count_{number}", d.Count(**where)
            case "sum":
                default = c.choice([None, 0])
                return f"sum_{number}", d.Sum(**where, column=c.choice(["n", "big", "d", "x"]), default=default)
            case "avg":
                return f"avg_{number}", d.Avg(**where, column=c.choice(["n", "d", "x", "f"]))
            case "ids":
                return f"ids_{number}", d.Ids(**where, column=c.choice([None, None, "n", "t"]))
            case kind:
                made = d.Min if kind == "min" else d.Max
                return f"{kind}_{number}", made(**where, column=c.choice(["n", "d", "x", "t", "at", "day", "m", "f"]))

    def _order(self) -> tuple[OrderBy, ...]:
        c = self.chance
        names = c.sample(["n", "t", "d", "x", "f", "b", "at", "day", "m", "v"], c.randint(0, 2))
        return tuple(OrderBy(name, c.choice(list(Direction)), c.choice(list(Nulls))) for name in names)

    def _filters(self, likelihood: float) -> tuple[Filter, ...]:
        c = self.chance
        if c.random() > likelihood:
            return ()
        some = [
            Filter("n", c.choice([Op.EQ, Op.NEQ, Op.LT, Op.LTE, Op.GT, Op.GTE]), c.randint(0, 3)),
            Filter("x", c.choice([Op.NEQ, Op.LT, Op.GTE]), c.choice([1.5, "2.00", 0])),
            Filter("d", Op.BETWEEN, [0, "2.505"]),
            Filter("t", c.choice([Op.LIKE, Op.ILIKE]), c.choice(["%a%", "_", 'q"%', "%\\%%", "B%"])),
            Filter("t", c.choice([Op.LT, Op.GTE]), "a"),
            Filter("v", c.choice([Op.IN, Op.NOT_IN]), ["a", "B", "null", ""]),
            Filter("c", Op.EQ, "ab"),
            Filter("m", c.choice([Op.LT, Op.GT, Op.EQ]), "ok"),
            Filter("at", c.choice([Op.LT, Op.GTE]), "2024-01-01T02:00:00+02:00"),
            Filter("day", c.choice([Op.LT, Op.EQ, Op.GTE]), "2024-02-29"),
            Filter("b", Op.EQ, c.choice([True, False])),
            Filter("f", Op.GT, 0.5),
            Filter("tags", c.choice([Op.IS_NULL, Op.IS_NOT_NULL])),
            Filter("at", c.choice([Op.IS_NULL, Op.IS_NOT_NULL])),
        ]
        return tuple(c.sample(some, c.choice([1, 1, 2])))

    # --- rows

    def create(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
        for table in self.tables:
            connection.execute(table.ddl().encode())
        for table in self.tables:
            for _ in range(self.chance.randint(4, 14)):
                connection.execute(self.insert(table).encode())

    def insert(self, table: Table) -> str:
        values = ", ".join(self._value(table, name) for name in table.columns)
        return f"INSERT INTO {table.name} VALUES ({values})" + (" ON CONFLICT DO NOTHING" if table.key else "")

    def change(self) -> str:
        """A statement that does something to a table, or nothing."""
        c = self.chance
        table = c.choice(self.tables)
        some = f"ORDER BY ctid OFFSET {c.randint(0, 8)} LIMIT {c.choice([1, 1, 3])}"
        where = f"ctid IN (SELECT ctid FROM {table.name} {some})"
        match c.choice(
            ["insert"] * 3 + ["delete"] * 3 + ["value"] * 3 + ["link"] * 4 + ["key"] * 3 + ["again", "truncate"]
        ):
            case "insert":
                return self.insert(table)
            case "delete":
                return f"DELETE FROM {table.name} WHERE {where}"
            case "value":
                return self._update(table, c.choice(list(VALUES)), where)
            case "link" if table.links:
                return self._update(table, c.choice(list(table.links)), where)
            case "key" if table.key:
                return self._update(table, c.choice(list(table.key)), where)
            case "again" if table.key:
                name = next(iter(table.key))
                return f"DELETE FROM {table.name} WHERE {name} = {self._value(table, name)}; {self.insert(table)}"
            case "truncate" if c.random() < 0.3:
                return f"TRUNCATE {table.name}"
            case _:
                return "SELECT 1"

    def _update(self, table: Table, name: str, where: str) -> str:
        return f'UPDATE {table.name} SET "{name}" = {self._value(table, name)} WHERE {where}'

    def _value(self, table: Table, name: str) -> str:
        c = self.chance
        type_ = table.columns[name]
        if name not in table.key and c.random() < 0.15:
            return "NULL"
        if name not in VALUES:
            value = c.choice(KEYS[type_]) if type_ != "integer" or name in table.key else c.choice(KEYS["integer"])
            return f"{_literal(value)}::{type_}"
        match type_:
            case "integer" | "bigint":
                value = c.choice([0, 1, 2, 3, -5, 2**31 - 1])
                return str(value * (2**31 if type_ == "bigint" and value > 3 else 1))
            case "text" | "varchar(20)":
                return _literal(c.choice(TEXTS))
            case "character(4)":
                return _literal(c.choice(["ab", "a", "abcd", ""]))
            case "numeric(10,2)":
                return c.choice(["0.00", "1.50", "2.5", "-7.25", "89.99"])
            case "numeric":
                return c.choice(["0", "1.5", "1.50", "2.00", "-0.000001", "123456789012345678901234567890.5"])
            case "double precision":
                return c.choice(["0", "0.1", "-1.5", "3.25", "123.456789"])
            case "boolean":
                return c.choice(["true", "false"])
            case "timestamptz":
                return c.choice(
                    ["'2024-01-01 00:00:00+00'", "'2023-12-31 23:59:59.5+00'", "'2024-06-01 12:00:00.123456+02'"]
                )
            case "date":
                return c.choice(["'2024-02-29'", "'1999-12-31'", "'2024-03-01'"])
            case "mood":
                return c.choice(["'sad'", "'ok'", "'happy'"])
            case "text[]":
                return c.choice(["'{}'", "ARRAY['a', NULL, 'q\"']", "ARRAY['x']"])
            case _:
                return c.choice(['\'{"a": [1, null, "x"]}\'', "'[]'", "'\"s\"'"])


def _literal(value: Any) -> str:
    return sql.Literal(value).as_string(None)


# --- the documents as SQL


def documents_query(document: d.Document, key: tuple[str, ...]) -> str:
    """Rows of the id's parts and the document."""
    where = [*_filters_sql(document.filters, "r"), *_not_deleted(document.soft_delete, "r")]
    ids = ", ".join(f"r.{name}::text" for name in key)
    condition = " AND ".join(where) or "true"
    return f"SELECT {_object(document.fields, 'r', key)}::text, {ids} FROM {document.table} r WHERE {condition}"


class _Keys:
    """The keys of tables, as the catalog has them: set before a query is written."""

    known: dict[str, tuple[str, ...]] = {}


def learn_keys(world: World) -> None:
    _Keys.known = {table.full_name: tuple(table.key) for table in world.tables}


def _object(fields: dict[str, Any], row: str, key: tuple[str, ...]) -> str:
    pairs = ", ".join(f"{_literal(name)}, {_field(name, each, row, key)}" for name, each in fields.items())
    return f"json_build_object({pairs})"


def _field(name: str, each: Any, row: str, key: tuple[str, ...]) -> str:
    below = f"{row}_{name}"
    match each:
        case d.Object():
            return _object(each.fields, row, key)
        case d.Constant():
            return f"{_literal(json.dumps(each.value))}::json"
        case d.Geo():
            lat, lon = f"{row}.{each.lat}", f"{row}.{each.lon}"
            point = f"json_build_object('lat', {lat}, 'lon', {lon})"
            return f"CASE WHEN {lat} IS NOT NULL AND {lon} IS NOT NULL THEN {point} END"
        case d.BelongsTo():
            link = _equal(_Keys.known[each.table], below, each.column, row)
            return _first(each, below, link, ())
        case d.HasOne():
            return _first(each, below, _equal(each.foreign_key, below, key, row), each.order_by)
        case d.HasMany() | d.ManyToMany():
            link = _reached(each, below, row, key)
            return _list(each, below, link)
        case d.AggregateField():
            return _aggregate_sql(each, below, _reached(each, below, row, key))
        case _:
            return _scalar_sql(each, f'{row}."{each.column or name}"')


def _scalar_sql(each: Any, column: str) -> str:
    match each:
        case d.Timestamp():
            return f"to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
        case d.Text() if each.transforms == (d.TextTransform.LOWERCASE,):
            return f"replace(lower({column}), 'Ü', 'ü')"  # the server's own knows ASCII only, in its C locale
        case d.Text() if each.transforms == (d.TextTransform.TRIM,):
            return f"btrim({column}, E' \\n')"
        case _ if each.default is not None:
            return f"coalesce({column}, {_literal(each.default)})"
        case _:
            return column


def _equal(ours: tuple[str, ...], row: str, theirs: tuple[str, ...], above: str) -> str:
    return " AND ".join(f"{row}.{a} = {above}.{b}" for a, b in zip(ours, theirs, strict=True))


def _reached(each: Any, below: str, row: str, key: tuple[str, ...]) -> str:
    through = getattr(each, "through", None)
    if through is None:
        return _equal(each.foreign_key, below, key, row)
    left = _equal(through.left_key, f"{below}_j", key, row)
    right = _equal(through.right_key, f"{below}_j", _Keys.known[each.table], below)
    return f"EXISTS (SELECT FROM {through.table} {below}_j WHERE {left} AND {right})"


def _rows(each: Any, below: str, link: str, select: str, order: str, limit: int | None) -> str:
    where = " AND ".join([link, *_filters_sql(each.filters, below)])
    cut = f" LIMIT {limit}" if limit else ""
    return f"SELECT {select} FROM {each.table} {below} WHERE {where}{order}{cut}"


def _order_sql(each: Any, below: str, order_by: tuple[OrderBy, ...]) -> str:
    parts = [f"{_collated(below, o.column)} {o.direction} NULLS {o.nulls}" for o in order_by]
    parts += [_collated(below, name) for name in _Keys.known[each.table]]
    return f" ORDER BY {', '.join(parts)}" if parts else ""


def _collated(row: str, column: str) -> str:
    """Text by its code points; the oracle knows which columns are text by asking the server."""
    return f"tests_order({row}.{column})"


def _first(each: Any, below: str, link: str, order_by: tuple[OrderBy, ...]) -> str:
    object_ = _object(each.fields, below, _Keys.known[each.table])
    return f"({_rows(each, below, link, object_, _order_sql(each, below, order_by), 1)})"


def _list(each: Any, below: str, link: str) -> str:
    object_ = _object(each.fields, below, _Keys.known[each.table])
    order = _order_sql(each, below, each.order_by)
    rows = _rows(each, below, link, f"{object_} AS o, row_number() OVER ({order.strip()}) AS place", order, each.limit)
    return f"(SELECT coalesce(json_agg(o ORDER BY place), '[]'::json) FROM ({rows}) rows)"


def _aggregate_sql(each: Any, below: str, link: str) -> str:
    match each:
        case d.Count():
            found = "count(*)"
        case d.Ids():
            names = (each.column,) if each.column else _Keys.known[each.table]
            order = ", ".join(_collated(below, name) for name in names)
            texts = f"tests_id(ARRAY[{', '.join(f'{below}.{name}::text' for name in names)}])"
            value = f"{below}.{names[0]}" if len(names) == 1 else texts
            where = f" FILTER (WHERE {below}.{names[0]} IS NOT NULL)" if len(names) == 1 else ""
            found = f"coalesce(json_agg({value} ORDER BY {order}){where}, '[]'::json)"
        case d.Avg():
            found = f"avg({below}.{each.column})::float8"
        case d.Sum():
            found = f"sum({below}.{each.column})"
        case _:
            column, way = f"{below}.{each.column}", "ASC" if isinstance(each, d.Min) else "DESC"
            order = f"{_collated(below, each.column)} {way}"
            found = f"(array_agg({column} ORDER BY {order}) FILTER (WHERE {column} IS NOT NULL))[1]"
            if each.column == "at":
                found = f"to_char({found} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    if getattr(each, "default", None) is not None:
        found = f"coalesce({found}, {each.default})"
    return f"({_rows(each, below, link, found, '', None)})"


OPERATORS = {
    Op.EQ: "=",
    Op.NEQ: "<>",
    Op.LT: "<",
    Op.LTE: "<=",
    Op.GT: ">",
    Op.GTE: ">=",
    Op.LIKE: "LIKE",
    Op.ILIKE: "ILIKE",
}


def _filters_sql(filters: tuple[Filter, ...], row: str) -> list[str]:
    return [_filter_sql(each, f"{row}.{each.column}") for each in filters]


def _filter_sql(each: Filter, column: str) -> str:
    if each.column in ("t", "v"):
        column = f'{column} COLLATE "C"' if each.op is not Op.ILIKE else column
    match each.op:
        case Op.IS_NULL:
            return f"{column} IS NULL"
        case Op.IS_NOT_NULL:
            return f"{column} IS NOT NULL"
        case Op.IN | Op.NOT_IN:
            listed = ", ".join(_literal(value) for value in each.value)
            return f"{column} {'NOT IN' if each.op is Op.NOT_IN else 'IN'} ({listed})"
        case Op.BETWEEN:
            return f"{column} BETWEEN {each.value[0]} AND {each.value[1]}"
        case _ if each.column in ("x", "d", "n", "f", "b"):
            return f"{column} {OPERATORS[each.op]} {each.value}"
        case _:
            return f"{column} {OPERATORS[each.op]} {_literal(each.value)}"


def _not_deleted(soft_delete: SoftDelete | None, row: str) -> list[str]:
    if soft_delete is None:
        return []
    if soft_delete.column == "b":
        return [f"{row}.b IS NOT TRUE"]
    if soft_delete.column is not None:
        return [f"{row}.{soft_delete.column} IS NULL"]
    return [f"({' AND '.join(_filters_sql(soft_delete.when, row))}) IS NOT TRUE"]


FUNCTIONS = """
CREATE FUNCTION tests_order(anyelement) RETURNS anyelement IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION tests_order(text) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$ SELECT convert_to($1, 'UTF8') $$;
CREATE FUNCTION tests_id(text[]) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT string_agg(replace(replace(part, '\\', '\\\\'), ':', '\\:'), ':' ORDER BY place)
    FROM unnest($1) WITH ORDINALITY AS parts (part, place) $$;
"""


# --- comparing


EXACT_DIGITS = 15
WHOLE = Context(prec=100)


def parsed(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def canonical(value: Any, name: str = "") -> Any:
    """Equal for equal documents: lists in no order are sorted, doubles of two ways are rounded."""
    match value:
        case dict():
            return {key: canonical(each, key) for key, each in value.items()}
        case list() if name.startswith("u_"):
            return sorted((canonical(each) for each in value), key=repr)
        case list():
            return [canonical(each) for each in value]
        case Decimal() if name.startswith("avg_"):
            return f"{float(value):.9g}"
        case Decimal() if len(value.as_tuple().digits) > EXACT_DIGITS and value != value.to_integral_value():
            return f"{value:f}"  # a document has it as a string: OpenSearch would round it
        case Decimal():
            return value.normalize(WHOLE) if value else Decimal(0)
        case _:
            return value
