"""The `source` block of an envelope: where a change comes from, in the words of its kind of source.

Debezium has the place of each single change in PostgreSQL's log; we know where its transaction ends, so all changes of
a transaction have the same `lsn`, which grows in the order of commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.schemas import SNAPSHOT_FIELD, fields_of, struct
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.columns.fragments import join
from tailrace.model.positions import Binlog

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_MARIADB_GTID = re.compile(r"\d+-(\d+)-\d+")


class Moment(NamedTuple):
    """Where and when. `position` and `transaction` are in the source's own words; empty for what is of none."""

    schema: str
    table: str
    snapshot: str
    at_us: int
    position: str
    transaction: str = ""


class Origin(Protocol):
    schema: Schema

    def block(self, moment: Moment) -> str:
        """As JSON."""

    def transaction_id(self, moment: Moment) -> str:
        """What Debezium calls the transaction."""

    def blocks(self, moments: Sequence[Moment]) -> pa.StringArray:
        """`block` of changes of one table in many transactions."""

    def place(self, moment: Moment) -> tuple[str, str]:
        """What the source calls a place in its log, and where this one is."""


def origin_of(settings: DebeziumSettings) -> Origin:
    """By the kind of the source; one that is not known here has its position as text."""
    return ORIGINS.get(settings.connector, PlainOrigin)(settings)


class Heads:
    """What the blocks of a connector begin with."""

    def __init__(self, settings: DebeziumSettings) -> None:
        known = {"version": settings.version, "connector": settings.connector, "name": settings.name}
        self.head = encode(known).decode()[:-1] + ',"ts_ms":'
        self._database = encode(settings.database).decode()
        self._tables: dict[tuple[str, str], str] = {}

    def parts(self, moment: Moment) -> tuple[str, str, str]:
        """What stands before the time, between it and the sequence, and for the table."""
        names = moment[:2]
        table = self._tables.get(names)
        if table is None:
            table = self._tables[names] = f',"schema":{_text(moment.schema)},"table":{_text(moment.table)}'
        return self.head, f',"snapshot":"{moment.snapshot}","db":{self._database},"sequence":', table

    def written(self, moment: Moment, sequence: str) -> str:
        """Up to the table. A `sequence` is JSON."""
        head, snapshot, table = self.parts(moment)
        at_us = moment.at_us
        return f'{head}{at_us // 1000}{snapshot}{sequence},"ts_us":{at_us},"ts_ns":{at_us * 1000}{table}'


def _text(value: Any) -> str:
    return encode(value).decode()


_COMMON = {"version": ("string", False), "connector": ("string", False), "name": ("string", False)}
_TIMES = {"ts_us": ("int64", True), "ts_ns": ("int64", True), "schema": ("string", False), "table": ("string", False)}


def _fields(own: dict[str, tuple[str, bool]]) -> list[Schema]:
    return [
        *fields_of({**_COMMON, "ts_ms": ("int64", False)}),
        SNAPSHOT_FIELD,
        *fields_of({"db": ("string", False), "sequence": ("string", True), **_TIMES, **own}),
    ]


class PostgresOrigin:
    schema = struct(
        _fields(
            {
                "txId": ("int64", True),
                "lsn": ("int64", True),
                "xmin": ("int64", True),
                "origin": ("string", True),
                "origin_lsn": ("int64", True),
            }
        ),
        "io.debezium.connector.postgresql.Source",
        1,
    )

    def __init__(self, settings: DebeziumSettings) -> None:
        self._heads = Heads(settings)

    def block(self, moment: Moment) -> str:
        lsn = lsn_of(moment.position)
        written = "null" if lsn is None else lsn
        xid = moment.transaction if moment.transaction.isdigit() else "null"
        head = self._heads.written(moment, _sequence(lsn, moment))
        return f'{head},"txId":{xid},"lsn":{written},"xmin":null,"origin":null,"origin_lsn":null}}'

    def blocks(self, moments: Sequence[Moment]) -> pa.StringArray:
        """Written around the first one's, for the rest of them differ in numbers only."""
        lsns = [lsn_of(moment.position) for moment in moments]
        if not moments or None in lsns or not all(moment.transaction.isdigit() for moment in moments):
            return pa.array([self.block(moment) for moment in moments], pa.string())
        lsn = pa.array(lsns, pa.uint64()).cast(pa.string())
        at_us = pa.array([moment.at_us for moment in moments], pa.int64())
        ms, us = pc.divide(at_us, 1000).cast(pa.string()), at_us.cast(pa.string())
        xid = pa.array([moment.transaction for moment in moments], pa.string())
        head, snapshot, table = self._heads.parts(moments[0])
        sequence = ['"[\\"', lsn, '\\",\\"', lsn, '\\"]","ts_us":']
        ns = pc.if_else(pc.equal(at_us, 0), us, join([us, "000"]))  # as text: its integers may be past 64 bits
        tail = [f'{table},"txId":', xid, ',"lsn":', lsn, ',"xmin":null,"origin":null,"origin_lsn":null}']
        return join([head, ms, snapshot, *sequence, us, ',"ts_ns":', ns, *tail])

    def transaction_id(self, moment: Moment) -> str:
        lsn = lsn_of(moment.position)
        return moment.transaction if lsn is None else f"{moment.transaction}:{lsn}"

    def place(self, moment: Moment) -> tuple[str, str]:
        lsn = lsn_of(moment.position)
        return ("position", moment.position) if lsn is None else ("lsn", str(lsn))


