"""OpenSearch as a sink: its tables are documents, virtual tables of `id`, `document`, `rows` and `key`.

Tasks write documents at once, each by itself, with a version that lets no older one win (`Atomic.ROW`). The driver then
remembers that the batch is there. So a reader may see a document before the watermark says so, and never one that is
older; a batch that is done again writes the same documents.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pyarrow as pa

from tailrace import config
from tailrace.columns.net import NetChanges
from tailrace.config import OnError, TablePatterns
from tailrace.config.describing import tables_of
from tailrace.config.patterns import by_table
from tailrace.documents.apart import Refused
from tailrace.errors import ConfigError, SinkChanged, SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import CATCHING_UP, COPYING, TableState, TableStatus
from tailrace.model.names import parse_table
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import (
    Atomic,
    Batch,
    ChunkMark,
    Documents,
    FetchRows,
    Quarantined,
    Quarantines,
    Rejected,
    RowSink,
    SinkState,
    Snapshots,
    Verifies,
)
from tailrace.sinks.opensearch.bodies import Piece, deletes, upserts
from tailrace.sinks.opensearch.claim import Claim
from tailrace.sinks.opensearch.client import Client
from tailrace.sinks.opensearch.commits import Commits, Written
from tailrace.sinks.opensearch.generations import Generations
from tailrace.sinks.opensearch.naming import Names, memory_of, shown_as
from tailrace.sinks.opensearch.quarantine import Quarantine
from tailrace.sinks.opensearch.remembering import RememberedDocuments, gone, pages
from tailrace.sinks.opensearch.settings import OpenSearchSettings
from tailrace.sinks.opensearch.snapshots import Seeds
from tailrace.sinks.opensearch.state import Record, State
from tailrace.sinks.opensearch.writing import Writer, refusal
from tailrace.sinks.simple import SimpleSink

OLDEST = (2, 8)
"""The first version of OpenSearch that lets one search the primaries."""


class OpenSearchSink(SimpleSink, RowSink, Snapshots, Verifies, Quarantines, Documents):
    """Picklable: connections are made where they are used. Several threads may use it at once."""

    settings_type = OpenSearchSettings
    max_parts = 64
    atomic = Atomic.ROW

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.name, section = name, pipeline.sinks[name]
        self.settings = pipeline.sink_settings(name, OpenSearchSettings)
        self._is_fatal = section.on_error is OnError.STOP
        self._client = Client(section.url, self.settings, name)
        self._names = Names(self.settings.prefix, pipeline.name, name)
        self._state = State(self._client, self._names.state, self.settings.replicas)
        self._generations = Generations(self._client, self._names, self.settings)
        self._claim = Claim(self._state, self._generations, self._names)
        self._quarantine = Quarantine(self._client, self._state, self._generations)
        self._commits = Commits(self._state, self._generations, self._claim, self._quarantine)
        self._seeds = Seeds(
            self._client,
            self._names,
            self._state,
            self._generations,
            self._claim,
            self._quarantine,
            bulk_bytes=self.settings.bulk_bytes,
            is_fatal=self._is_fatal,
        )
        self.documents = _chosen(pipeline, self.settings, name)
        self.flat = _flat(pipeline, self.settings)
        self._flat_names = by_table(section.tables)
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.RLock()}

    # --- what it is, and remembers

    def check(self) -> None:
        version = self._client.ask("GET", "", doing="being checked")["version"]
        number = str(version.get("number", ""))
        found = tuple(int(part) for part in re.findall(r"\d+", number)[:2])
        if version.get("distribution") != "opensearch" or found < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise SinkRejected(f"sink {self.name} is no OpenSearch of version {oldest} or later, but {number}")

    def read_state(self) -> SinkState:
        """A table whose index is gone, or another than it was, is FAILED, whatever is remembered of it."""
        found = self._state.look()
        if found is None:
            return SinkState(None, {}, {})
        held, records = found
        present = self._generations.identities()
        tables = {table: _as_found(record, present) for table, record in records.items()}
        chunks = {table: self._state.marks(record) for table, record in records.items() if record.chunks}
        return SinkState(held.note.watermark, tables, chunks, held.note.commits)

    def claim(self, run: str) -> None:
        with self._lock:
            self._claim.make(run)
            self._commits.settle()

    def check_claim(self) -> None:
        """Readers' aliases that somebody removed are put back; it is said once, as trouble that has passed."""
        with self._lock:
            if tables := self._commits.settle():
                raise SinkChanged(f"somebody removed the alias of {', '.join(tables)}: it is put back")

    def held_as(self, schema: TableSchema) -> str:
        return self._names.readers_alias(schema)

    def clean(self) -> None:
        """Drop the indexes of ours that nobody refers to: a crash left them."""
        with self._lock:
            held = self._state.held_by(self._claim.run)
            known = {i for r in self._state.records(held.note).values() for i in (r.live, r.building)}
            aliases = self._generations.aliases()
            orphans = [index for index in self._generations.owned() if index not in known]
            shown = {shown_as(index) for index in orphans}
            self._generations.drop(index for index in orphans if not shown.intersection(aliases.get(index, ())))

    def forget(self) -> None:
        with self._lock:
            self._generations.unfence()
            self._state.remove()

    def close(self) -> None:
        self._client.close()

    def flat_name(self, schema: TableSchema) -> str:
        """As the file says, or the table's own name; with its schema's where that is not the usual one."""
        own = schema.name if schema.schema == "public" else f"{schema.schema}_{schema.name}"
        return self._flat_names.get(schema.table, own)

    # --- batches

    def begin_build(self, tables: Collection[str] = ()) -> None:
        self._claim.begin_build(tables)

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> Written:
        """Written at once; what is refused is in the receipt, to be set aside with the commit."""
        counts: dict[str, int] = {}
        writers: dict[str, Writer] = {}
        with ExitStack() as stack:
            for net in changes:
                table = net.schema.table
                if table not in writers:
                    writers[table] = stack.enter_context(self._writer(table))
                if net.truncate:
                    self._delete_all(net.schema, writers[table])
                counts[table] = counts.get(table, 0) + writers[table].send(self._pieces(net))
        return Written(counts, tuple(each for writer in writers.values() for each in writer.rejected))

    def _writer(self, table: str) -> Writer:
        return Writer(self._client, self._claim.target(table), self._claim.fenced, is_fatal=self._is_fatal)

    def _pieces(self, net: NetChanges) -> Iterator[Piece]:
        if net.partials:
            raise SinkRejected(f"{net.schema.table} came in part, and a document is written whole")
        version, most = self._claim.version, self.settings.bulk_bytes
        if net.deletes.num_rows:
            yield from deletes(net.deletes.column("id"), version, most)
        if net.upserts.num_rows:
            yield from upserts(net.upserts, version, most)

    def _delete_all(self, schema: TableSchema, writer: Writer) -> None:
        """What is there so far, and before anything is sent that comes after it."""
        writer.wait()
        index = self._claim.target(schema.table).index
        self._generations.refresh(index)
        for hits in pages(self._client, index, schema.table, {"query": {"match_all": {}}, "_source": False}):
            ids = pa.array([hit["_id"] for hit in hits], pa.string())
            writer.send(deletes(ids, self._claim.version, self.settings.bulk_bytes))
        writer.wait()

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        with self._lock:
            return self._commits.commit(batch)

    def set_aside(self, schema: TableSchema, refused: Sequence[Refused]) -> None:
        """At once, as documents are written at once."""
        if refused and self._is_fatal:
            raise refusal(schema.table, refused[0].reason)
        if refused:
            entries = [(each.id, each.reason, {"key": list(each.key)}) for each in refused]
            rejected = [Rejected(schema.table, "upsert", {"id": id_}, reason, own) for id_, reason, own in entries]
            self._quarantine.write(rejected, Watermark("", 0, ""))

    def remembered(self, schema: TableSchema) -> RememberedDocuments:
        return RememberedDocuments(self._client, self._claim.target(schema.table).index, schema.table)

    # --- seeds

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        with self._lock:
            return self._seeds.begin(status, chunks, clear=clear)

    def chunk_form(self, schema: TableSchema) -> str:
        return ""

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        return self._seeds.load(schema, mark, batches)

    def finish_snapshot(self, status: TableStatus) -> None:
        with self._lock:
            self._seeds.finish(status)

    # --- documents that were set aside

    def quarantined(self) -> list[Quarantined]:
        return self._quarantine.entries()

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        return self._quarantine.replay(entries, fetch)

    def drop_quarantined(self, entries: Sequence[Quarantined]) -> None:
        self._quarantine.drop(entries)

    # --- reading back

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        """None also while readers see no index of ours."""
        doing, most = f"counting {schema.table}", max(seconds, 0.1)
        try:
            index = self._seen(schema)
            self._client.ask("POST", f"{index}/_refresh", doing=doing, seconds=most)
            return int(self._client.ask("GET", f"{index}/_count", doing=doing, seconds=most)["count"])
        except (SinkUnavailable, SinkRejected):
            return None

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        index = self._seen(schema)
        self._generations.refresh(index)
        for hits in pages(self._client, index, schema.table, {"query": {"match_all": {}}}):
            yield [(hit["_id"], canonical(hit["_source"])) for hit in hits]

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        ids, documents = batch.column("id").to_pylist(), batch.column("document").to_pylist()
        return [(id_, canonical(msgspec.json.decode(text))) for id_, text in zip(ids, documents, strict=True)]

    def _seen(self, schema: TableSchema) -> str:
        """The index that readers see."""
        seen = self._generations.seen_by_readers(schema)
        if not seen:
            raise SinkRejected(f"readers see no index of {schema.table} yet", table=schema.table)
        return seen[0]


