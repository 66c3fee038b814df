"""What a sink remembers of one pipeline, in an index of its own: who may write, the watermark, tables, chunks.

One document, the note, is replaced by compare-and-set; whatever it names is true, and all else is not there. A table's
record is a document that is never changed: a new one is written first, then the note that names it. Chunks have a mark
each, filed under the index that they are loaded into. All of it is written by an alias, so that an index which somebody
deleted does not come back empty by itself.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import msgspec

from tailrace.errors import SinkChanged, SinkRejected, SinkTaken, SinkUnavailable
from tailrace.model.lifecycle import TableStatus
from tailrace.model.stored import from_json
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.opensearch.client import Answer, Client
from tailrace.sinks.opensearch.settings import AS_SENT

NOTE = "note"
FORMAT = 1
AT_ONCE = 1_000
"""Documents that are read or written together."""
TRIES = 20

T = TypeVar("T")

MAPPING: dict[str, Any] = {
    "dynamic": False,
    "properties": {"kind": {"type": "keyword"}, "table": {"type": "keyword"}, "at": {"type": "keyword"}},
}


class Note(msgspec.Struct, frozen=True):
    """`epoch` counts the claims. `tables` has the name of each table's record; `retired` are indexes to be dropped."""

    run: str = ""
    epoch: int = 0
    commits: int = 0
    watermark: Watermark | None = None
    tables: dict[str, str] = {}
    retired: tuple[str, ...] = ()
    format: int = FORMAT


class Record(msgspec.Struct, frozen=True):
    """A table: its status, the index that readers see, the one that grows beside it, and the chunks of its plan.

    `identities` are what the server called these indexes when they were made: one that was restored has another.
    """

    status: TableStatus
    live: str = ""
    building: str = ""
    chunks: tuple[int, ...] = ()
    identities: dict[str, str] = {}

    @property
    def target(self) -> str:
        """The index that is written to."""
        return self.building or self.live

    def is_other(self, present: Mapping[str, str]) -> bool:
        """Whether the index is not the one that was written to, of those that there are by their identities."""
        known = self.identities.get(self.target)
        return known is not None and self.target in present and present[self.target] != known


class Held(msgspec.Struct, frozen=True):
    """A note as it was read, and its place in the index: it is replaced only if nobody else has."""

    note: Note
    sequence: int
    term: int


