"""The `source` block of an envelope: where a change comes from, in the words of its kind of source.

Debezium has the place of each single change in PostgreSQL's log; we know where its transaction ends, so all changes of
a transaction have the same `lsn`, which grows in the order of commits.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Protocol

from tailrace.codecs import canonical
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.schemas import SNAPSHOT_FIELD, fields_of, struct
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.model.event import Event, EventOp
from tailrace.model.names import parse_table

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Origin(Protocol):
    schema: Schema

    def block(self, event: Event, now_us: int) -> dict[str, Any]: ...
    def transaction_id(self, event: Event) -> str | None:
        """What Debezium calls the event's transaction."""


def origin_of(settings: DebeziumSettings) -> Origin:
    return PostgresOrigin(settings) if settings.connector in ("postgresql", "postgres") else PlainOrigin(settings)


def common(settings: DebeziumSettings, event: Event, now_us: int) -> dict[str, Any]:
    """What all sources tell. A row that a snapshot read has the time when it is written."""
    at_us = now_us if event.commit_time is None else microseconds(event.commit_time)
    return {
        "version": settings.version,
        "connector": settings.connector,
        "name": settings.name,
        "ts_ms": at_us // 1000,
        "snapshot": snapshot_of(event),
        "db": settings.database,
        "sequence": None,
        "ts_us": at_us,
        "ts_ns": at_us * 1000,
    }


def microseconds(moment: datetime) -> int:
    return canonical.microseconds_of(moment)


def snapshot_of(event: Event) -> str:
    """The first generation is the initial copy; later ones were asked for while the stream flowed."""
    if event.op is not EventOp.READ:
        return "false"
    generation, _, place = event.snapshot.rpartition(":")
    if generation not in ("", "1"):
        return "incremental"
    return f"{place}_in_data_collection" if place else "true"


def names_of(event: Event) -> tuple[str, str]:
    """Schema and name of the table; empty for a message."""
    if event.schema is not None:
        return event.schema.schema, event.schema.name
    return parse_table(event.table) or ("", "")


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
        self.settings = settings

    def block(self, event: Event, now_us: int) -> dict[str, Any]:
        schema, table = names_of(event)
        lsn = lsn_of(event.position)
        xid = event.transaction.id if event.transaction is not None else ""
        block = common(self.settings, event, now_us) | {"sequence": sequence_of(lsn, is_read=event.op is EventOp.READ)}
        own = {
            "txId": int(xid) if xid.isdigit() else None,
            "lsn": lsn,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        }
        return block | {"schema": schema, "table": table} | own

    def transaction_id(self, event: Event) -> str | None:
        if event.transaction is None:
            return None
        lsn = lsn_of(event.position)
        return event.transaction.id if lsn is None else f"{event.transaction.id}:{lsn}"


def lsn_of(position: str) -> int | None:
    match = _LSN.fullmatch(position)
    return None if match is None else (int(match[1], 16) << 32) | int(match[2], 16)


def sequence_of(lsn: int | None, *, is_read: bool) -> str | None:
    """Debezium's pair: what was last committed, and where this one is. A whole transaction is both."""
    if lsn is None:
        return None
    return f'[null,"{lsn}"]' if is_read else f'["{lsn}","{lsn}"]'


class PlainOrigin:
    """A source that Debezium has no connector for: its position as it is."""

    def __init__(self, settings: DebeziumSettings) -> None:
        self.settings = settings
        self.schema = struct(
            _fields({"txId": ("string", True), "position": ("string", True)}),
            f"io.debezium.connector.{settings.connector}.Source",
            1,
        )

    def block(self, event: Event, now_us: int) -> dict[str, Any]:
        schema, table = names_of(event)
        own = {"schema": schema, "table": table, "txId": self.transaction_id(event), "position": event.position}
        return common(self.settings, event, now_us) | own

    def transaction_id(self, event: Event) -> str | None:
        return None if event.transaction is None else event.transaction.id
