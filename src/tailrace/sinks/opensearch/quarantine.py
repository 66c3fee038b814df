"""Documents that were refused: kept beside the note with their reason, listed, forgotten, or built anew and written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from tailrace.errors import SinkChanged, SinkRejected, SinkUnavailable, ValueRefused
from tailrace.model.lifecycle import TableState
from tailrace.model.stored import from_json
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import FetchRows, Quarantined, Rejected
from tailrace.sinks.opensearch.bodies import Piece, deletes, upserts
from tailrace.sinks.opensearch.client import Client
from tailrace.sinks.opensearch.generations import Generations
from tailrace.sinks.opensearch.memory import PRIMARY, Memory
from tailrace.sinks.opensearch.naming import memory_of
from tailrace.sinks.opensearch.remembering import gone
from tailrace.sinks.opensearch.sending import CONFLICT, Sender, Target, Trouble
from tailrace.sinks.opensearch.settings import MOST_BULK_BYTES
from tailrace.sinks.opensearch.state import Record, State

KIND = "quarantine"
TRIES = 20
_CURRENT = re.compile(r"current version \[(\d+)\]")


class Entry(msgspec.Struct, frozen=True):
    """One document that was refused, as it is stored."""

    table: str
    at: str
    rejected: Rejected
    place: Watermark
    kind: str = KIND


class Quarantine:
    def __init__(self, client: Client, state: State, generations: Generations) -> None:
        self._client, self._state, self._generations = client, state, generations

    def write(self, rejected: Iterable[Rejected], place: Watermark) -> None:
        """One entry a document, however often it is refused."""
        at = datetime.now(UTC).isoformat()
        entries = {_name(each): Entry(each.table, at, each, place) for each in rejected}
        self._state.write(entries, "setting documents aside")

    def entries(self) -> list[Quarantined]:
        found = self._state.search({"term": {"kind": KIND}})
        decoded = [(hit["_id"], from_json(msgspec.json.encode(hit["_source"]), Entry)) for hit in found]
        return [Quarantined(name, entry.at, entry.rejected, entry.place) for name, entry in decoded]

    def drop(self, entries: Sequence[Quarantined]) -> None:
        self._state.delete([entry.id for entry in entries])

    def drop_table(self, table: str) -> None:
        query = {"bool": {"filter": [{"term": {"kind": KIND}}, {"term": {"table": table}}]}}
        self._state.delete([hit["_id"] for hit in self._state.search(query)])

    # --- again

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        """Versions keep it right beside a run: what a run writes meanwhile is newer, and then we look again."""
        found = self._state.look()
        records = {} if found is None else found[1]
        done = [entry for entry in entries if self._write_again(entry.rejected, records, fetch)]
        self.drop(done)
        return len(done)

    def _write_again(self, rejected: Rejected, records: dict[str, Record], fetch: FetchRows) -> bool:
        """False if the document is still refused. One whose root row is gone from the source goes from the sink."""
        record = records.get(rejected.table)
        if record is None or record.status.state is not TableState.LIVE:
            state = "not in the sink" if record is None else f"in the state {record.status.state}"
            hint = "wait until it is live; `tailrace quarantine drop` forgets its documents"
            raise SinkRejected(f"{rejected.table} is {state}", hint=hint, table=rejected.table)
        target = self._target(record)
        identity, version = str(rejected.key["id"]), 0
        for _ in range(TRIES):
            version = max(version, self._version(target.alias, identity), self._version(target.memory, identity))
            try:
                rows = fetch(record.status.schema, _asked(rejected))
            except ValueRefused:
                return False
            piece = _piece(identity, rows, version)
            try:
                trouble = self._write(target, piece)
            except SinkChanged:
                continue
            if trouble is None or trouble.kind != CONFLICT:
                return trouble is None
            version = max(version, *map(int, _CURRENT.findall(trouble.reason)))
        raise SinkUnavailable(f"a document of {rejected.table} is written by the run again and again; try later")

    def _target(self, record: Record) -> Target:
        """By the aliases of readers and of the run: what is gone is not made by writing."""
        table, memory = record.status.table, memory_of(record.live)
        aliases = self._generations.aliases().get(memory, [])
        if not aliases:
            raise gone(table, memory)
        return Target(table, record.live, self._generations.readers_alias(record.status.schema), aliases[0])

    def _version(self, alias: str, identity: str) -> int:
        body = {"docs": [{"_id": identity, "_source": False}]}
        answer = self._client.ask("POST", f"{alias}/_mget", body, doing="looking for a document", parameters=PRIMARY)
        return int(answer["docs"][0].get("_version", 0))

    def _write(self, target: Target, piece: Piece) -> Trouble | None:
        """Why it is refused. Nothing is left out of the memory: a run may have counted on what is there.

        Raises SinkChanged if the run has written to the memory meanwhile: what it has there may lack our rows.
        """
        sender = Sender(self._client, target, target.alias, lambda each: gone(each.table, each.index))
        if piece.rows is None:
            return sender.send(piece).get(0)
        memory = Memory(self._client, target, lambda each: gone(each.table, memory_of(each.index)))
        _, unheld = memory.add(piece, is_seed=False)
        trouble = unheld.get(0) or sender.send(piece).get(0)
        if trouble is None and self._version(target.memory, piece.ids[0].as_py()) != piece.version:
            raise SinkChanged(f"a document of {target.table} is written by the run at the same moment")
        return trouble


def _asked(rejected: Rejected) -> pa.RecordBatch:
    """By its key: not every id can be read back. An earlier version kept none."""
    asked = {"id": [str(rejected.key["id"])]}
    key = rejected.payload.get("key")
    return pa.RecordBatch.from_pydict(asked | {"key": [key]} if key else asked)


def _piece(identity: str, rows: pa.RecordBatch, version: int) -> Piece:
    if rows.num_rows:
        return next(upserts(rows, version, MOST_BULK_BYTES))
    return next(deletes(pa.array([identity], pa.string()), version, MOST_BULK_BYTES))


def _name(rejected: Rejected) -> str:
    digest = hashlib.sha256(msgspec.json.encode([rejected.table, rejected.key])).hexdigest()[:40]
    return f"{KIND}-{digest}"
