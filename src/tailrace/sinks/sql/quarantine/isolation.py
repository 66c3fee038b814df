"""Finding the rows that a database refuses, so that the others of their statement can be applied.

A statement that fails because of its rows is tried again on each half of them, down to single rows. Every try has a
savepoint of its own, inside of the sink's one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Rejected
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql.dialect import Dialect, Session
from tailrace.sinks.sql.quarantine.sieve import as_json
from tailrace.sinks.sql.staged import Relation, StagedRows, old

MOST_REFUSED = 1000
"""A batch of which more rows are refused has another problem than its rows."""
MOST_REFUSED_CHARACTERS = 64 << 20
"""How large they may be."""


class Isolation:
    """Runs statements on staged rows. Those that the database refuses end the batch, or are in `refused` afterwards."""

    def __init__(self, dialect: Dialect, session: Session, mapping: SchemaMapping, *, is_fatal: bool) -> None:
        self.dialect, self.session, self.mapping, self._is_fatal = dialect, session, mapping, is_fatal
        self.refused: list[Rejected] = []
        self._size = 0

    def merge(self, source: TableSchema, operation: str, staged: StagedRows, run: Callable[[Relation], object]) -> None:
        relation = self.session.relation(staged)
        if self._is_fatal:
            run(relation)
            return
        types = {column.label: column.type for column in staged.columns}
        texts = {label: self.dialect.reading.key_text(value, types[label]) for label, value in relation.values.items()}
        key = [relation.values[name] for name in self.mapping.schema(source).key]
        order = [relation.number] if relation.number else key or list(texts.values())
        for piece, words in refused_rows(self.session, self.dialect, relation, staged.rows, order, run):
            self._reject(source, operation, piece, texts, words)

    def _reject(self, source: TableSchema, operation: str, row: Relation, texts: dict[str, str], words: str) -> None:
        names = self.mapping.source_names(source)
        columns = {names[label]: text for label, text in texts.items() if label in names}
        [values] = self.session.merge(f"SELECT {', '.join(columns.values())} FROM {row.sql}", row)
        payload = {name: as_json(value) for name, value in zip(columns, values, strict=True)}
        self._size += sum(len(value) for value in payload.values() if isinstance(value, str))
        if self._size > MOST_REFUSED_CHARACTERS:
            raise SinkRejected(f"rows of {source.table} are refused ({words}), and are too large to be set aside")
        key = {name: payload[name] for name in source.key}
        self.refused.append(Rejected(source.table, operation, key, words, payload))
        self._reject_old_key(source, row, texts, words)

    def _reject_old_key(self, source: TableSchema, row: Relation, texts: dict[str, str], words: str) -> None:
        """A row that could not move is still under its old key, and has to go from there as well."""
        labels = [old(name) for name in self.mapping.schema(source).key]
        if not labels or labels[0] not in texts:
            return
        [values] = self.session.merge(f"SELECT {', '.join(texts[label] for label in labels)} FROM {row.sql}", row)
        key = {name: as_json(value) for name, value in zip(source.key, values, strict=True)}
        self.refused.append(Rejected(source.table, "delete", key, words, dict(key)))


def refused_rows(
    session: Session,
    dialect: Dialect,
    relation: Relation,
    count: int,
    order: Sequence[str],
    run: Callable[[Relation], object],
) -> list[tuple[Relation, str]]:
    """Run something on all rows but those that it fails for; these are returned, each with the reason.

    `order` is SQL that orders the rows always in the same way, so that the pieces have each of them once.
    """
    refused: list[tuple[Relation, str]] = []
    waiting = [(0, count)]
    while waiting:
        first, size = waiting.pop()
        piece = relation if size == count else _piece(relation, order, first, size)
        session.execute("SAVEPOINT isolating")
        try:
            run(piece)
        except Exception as error:
            found = dialect.server.explain(error)
            if found is None or not found.is_about_rows or len(refused) == MOST_REFUSED:
                raise
            session.execute("ROLLBACK TO SAVEPOINT isolating")
            if size == 1:
                refused.append((piece, found.words))
            else:
                half = size // 2
                waiting += [(first + half, size - half), (first, half)]
        session.execute("RELEASE SAVEPOINT isolating")
    return refused


def _piece(relation: Relation, order: Sequence[str], first: int, size: int) -> Relation:
    query = f"SELECT * FROM {relation.sql} ORDER BY {', '.join(order)} LIMIT {size} OFFSET {first}"
    return msgspec.structs.replace(relation, sql=f"({query}) AS {relation.alias}")
