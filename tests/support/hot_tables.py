"""The tables of the hostile workload: each has something that replicas get wrong."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from psycopg.types.json import Jsonb

Maker = Callable[[random.Random], object]
Row = tuple[object, ...]

TEXTS = [
    "",
    "t",
    "f",
    "true",
    "NULL",
    "\\N",
    "it's",
    'a "quote"',
    "line\nbreak\r\ttab",
    "naïve 🌊 文字",
    "\\",
    "%s {}",
    "0",
]
EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class HotTable:
    """A table and how to fill it. `columns` makes a value for each column; those in `key` come from a small range.

    A table without a key has replica identity FULL, or takes inserts only.
    """

    schema: str
    name: str
    ddl: str
    columns: dict[str, Maker]
    key: tuple[str, ...] = ()
    inserts_only: bool = False
    sql_name: str = field(init=False)
    where: str = field(init=False)
    reference: str = field(init=False)
    """SQL that selects what `where` wants to find a row again: its key, or its place if it has none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sql_name", f"{quote(self.schema)}.{quote(self.name)}")
        where = " AND ".join(f"{quote(name)} = %s" for name in self.key) if self.key else "ctid = %s::tid"
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "reference", ", ".join(map(quote, self.key)) if self.key else "ctid::text")

    @property
    def others(self) -> list[str]:
        """The columns that are not of the key."""
        return [name for name in self.columns if name not in self.key]

    def new_row(self, random: random.Random) -> Row:
        return tuple(make(random) for make in self.columns.values())

    def new_key(self, random: random.Random) -> Row:
        return tuple(self.columns[name](random) for name in self.key)

    def row_with(self, key: Row, random: random.Random) -> Row:
        """A new row under a given key."""
        given = dict(zip(self.key, key, strict=True))
        return tuple(given[name] if name in given else make(random) for name, make in self.columns.items())


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def number(below: int) -> Maker:
    return lambda random: random.randrange(below)


def one_of(*values: object) -> Maker:
    return lambda random: random.choice(values)


def maybe(make: Maker) -> Maker:
    return lambda random: None if random.random() < 0.15 else make(random)


def text(random: random.Random) -> str:
    return random.choice(TEXTS) + random.choice(["", str(random.randrange(100))])


def large(random: random.Random) -> str:
    """Stored out of line: an update of another column does not send it."""
    return f"{random.getrandbits(64):016x}" * random.randint(200, 1200)


def bigint(random: random.Random) -> int:
    return random.choice([0, -1, 2**63 - 1, -(2**63), random.getrandbits(40)])


def double(random: random.Random) -> float:
    return random.choice([0.0, 0.1, -1.5e300, 5e-324, float("nan"), float("inf"), random.random()])


def money(random: random.Random) -> Decimal:
    return Decimal(random.randrange(-(10**12) + 1, 10**12)).scaleb(-2)


def digits(random: random.Random) -> Decimal:
    return random.choice([Decimal(0), Decimal("1.10"), Decimal("1e30"), Decimal(random.getrandbits(200)).scaleb(-25)])


def moment(random: random.Random) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=random.randrange(10**15))


def day(random: random.Random) -> datetime.date:
    return datetime.date(1900 + random.randrange(300), random.randint(1, 12), random.randint(1, 28))


def document(random: random.Random) -> Jsonb:
    return Jsonb({"n": random.randrange(10), "t": text(random).replace("\0", ""), "deep": [None, {"x": 1.5}]})


def words(random: random.Random) -> list[str | None]:
    return [random.choice([None, text(random), "a,b", "{c}"]) for _ in range(random.randrange(4))]


def few_uuids(random: random.Random) -> uuid.UUID:
    return uuid.UUID(int=random.randrange(200) << 64 | 0xABCDEF)


def raw(random: random.Random) -> bytes:
    return random.randbytes(random.randrange(20))