def lsn_of(position: str) -> int | None:
    match = _LSN.fullmatch(position)
    return None if match is None else (int(match[1], 16) << 32) | int(match[2], 16)


def _sequence(lsn: int | None, moment: Moment) -> str:
    """Debezium's pair: what was last committed, and where this one is. A transaction that we know whole is both."""
    if lsn is None:
        return "null"
    return f'"[\\"{lsn}\\",\\"{lsn}\\"]"' if moment.transaction else f'"[null,\\"{lsn}\\"]"'


class BinlogOrigin:
    """MySQL and MariaDB: the database stands in `db`, and there is no `schema`.

    A server whose transactions have GTIDs is followed by those: `file` is empty and `pos` 0 then, as we do not know
    them. Else they are where the transaction ends. `row` is 0 and `thread` and `query` are null: the log does not keep
    them. Of a row of a snapshot, `gtid` is the set that the snapshot had seen.
    """

    def __init__(self, settings: DebeziumSettings) -> None:
        self._heads = Heads(settings)
        own = {
            "table": ("string", True),
            "server_id": ("int64", False),
            "gtid": ("string", True),
            "file": ("string", False),
            "pos": ("int64", False),
            "row": ("int32", False),
            "thread": ("int64", True),
            "query": ("string", True),
        }
        fields = [
            *fields_of({**_COMMON, "ts_ms": ("int64", False)}),
            SNAPSHOT_FIELD,
            *fields_of({"db": ("string", False), "sequence": ("string", True)}),
            *fields_of({"ts_us": ("int64", True), "ts_ns": ("int64", True), **own}),
        ]
        self.schema = struct(fields, f"io.debezium.connector.{settings.connector}.Source", 1)

    def block(self, moment: Moment) -> str:
        place = Binlog.parse(moment.position)
        gtid = None if place is not None else moment.transaction or moment.position or None
        file, pos = ("", 0) if place is None else (f"{place.name}.{place.digits}", place.offset)
        at_us = moment.at_us
        own = f'"server_id":{_server_id(gtid)},"gtid":{_text(gtid)},"file":{_text(file)},"pos":{pos}'
        return (
            f'{self._heads.head}{at_us // 1000},"snapshot":"{moment.snapshot}","db":{_text(moment.schema)},'
            f'"sequence":null,"ts_us":{at_us},"ts_ns":{at_us * 1000},"table":{_text(moment.table or None)},{own},'
            '"row":0,"thread":null,"query":null}'
        )

    def blocks(self, moments: Sequence[Moment]) -> pa.StringArray:
        return pa.array([self.block(moment) for moment in moments], pa.string())

    def transaction_id(self, moment: Moment) -> str:
        place = Binlog.parse(moment.transaction)
        return moment.transaction if place is None else f"file={place.name}.{place.digits},pos={place.offset}"

    def place(self, moment: Moment) -> tuple[str, str]:
        is_file = Binlog.parse(moment.position) is not None
        return "pos" if is_file else "gtid", moment.position if is_file else moment.transaction or moment.position


def _server_id(gtid: str | None) -> int:
    """A GTID of MariaDB has it in its midst; 0, as for a row of a snapshot, where nobody tells."""
    found = _MARIADB_GTID.fullmatch(gtid or "")
    return int(found[1]) if found is not None else 0


class PlainOrigin:
    """A source that Debezium has no connector for: its position as it is."""

    def __init__(self, settings: DebeziumSettings) -> None:
        self._heads = Heads(settings)
        self.schema = struct(
            _fields({"txId": ("string", True), "position": ("string", True)}),
            f"io.debezium.connector.{settings.connector}.Source",
            1,
        )

    def block(self, moment: Moment) -> str:
        own = f',"txId":{_text(moment.transaction or None)},"position":{_text(moment.position)}}}'
        return self._heads.written(moment, "null") + own

    def blocks(self, moments: Sequence[Moment]) -> pa.StringArray:
        return pa.array([self.block(moment) for moment in moments], pa.string())

    def transaction_id(self, moment: Moment) -> str:
        return moment.transaction

    def place(self, moment: Moment) -> tuple[str, str]:
        return "position", moment.position


ORIGINS: dict[str, Callable[[DebeziumSettings], Origin]] = {
    "postgresql": PostgresOrigin,
    "postgres": PostgresOrigin,
    "mysql": BinlogOrigin,
    "mariadb": BinlogOrigin,
}
"""By the kind of the source that the changes are of."""
