"""One change as a plain Python object, for those who take them one at a time.

Values are what Arrow's `as_py` gives of the table's own columns, so that an event and a record batch say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from tailrace.model.schema import TableSchema

Row = Mapping[str, Any]


class EventOp(StrEnum):
    READ = "read"  # a row as a snapshot found it
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    SCHEMA = "schema"  # a table has other columns from here on
    MESSAGE = "message"  # what the application itself wrote into the source's log


class Transaction(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`id` in the source's own words; `number` counts the events of the transaction that we deliver, from 1.

    `table_number` counts those of the event's table, also from 1; it is 0 where nobody has counted.
    """

    id: str
    number: int
    table_number: int = 0


class SourceMessage(msgspec.Struct, frozen=True):
    """PostgreSQL: `pg_logical_emit_message`."""

    prefix: str
    content: bytes
    is_transactional: bool


class Event(msgspec.Struct, frozen=True):
    """What happened to one row, to a table, or in the log.

    `before` is what the source sent of the old row: all of it, its key, or None. `unchanged` names columns that the
    source did not send because they stayed as they were; `after` lacks them, so it is a part of the row then. Of a
    delete there is only `before`; of a truncate and a message neither. `key` is None where the table has none.
    `position` is where the event's transaction ends, in the source's own words; for a read, what its snapshot saw.
    `schema` is the version of the table that the event is of; None for a message.
    """

    op: EventOp
    table: str
    key: Row | None
    before: Row | None
    after: Row | None
    position: str
    transaction: Transaction | None
    commit_time: datetime | None
    unchanged: tuple[str, ...] = ()
    schema: TableSchema | None = None
    message: SourceMessage | None = None
    snapshot: str = (
        ""  # of a read: "" | "first" | "last" of its table's snapshot, with its generation in front: "1:last"
    )