class State:
    """The state index of one pipeline's sink."""

    def __init__(self, client: Client, index: str, replicas: int) -> None:
        self._client, self._index, self._replicas = client, index, replicas
        self._alias = f"{index}--notes"
        self._records: dict[str, Record] = {}  # they never change

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_records": {}}

    # --- the note

    def create(self) -> None:
        """The index, if it is missing."""
        doing = "making the index of what the sink remembers"
        if self._client.exists(self._index, doing=doing):
            return
        own = {"number_of_shards": 1, "number_of_replicas": self._replicas, "hidden": True}
        settings = {"index": own | AS_SENT}
        body = {"settings": settings, "mappings": MAPPING, "aliases": {self._alias: {"is_hidden": True}}}
        answer = self._client.ask("PUT", self._index, body, doing=doing, allow=(400,))
        if "error" in answer and answer["error"]["type"] != "resource_already_exists_exception":
            raise SinkRejected(f"index {self._index} can not be made: {answer['error']['reason']}")

    def read(self) -> Held | None:
        """The note as it is at this moment; None where there is none, or no index."""
        answer = self._get(NOTE)
        if not answer.get("found"):
            return None
        note = _decoded(answer["_source"], Note)
        if note.format != FORMAT:
            raise _of_another_version(self._index)
        return Held(note, answer["_seq_no"], answer["_primary_term"])

    def held_by(self, run: str) -> Held:
        """The note of a run that may still write. Raises SinkTaken or SinkChanged."""
        held = self.read()
        if held is None:
            raise self._gone()
        if held.note.run != run:
            raise SinkTaken(f"another run writes to the sink of {self._index} now; this one must not any more")
        return held

    def replace(self, held: Held, note: Note, run: str) -> None:
        """Raises SinkTaken or SinkChanged if the note is not the one that was read."""
        if not self.try_replace(held, note):
            self.held_by(run)
            raise SinkChanged("what the sink remembers was changed by somebody else at the same moment")

    def try_replace(self, held: Held | None, note: Note) -> bool:
        """False if the note is not the one that was read."""
        doing = "writing what the sink remembers"
        if held is None:
            return "error" not in self._put(f"_create/{NOTE}", note, doing)
        place = {"if_seq_no": held.sequence, "if_primary_term": held.term}
        return "error" not in self._put(f"_doc/{NOTE}", note, doing, **place)

    def look(self) -> tuple[Held, dict[str, Record]] | None:
        """The note with the records that it names, also while somebody else writes; None where there is none."""
        for left in reversed(range(TRIES)):
            held = self.read()
            if held is None:
                return None
            with suppress(SinkChanged) if left else nullcontext():  # it has been replaced since
                return held, self.records(held.note)
        return None

    # --- records of tables

    def add_records(self, records: Sequence[Record]) -> dict[str, str]:
        """Write records under names that are new; the names, by table."""
        names = {record.status.table: f"table-{uuid.uuid4().hex}" for record in records}
        self.write({names[record.status.table]: record for record in records}, "writing what the sink remembers")
        self._records |= {names[record.status.table]: record for record in records}
        return names

    def records(self, note: Note) -> dict[str, Record]:
        """By table."""
        known = self._records
        missing = [name for name in note.tables.values() if name not in known]
        found = self._several(missing)
        if lost := [name for name in missing if name not in found]:
            raise SinkChanged(f"index {self._index} lacks {lost[0]}, which it names itself: somebody changed it")
        known = known | {name: _decoded(source, Record) for name, source in found.items()}
        self._records = {name: known[name] for name in note.tables.values()}
        return {table: known[name] for table, name in note.tables.items()}

    # --- chunks

    def plan(self, index: str, marks: Sequence[ChunkMark]) -> None:
        """Before the record that names their index."""
        documents = {_mark(index, mark.generation, mark.number): mark for mark in marks}
        self.write(documents, "writing the plan of a copy")

    def marks(self, record: Record) -> list[ChunkMark]:
        index, generation = record.target, record.status.generation
        found = self._several([_mark(index, generation, number) for number in record.chunks])
        return sorted((_decoded(source, ChunkMark) for source in found.values()), key=lambda mark: mark.number)

    def find_mark(self, index: str, mark: ChunkMark) -> tuple[ChunkMark, int, int] | None:
        """A chunk's mark with its place in the index; None where the plan was given up."""
        answer = self._get(_mark(index, mark.generation, mark.number))
        if not answer.get("found"):
            return None
        return _decoded(answer["_source"], ChunkMark), answer["_seq_no"], answer["_primary_term"]

    def mark_loaded(self, index: str, mark: ChunkMark, sequence: int, term: int) -> bool:
        """False if another attempt was first."""
        path, doing = f"_doc/{_mark(index, mark.generation, mark.number)}", f"marking a chunk of {mark.table}"
        return "error" not in self._put(path, mark, doing, if_seq_no=sequence, if_primary_term=term)

    def forget_marks(self, index: str, generation: int, numbers: Iterable[int]) -> None:
        self.delete([_mark(index, generation, number) for number in numbers])

    # --- documents of any kind

    def write(self, documents: Mapping[str, object], doing: str) -> None:
        """All of them; in several steps where they are many."""
        names = list(documents)
        for first in range(0, len(names), AT_ONCE):
            part = names[first : first + AT_ONCE]
            lines = [line for name in part for line in ({"index": {"_id": name}}, documents[name])]
            self._bulk(lines, doing)

    def delete(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), AT_ONCE):
            lines = [{"delete": {"_id": name}} for name in names[first : first + AT_ONCE]]
            self._bulk(lines, "forgetting what is not needed any more")

    def search(self, query: Mapping[str, object], size: int = 10_000) -> list[Answer]:
        """Documents of ours, at this moment; the oldest first."""
        doing = "reading what the sink remembers"
        self._client.ask("POST", f"{self._alias}/_refresh", doing=doing, allow=(404,))
        body = {"query": query, "size": size, "sort": [{"at": {"order": "asc", "missing": "_last"}}]}
        answer = self._client.ask("POST", f"{self._alias}/_search", body, doing=doing, allow=(404,))
        return list(answer["hits"]["hits"]) if "hits" in answer else []

    def remove(self) -> None:
        """The index, with all that is in it."""
        self._client.ask("DELETE", self._index, doing="forgetting the pipeline", allow=(404,))
        self._records = {}

    def _get(self, name: str) -> Answer:
        return self._client.ask(
            "GET", f"{self._alias}/_doc/{name}", doing="reading what the sink remembers", allow=(404,)
        )

    def _several(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for first in range(0, len(names), AT_ONCE):
            body = {"ids": names[first : first + AT_ONCE]}
            answer = self._client.ask("POST", f"{self._alias}/_mget", body, doing="reading what the sink remembers")
            found |= {doc["_id"]: doc["_source"] for doc in answer["docs"] if doc.get("found")}
        return found

    def _bulk(self, lines: Sequence[object], doing: str) -> None:
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        answer = self._client.bulk(self._alias, body, doing=doing)
        errors = [item["error"] for each in answer["items"] for item in each.values() if "error" in item]
        if any(error["type"] == "index_not_found_exception" for error in errors):
            raise self._gone()
        if errors:
            raise SinkUnavailable(f"index {self._index} does not take what the sink remembers: {errors[0]['type']}")

    def _put(self, path: str, document: object, doing: str, **parameters: object) -> Answer:
        """An error, in the answer, is that of somebody who was first."""
        path = f"{self._alias}/{path}"
        given = {"require_alias": True, **parameters}
        answer = self._client.ask("PUT", path, document, doing=doing, allow=(404, 409), parameters=given)
        if answer.get("status") == 404:
            raise self._gone()
        return answer

    def _gone(self) -> SinkRejected:
        return SinkRejected(
            f"what the sink remembers is gone: somebody deleted index {self._index}, or its alias",
            hint="run the same command again: every document is built again",
        )


def _mark(index: str, generation: int, number: int) -> str:
    digest = hashlib.sha256(f"{index}/{generation}".encode()).hexdigest()[:24]
    return f"chunk-{digest}-{number}"


def _decoded(source: Any, kind: type[T]) -> T:
    try:
        return from_json(msgspec.json.encode(source), kind)
    except msgspec.ValidationError as error:
        raise _of_another_version("") from error


def _of_another_version(index: str) -> SinkRejected:
    return SinkRejected(
        f"what the sink remembers of the pipeline{f', in index {index},' if index else ''} was written by another"
        " version of tailrace",
        hint="run `tailrace drop` on this pipeline, then `tailrace run`: every document is built again",
    )
