"""What a sink remembers of one pipeline, in tables of its own beside the data: which run may write, how often it did,
the watermark, table statuses, chunk marks.

Every write is part of the caller's transaction, so what is remembered is always true of the data.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tailrace.errors import SinkChanged, SinkRejected, SinkTaken
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import CATCHING_UP, COPYING, TableState, TableStatus
from tailrace.model.stored import from_json
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.sinks.base import Batch, ChunkMark, Quarantined, Rejected, SinkState
from tailrace.sinks.sql.alterations import Undo
from tailrace.sinks.sql.dialect import Dialect, Session

_KEYS = {"pipeline": "name", "name": "name", "generation": "integer", "number": "integer"}
TABLES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "watermarks": (
        {
            "pipeline": "name",
            "log_id": "text",
            "log_offset": "integer",
            "position": "text",
            "source": "text",
            "committed_at": "moment",
        },
        ("pipeline",),
    ),
    "runs": ({"pipeline": "name", "run": "text", "claimed_at": "moment"}, ("pipeline",)),
    "commits": ({"pipeline": "name", "number": "integer"}, ("pipeline",)),
    "tables": (
        {"pipeline": "name", "name": "name", "status": "text", "undo": "text", "ahead": "text"},
        ("pipeline", "name"),
    ),
    "quarantine": (
        {
            "pipeline": "name",
            "id": "name",
            "quarantined_at": "moment",
            "source_table": "text",
            "operation": "text",
            "row_key": "text",
            "log_id": "text",
            "log_offset": "integer",
            "position": "text",
            "reason": "text",
            "payload": "text",
        },
        ("pipeline", "id"),
    ),
    "chunks": (_KEYS | {"chunk": "text", "is_loaded": "flag", "row_count": "integer"}, tuple(_KEYS)),
}
"""Our tables: the kind of each column, and the key."""
PAYLOAD_CHARACTERS = 1 << 17
"""What is kept of a row that was set aside: servers limit what a statement may have, and the source has the row."""
JUST_READ = "just read "
"""How the mark of a table begins that is ahead, nobody knows yet up to where."""
NOTE = "what tailrace remembers; not to be changed by hand"


class Notes:
    """The notes of one pipeline in one sink, filed under `owner`."""

    def __init__(self, dialect: Dialect, owner: str) -> None:
        self._dialect, self._owner = dialect, owner
        self._targets = {name: dialect.naming.own(name) for name in TABLES}
        self._names = {name: dialect.naming.qualified(target) for name, target in self._targets.items()}

    def exists(self, session: Session) -> bool:
        """Whether there is what `read` reads; an older tailrace did not count commits."""
        read = [target for name, target in self._targets.items() if name != "commits"]
        return all(self._dialect.catalog.existing(session, target) is not None for target in read)

    def is_complete(self, session: Session) -> bool:
        """Whether they have all columns; those that an older tailrace made may lack some."""
        found = {name: self._dialect.catalog.existing(session, target) for name, target in self._targets.items()}
        return all(
            table is not None and TABLES[name][0].keys() <= {column.name for column in table.columns}
            for name, table in found.items()
        )

    def create(self, session: Session) -> None:
        """Our schema and our tables, if they are missing; and the columns that an older tailrace did not have."""
        dialect = self._dialect
        for name, (columns, key) in TABLES.items():
            target = self._targets[name]
            existing = dialect.catalog.existing(session, target)
            if existing is not None:
                for column in columns.keys() - {each.name for each in existing.columns}:
                    type_ = dialect.types.own[columns[column]]
                    session.execute(
                        f"ALTER TABLE {self._names[name]} ADD COLUMN {dialect.naming.quote(column)} {type_}"
                    )
                continue
            if not dialect.catalog.has_schema(session, target.schema):
                session.execute(dialect.statements.create_schema(target.schema))
            lines = [f"{dialect.naming.quote(column)} {dialect.types.own[kind]}" for column, kind in columns.items()]
            for statement in dialect.statements.create_table(
                self._names[name], lines, dialect.naming.quoted(key), NOTE
            ):
                session.execute(statement)

    def read(self, session: Session) -> SinkState:
        chunks: dict[str, list[ChunkMark]] = {}
        columns = ["name", "generation", "number", "chunk", "is_loaded", "row_count"]
        for table, generation, _, chunk, is_loaded, rows in sorted(self._select(session, "chunks", columns)):
            if (planned := _chunk(chunk)) is not None:
                chunks.setdefault(table, []).append(ChunkMark(generation, planned, bool(is_loaded), rows))
        tables = {status.table: status for status in self.statuses(session)}
        is_counted = self._dialect.catalog.existing(session, self._targets["commits"]) is not None
        return SinkState(self.watermark(session), tables, chunks, self.commits(session) if is_counted else 0)

    def claim(self, session: Session, run: str) -> None:
        self._write(session, "runs", {"run": run}, {"claimed_at": "CURRENT_TIMESTAMP"})
        self._write(session, "commits", {"number": 0})

    def check_claim(self, session: Session, run: str) -> None:
        """Raise SinkTaken unless this run's claim is the last one; no other can be made before the transaction ends."""
        found = self._select(session, "runs", ["run"], lock=self._dialect.server.share_lock)
        last = found[0][0] if found else ""
        if last != run:
            raise SinkTaken(f"another run of {self._owner} writes to the sink now; this one must not any more")

    def commits(self, session: Session) -> int:
        """How many commits the run that claimed the sink has made."""
        found = self._select(session, "commits", ["number"])
        return int(found[0][0]) if found else 0

    def count_commit(self, session: Session) -> None:
        self._write(session, "commits", {"number": self.commits(session) + 1})

    def statuses(self, session: Session) -> list[TableStatus]:
        return [_status(text) for (text,) in self._select(session, "tables", ["status"])]

    def is_active(self, session: Session, owner: str) -> bool:
        """Whether another pipeline's sink has notes here."""
        name = self._dialect.naming.quote("pipeline")
        return any(
            session.execute(f"SELECT 1 FROM {self._names[table]} WHERE {name} = %s LIMIT 1", [owner])
            for table in ("watermarks", "tables")
        )

    def watermark(self, session: Session) -> Watermark | None:
        found = self._select(session, "watermarks", ["log_id", "log_offset", "position", "source"])
        if not found:
            return None
        log_id, offset, position, source = found[0]
        known = from_json(source, SourceIdentity) if source else None
        return Watermark(log_id, offset, position, known)

    def status(self, session: Session, table: str) -> TableStatus | None:
        found = self._select(session, "tables", ["status"], name=table)
        return _status(found[0][0]) if found else None

    def is_committed(self, session: Session, batch: Batch) -> bool:
        """True for a batch that is in the sink already, whoever lost the answer.

        Raises SinkChanged where the sink is neither before the batch nor behind it.
        """
        stored = self.watermark(session)
        known = {new.table: self.status(session, new.table) for new in batch.tables}
        is_there = batch.watermark.is_at(stored) if batch.watermark is not None else bool(batch.tables)
        if is_there and all(known[new.table] == new for new in batch.tables):
            return True
        if batch.commits is not None:
            self._refuse_loss(session, batch.commits, batch.tables)
        if batch.watermark is not None and not _is_same(stored, batch.before):
            there = "gone" if stored is None else f"offset {stored.offset}"
            raise SinkChanged(f"the watermark of {self._owner} in the sink is {there}, and not where this run left it")
        for table, place in batch.places.items():
            status = known[table]
            if status is None or not status.watermark.is_at(place):
                raise SinkChanged(f"{table} is not where this run left it in the sink of {self._owner}")
        return False

    def _refuse_loss(self, session: Session, commits: int, new: Iterable[TableStatus]) -> None:
        """Raise SinkChanged if the last commits are not there, or the copy of a table that is to catch up is not."""
        if (number := self.commits(session)) != commits:
            raise SinkChanged(
                f"the sink of {self._owner} has {number} commits of this run, and had {commits}: a crash or a"
                " failover may have lost the last ones"
            )
        for status in new:
            if status.state in CATCHING_UP and not self._is_copied(session, status):
                raise SinkChanged(f"the copy of {status.table} is not in the sink of {self._owner} as this run left it")

    def _is_copied(self, session: Session, new: TableStatus) -> bool:
        """Whether a table that is to catch up has been copied by its present plan; a torn one lacks chunks of it."""
        stored = self.status(session, new.table)
        if stored is None or stored.generation != new.generation:
            return False
        if stored.state not in COPYING or new.state is TableState.TORN:
            return True
        found = self._select(session, "chunks", ["is_loaded"], name=new.table, generation=new.generation)
        return all(is_loaded for (is_loaded,) in found)

    def is_loaded(self, session: Session, mark: ChunkMark) -> bool:
        """A chunk of a plan that was given up counts as loaded. Holds the mark until the transaction ends."""
        place = {"name": mark.table, "generation": mark.generation, "number": mark.number}
        found = self._select(session, "chunks", ["is_loaded"], lock=self._dialect.server.update_lock, **place)
        return not found or bool(found[0][0])

    def write_watermark(self, session: Session, mark: Watermark) -> None:
        source = "" if mark.source is None else msgspec.json.encode(mark.source).decode()
        row = {"log_id": mark.log_id, "log_offset": mark.offset, "position": mark.position, "source": source}
        self._write(session, "watermarks", row, {"committed_at": "CURRENT_TIMESTAMP"})

    def write_status(self, session: Session, status: TableStatus) -> None:
        self._write(session, "tables", {"name": status.table, "status": msgspec.json.encode(status).decode()})

    def write_undo(self, session: Session, table: str, undo: Undo | None) -> None:
        """What is to be done if the change of a table that begins now is never committed; None once it is."""
        condition, parameters = self._where(name=table)
        text = None if undo is None else msgspec.json.encode(undo).decode()
        column = self._dialect.naming.quote("undo")
        session.execute(f"UPDATE {self._names['tables']} SET {column} = %s WHERE {condition}", [text, *parameters])

    def undos(self, session: Session) -> dict[str, Undo]:
        """The changes in place that were begun and not committed, by table."""
        found = self._select(session, "tables", ["name", "undo"])
        return {name: from_json(text, Undo) for name, text in found if text}

    def mark_ahead(self, session: Session, table: str) -> None:
        """Rows of the table were read from the source just now, and are newer than the watermark."""
        self._write_ahead(session, f"{JUST_READ}{uuid.uuid4().hex}", name=table)

    def tend_ahead(self, session: Session, table: str, before: str, now: str) -> None:
        """Another mark in the place of `before`, unless rows were read again since; empty for none."""
        self._write_ahead(session, now, name=table, ahead=before)

    def ahead(self, session: Session) -> dict[str, str]:
        """The marks of tables that have rows which are newer than the watermark."""
        return {name: mark for name, mark in self._select(session, "tables", ["name", "ahead"]) if mark}

    def _write_ahead(self, session: Session, mark: str, **where: str) -> None:
        condition, parameters = self._where(**where)
        column = self._dialect.naming.quote("ahead")
        session.execute(f"UPDATE {self._names['tables']} SET {column} = %s WHERE {condition}", [mark, *parameters])

    def rename(self, session: Session, names: Mapping[str, str]) -> None:
        """What is remembered of tables goes on under their new names."""
        quote = self._dialect.naming.quote
        for old, new in names.items():
            if old == new:
                continue
            for table, column in (("tables", "name"), ("quarantine", "source_table")):
                condition, parameters = self._where(**{column: old})
                session.execute(
                    f"UPDATE {self._names[table]} SET {quote(column)} = %s WHERE {condition}", [new, *parameters]
                )

    def replace_marks(self, session: Session, table: str, marks: list[ChunkMark]) -> None:
        self._delete(session, "chunks", name=table)
        for mark in marks:
            row = {"name": mark.table, "generation": mark.generation, "number": mark.number}
            chunk = msgspec.json.encode(mark.chunk).decode()
            rest = {"chunk": chunk, "is_loaded": int(mark.is_loaded), "row_count": mark.rows}
            self._write(session, "chunks", row | rest)

    def mark_loaded(self, session: Session, mark: ChunkMark, rows: int) -> None:
        condition, parameters = self._where(name=mark.table, generation=mark.generation, number=mark.number)
        names = self._dialect.naming.quote("is_loaded"), self._dialect.naming.quote("row_count")
        statement = f"UPDATE {self._names['chunks']} SET {names[0]} = %s, {names[1]} = %s WHERE {condition}"
        session.execute(statement, [1, rows, *parameters])

    def write_rejected(self, session: Session, rejected: Iterable[Rejected], place: Watermark) -> None:
        for item in rejected:
            row = {
                "id": uuid.uuid4().hex,
                "source_table": item.table,
                "operation": item.operation,
                "row_key": msgspec.json.encode(item.key).decode(),
                "log_id": place.log_id,
                "log_offset": place.offset,
                "position": place.position,
                "reason": item.reason,
                "payload": msgspec.json.encode(_kept(item.payload)).decode(),
            }
            self._write(session, "quarantine", row, {"quarantined_at": "CURRENT_TIMESTAMP"})

    def quarantined(self, session: Session) -> list[Quarantined]:
        columns = ["id", "quarantined_at", "source_table", "operation", "row_key", "reason", "payload"]
        found = self._select(session, "quarantine", [*columns, "log_id", "log_offset", "position"])
        entries = [
            Quarantined(
                id_,
                str(at),
                Rejected(table, operation, msgspec.json.decode(key), reason, msgspec.json.decode(payload)),
                Watermark(*place),
            )
            for id_, at, table, operation, key, reason, payload, *place in found
        ]
        return sorted(entries, key=lambda e: (e.at, e.place.offset, e.rejected.table, str(e.rejected.key)))

    def quarantined_keys(self, session: Session, table: str) -> list[dict[str, Any]]:
        """Of the rows of a table that were set aside."""
        found = self._select(session, "quarantine", ["row_key"], source_table=table)
        return [msgspec.json.decode(key) for (key,) in found]

    def drop_quarantined(self, session: Session, **where: str) -> None:
        self._delete(session, "quarantine", **where)

    def forget(self, session: Session) -> None:
        for name in TABLES:
            self._delete(session, name)

    def _select(
        self, session: Session, table: str, columns: list[str], lock: str = "", **where: Any
    ) -> list[tuple[Any, ...]]:
        condition, parameters = self._where(**where)
        selected = self._dialect.naming.quoted(columns)
        return session.execute(f"SELECT {selected} FROM {self._names[table]} WHERE {condition}{lock}", parameters)

    def _delete(self, session: Session, table: str, **where: Any) -> None:
        condition, parameters = self._where(**where)
        session.execute(f"DELETE FROM {self._names[table]} WHERE {condition}", parameters)

    def _where(self, **where: Any) -> tuple[str, list[Any]]:
        pairs = {"pipeline": self._owner} | where
        return " AND ".join(f"{self._dialect.naming.quote(name)} = %s" for name in pairs), list(pairs.values())

    def _write(self, session: Session, table: str, row: dict[str, Any], computed: dict[str, str] | None = None) -> None:
        """Insert a row of ours, or replace it where its key is there. `computed` are columns given as SQL."""
        quote = self._dialect.naming.quote
        values = {"pipeline": self._owner} | row
        given = dict.fromkeys(values, "%s") | (computed or {})
        key = TABLES[table][1]
        marks = ", ".join(f"{value} AS {quote(name)}" for name, value in given.items())
        others = {quote(name): f"s.{quote(name)}" for name in given if name not in key}
        query = f"SELECT {', '.join(f's.{quote(name)}' for name in given)} FROM (SELECT {marks}) s"
        statement = self._dialect.statements.insert(
            self._names[table], self._dialect.naming.quoted(given), query, [quote(name) for name in key], others
        )
        session.execute(statement, list(values.values()))


def _is_same(one: Watermark | None, other: Watermark | None) -> bool:
    return other is None if one is None else one.is_at(other)


def _kept(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as far as there is room, the shortest first."""
    kept, room = dict(payload), PAYLOAD_CHARACTERS
    texts = {name: value for name, value in payload.items() if isinstance(value, str)}
    for name in sorted(texts, key=lambda name: len(texts[name])):
        size = len(texts[name])
        kept[name] = texts[name] if size <= room else f"{texts[name][:room]}… of {size} characters"
        room = max(room - size, 0)
    return kept


def _chunk(text: str) -> Chunk | None:
    """None for one that another version has planned: without its plan a copy begins anew."""
    try:
        return from_json(text, Chunk)
    except msgspec.ValidationError:
        return None


def _status(text: str) -> TableStatus:
    try:
        return from_json(text, TableStatus)
    except msgspec.ValidationError as error:
        raise SinkRejected(
            "what the sink remembers of the pipeline was written by another version of tailrace",
            hint="run `tailrace drop` on this pipeline, then `tailrace run`: every table is copied again",
        ) from error