def _chosen(pipeline: config.Pipeline, settings: OpenSearchSettings, name: str) -> dict[str, config.Document]:
    """The documents of the file that the sink holds."""
    names = pipeline.documents if settings.documents is None else settings.documents
    for unknown in (each for each in names if each not in pipeline.documents):
        raise ConfigError(f"sinks.{name}.documents: there is no document {unknown}", hint="describe it in `documents`")
    return {each: pipeline.documents[each] for each in names}


def _flat(pipeline: config.Pipeline, settings: OpenSearchSettings) -> TablePatterns | None:
    """By default all tables that no description has."""
    described = {table for document in pipeline.documents.values() for _, table in tables_of(document)}
    others = ("*.*", *(f"!{_quoted(table)}" for table in sorted(described)))
    patterns = others if settings.flat is None else settings.flat
    return TablePatterns(patterns) if patterns else None


def _quoted(table: str) -> str:
    """As a pattern that matches this table only."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parse_table(table) or (table,))


def canonical(document: Any) -> str:
    """A document as text that is equal if the document is: keys in order, numbers as they are read back."""
    return msgspec.json.encode(document, order="deterministic").decode()


def _as_found(record: Record, present: Mapping[str, str]) -> TableStatus:
    status = record.status
    is_used = status.state in CATCHING_UP | {TableState.LIVE} or (status.state in COPYING and status.visibility)
    if not is_used:
        return status
    if record.target not in present:
        return status.aside(TableState.FAILED, str(gone(status.table, record.target)))
    if record.is_other(present):
        names = f"index {record.target}, or {memory_of(record.target)} beside it,"
        reason = f"{names} was deleted, restored or made again by somebody: it may not be what was written"
        return status.aside(TableState.FAILED, reason)
    return status