TABLES: dict[str, HotTable] = {
    table.name: table
    for table in (
        HotTable(
            "public",
            "plain",
            "CREATE TABLE plain (id integer PRIMARY KEY, n bigint, t text, flag boolean, amount numeric(12,2),"
            " at timestamptz, x double precision)",
            {
                "id": number(300),
                "n": maybe(bigint),
                "t": maybe(text),
                "flag": one_of(True, False, None),
                "amount": maybe(money),
                "at": maybe(moment),
                "x": maybe(double),
            },
            key=("id",),
        ),
        HotTable(
            "public",
            "pair",
            "CREATE TABLE pair (v text, b text, a smallint, d date, PRIMARY KEY (a, b))",
            {"v": maybe(text), "b": text, "a": number(20), "d": maybe(day)},
            key=("a", "b"),
        ),
        HotTable(
            "public",
            "keyless",
            "CREATE TABLE keyless (n integer, t text, amount numeric, flag boolean);"
            " ALTER TABLE keyless REPLICA IDENTITY FULL",
            {
                "n": maybe(number(4)),
                "t": maybe(one_of("t", "f", "")),
                "amount": maybe(digits),
                "flag": one_of(True, None),
            },
        ),
        HotTable(
            "public",
            "journal",
            "CREATE TABLE journal (at timestamp, line text)",
            {"at": lambda random: moment(random).replace(tzinfo=None), "line": maybe(text)},
            inserts_only=True,
        ),
        HotTable(
            "public",
            "Upper Case",
            'CREATE TABLE "Upper Case" ("Id" integer PRIMARY KEY, "Select" text, "we""ird" integer, "größe" real)',
            {"Id": number(300), "Select": maybe(text), 'we"ird': maybe(number(9)), "größe": maybe(one_of(0.5, -2.25))},
            key=("Id",),
        ),
        HotTable(
            "public",
            "toasty",
            "CREATE TABLE toasty (id integer PRIMARY KEY, small integer, big text, more text);"
            " ALTER TABLE toasty ALTER big SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL",
            {
                "id": number(60),
                "small": maybe(number(1000)),
                "big": maybe(large),
                "more": maybe(one_of("tiny", "x" * 3000)),
            },
            key=("id",),
        ),
        HotTable(
            "public",
            "toasty_full",
            "CREATE TABLE toasty_full (id integer PRIMARY KEY, big text, small integer);"
            " ALTER TABLE toasty_full ALTER big SET STORAGE EXTERNAL;"
            " ALTER TABLE toasty_full REPLICA IDENTITY FULL",
            {"id": number(60), "big": maybe(large), "small": maybe(number(1000))},
            key=("id",),
        ),
        HotTable(
            "public",
            "parted",
            "CREATE TABLE parted (id integer, region text, v text, n integer, PRIMARY KEY (id, region))"
            " PARTITION BY LIST (region);"
            " CREATE TABLE parted_north PARTITION OF parted FOR VALUES IN ('north');"
            " CREATE TABLE parted_south PARTITION OF parted FOR VALUES IN ('south');"
            " CREATE TABLE parted_rest PARTITION OF parted DEFAULT",
            {"id": number(80), "region": one_of("north", "south", "east"), "v": maybe(text), "n": number(100)},
            key=("id", "region"),
        ),
        HotTable(
            "other",
            "events",
            "CREATE SCHEMA IF NOT EXISTS other;"
            " CREATE TABLE other.events (id uuid PRIMARY KEY, payload jsonb, tags text[], day date, raw bytea)",
            {"id": few_uuids, "payload": maybe(document), "tags": maybe(words), "day": maybe(day), "raw": maybe(raw)},
            key=("id",),
        ),
        HotTable(
            "public",
            "indexed",
            "CREATE TABLE indexed (v integer, code text NOT NULL, t text);"
            " CREATE UNIQUE INDEX indexed_code ON indexed (code);"
            " ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code",
            {"v": maybe(number(100)), "code": lambda random: f"c{random.randrange(300)}", "t": maybe(text)},
            key=("code",),
        ),
    )
}
