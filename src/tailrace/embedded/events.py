"""Changes as plain events: a column at a time, and only then row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

import numpy as np

from tailrace.columns.plain import Row, rows_of
from tailrace.embedded.runs import Run
from tailrace.embedded.versions import version_of
from tailrace.model.changes import Changes, Op
from tailrace.model.event import Event, EventOp, Transaction
from tailrace.model.schema import Identity, TableSchema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OPS = [EventOp.INSERT, EventOp.UPDATE, EventOp.DELETE, EventOp.TRUNCATE]


class Told:
    """What a part's transactions are called, where they end and when they were committed, each by its row."""

    def __init__(self, ids: list[str], positions: list[str], times_us: Iterable[int]) -> None:
        self.ids, self.positions = ids, positions
        self.times = [EPOCH + timedelta(microseconds=us) if us else None for us in times_us]


def events_of(run: Run, told: Told, known: dict[str, str]) -> tuple[int, Iterator[Event]]:
    """How many there are, and each in commit order.

    `known` are the versions of tables that were delivered before; it learns those of the run.
    """
    flat: list[Event] = []
    number = np.empty(len(run), np.int64)
    number[run.order] = run.number
    numbers: list[int] = number.tolist()
    firsts: dict[int, TableSchema] = {}
    for changes, own in zip(run.changes, run.table_numbers, strict=True):
        if is_news(known, changes.schema):
            firsts[len(flat)] = changes.schema
        flat += _events(changes, numbers[len(flat) : len(flat) + len(changes)], own.tolist(), told)
    for message, place in zip(run.logged, numbers[len(flat) :], strict=True):
        flat.append(_message(message.message, message.transaction, place, told))
    if firsts:
        return len(flat) + len(firsts), _with_schemas(flat, run.order.tolist(), firsts)
    is_ordered = len(run.changes) + bool(run.logged) == 1
    return len(flat), iter(flat) if is_ordered else map(flat.__getitem__, run.order.tolist())


def is_news(known: dict[str, str], schema: TableSchema) -> bool:
    """Whether the table was delivered with other columns before; `known` learns what it has now."""
    version, table = version_of(schema), schema.table
    before = known.get(table)
    known[table] = version
    return before is not None and before != version


def _with_schemas(flat: list[Event], order: list[int], firsts: Mapping[int, TableSchema]) -> Iterator[Event]:
    """Each new version is told before its first change."""
    for place in order:
        event = flat[place]
        if place in firsts:
            facts = {"op": EventOp.SCHEMA, "key": None, "before": None, "after": None, "unchanged": ()}
            yield _replaced(event, facts)
        yield event


def _replaced(event: Event, facts: Mapping[str, Any]) -> Event:
    return Event(**{name: facts.get(name, getattr(event, name)) for name in Event.__struct_fields__})


def _events(changes: Changes, numbers: Sequence[int], own: Sequence[int], told: Told) -> list[Event]:
    schema, ops = changes.schema, changes.op.tolist()
    rows = changes.transaction.tolist()
    after: list[Row | None] = list(rows_of(changes.after, schema))
    keys = _keys(changes)
    if changes.op.max() >= Op.DELETE:
        after = [None if op >= Op.DELETE else row for op, row in zip(ops, after, strict=True)]
        keys = [None if op == Op.TRUNCATE else key for op, key in zip(ops, keys, strict=True)]
    unchanged = _leave_out(changes, after)
    positions, ids, times = told.positions, told.ids, told.times
    return list(
        map(
            Event,
            [OPS[op] for op in ops],
            repeat(schema.table),
            keys,
            _befores(changes),
            after,
            [positions[row] for row in rows],
            map(Transaction, [ids[row] for row in rows], numbers, own),
            [times[row] for row in rows],
            unchanged,
            repeat(schema),
        )
    )


def _keys(changes: Changes) -> Sequence[Row | None]:
    schema = changes.schema
    return rows_of(changes.after, schema, schema.key) if schema.key else [None] * len(changes)


def _befores(changes: Changes) -> Sequence[Row | None]:
    """What was sent of old rows: all of them where the identity is, and otherwise their keys."""
    found: list[Row | None] = [None] * len(changes)
    if len(changes.before_rows):
        schema = changes.schema
        names = None if schema.identity is Identity.FULL or not schema.key else schema.key
        for row, before in zip(changes.before_rows.tolist(), rows_of(changes.before, schema, names), strict=True):
            found[row] = before
    return found


def _leave_out(changes: Changes, after: list[Row | None]) -> Iterable[tuple[str, ...]]:
    """The columns that were not sent, by row; the rows lack them."""
    if changes.unchanged is None:
        return repeat(())
    names = changes.schema.arrow.names
    found: list[tuple[str, ...]] = [()] * len(changes)
    for row in np.flatnonzero(changes.unchanged.any(axis=1)).tolist():
        found[row] = tuple(names[column] for column in np.flatnonzero(changes.unchanged[row]).tolist())
        for name in found[row]:
            (after[row] or {}).pop(name)
    return found


def _message(message: Any, row: int, number: int, told: Told) -> Event:
    return Event(
        op=EventOp.MESSAGE,
        table="",
        key=None,
        before=None,
        after=None,
        position=told.positions[row],
        transaction=Transaction(told.ids[row], number) if message.is_transactional else None,
        commit_time=told.times[row] if message.is_transactional else None,
        message=message,
    )
