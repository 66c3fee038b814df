"""Messages that tasks leave for the commit: files in the state directory, in Arrow's stream format, compressed.

Messages are alike: those of the benchmark become a seventeenth, and to pack, write, read and unpack them takes a fourth
of the CPU time, or less, of writing and reading them as they are. A file is no larger than the driver may hold, and is
unpacked a piece at a time. It is not synced: what a crash takes is staged again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import msgspec
import pyarrow as pa

from tailrace.codecs.base import Encoded, Headers
from tailrace.errors import StateError, StateUnavailable
from tailrace.model.schema import TableSchema
from tailrace.model.stored import from_json, from_msgpack
from tailrace.sinks.base import Rejected
from tailrace.state.storage import Storage, private

FILE_BYTES = 32 << 20
MESSAGES = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", pa.binary())])
HEADERS = list[tuple[str, bytes]]
SUFFIX, CHUNK = ".messages", ".chunk"
PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


class Messages(msgspec.Struct, frozen=True):
    """Consecutive messages of one table; `changes` is of how many changes they are."""

    table: str
    topic: str
    changes: int
    rows: pa.RecordBatch
    everywhere: bool = False  # they are about all keys

    def headers(self) -> dict[int, dict[str, str | bytes | None]]:
        """Of those few that have some."""
        column = self.rows.column("headers")
        if column.null_count == len(column):
            return {}
        told = enumerate(column.to_pylist())
        return {row: dict(from_msgpack(data, HEADERS)) for row, data in told if data is not None}


class Version(msgspec.Struct, frozen=True):
    """How a table looks from a transaction on, as a task found it."""

    schema: TableSchema
    position: str
    at_us: int
    transaction: str


class Staged(msgspec.Struct, frozen=True):
    """A task's receipt: names of files, the topics of the tables in them, and those of which nothing may be sent."""

    files: tuple[str, ...]
    topics: dict[str, str]
    held: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()  # files, too: the changes of each transaction
    versions: tuple[Version, ...] = ()  # of the tables, where somebody is told of them
    aside: tuple[Rejected, ...] = ()  # what is too large to be sent

    def without(self, tables: Collection[str]) -> Staged:
        return msgspec.structs.replace(self, held=(*self.held, *tables))

    def sent(self) -> dict[str, str]:
        """The topics of the tables that something is sent of."""
        return {table: topic for table, topic in self.topics.items() if table not in self.held}


class StagedChunk(msgspec.Struct, frozen=True):
    """What there is of a chunk of a snapshot."""

    files: tuple[str, ...]
    topic: str
    rows: int
    aside: tuple[Rejected, ...] = ()  # beside those


class Writer:
    """One part of a batch, or a chunk, as files."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self.files: list[str] = []
        self.topics: dict[str, str] = {}
        self._sink: pa.BufferOutputStream | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def add(self, table: str, topic: str, encoded: Encoded, changes: int, *, everywhere: bool = False) -> None:
        if not len(encoded):
            return
        self.topics[table] = topic
        if self._stream is None:
            self._sink = pa.BufferOutputStream()
            self._stream = pa.ipc.new_stream(self._sink, MESSAGES, options=PACKED)
        arrays = [encoded.keys, encoded.values, _headers(encoded)]
        told = {"table": table, "topic": topic, "changes": str(changes), "everywhere": str(int(everywhere))}
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=MESSAGES), custom_metadata=told)
        if self._sink is not None and self._sink.tell() > FILE_BYTES:
            self.close()

    def close(self) -> None:
        if self._stream is None or self._sink is None:
            return
        self._stream.close()
        self.files.append(put(self._storage, f"{self._name}-{len(self.files)}", self._sink.getvalue()))
        self._sink = self._stream = None


def read(storage: Storage, files: Iterable[str], held: Collection[str] = ()) -> Iterator[Messages]:
    """All that is to be sent, in order."""
    for rows, told in _batches(storage, files):
        table = told[b"table"].decode()
        if table not in held:
            topic, everywhere = told[b"topic"].decode(), told[b"everywhere"] == b"1"
            yield Messages(table, topic, int(told[b"changes"]), rows, everywhere)


def batches(storage: Storage, files: Iterable[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """What files have of each table, in order."""
    for rows, told in _batches(storage, files):
        yield told[b"table"].decode(), rows


def _batches(storage: Storage, files: Iterable[str]) -> Iterator[tuple[pa.RecordBatch, pa.KeyValueMetadata]]:
    for name in files:
        with pa.ipc.open_stream(pa.py_buffer(_content(storage, name))) as stream:
            while True:
                try:
                    yield stream.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break


def put(storage: Storage, name: str, data: pa.Buffer) -> str:
    """A file of its own; its name says how long it is."""
    own = f"{name}-{uuid.uuid4().hex}-{data.size}{SUFFIX}"
    _write(storage, own, data)
    return own


def _content(storage: Storage, name: str) -> bytes:
    """All of a file: one that a crash cut off would be read as if its messages ended there."""
    try:
        found = storage.read(name)
    except FileNotFoundError as error:
        raise StateUnavailable("what was staged in the state directory is gone: it is staged again") from error
    if len(found) != int(name.removesuffix(SUFFIX).rpartition("-")[2]):
        raise StateUnavailable("what was staged in the state directory is cut off: it is staged again")
    return found


def publish_chunk(storage: Storage, name: str, chunk: StagedChunk) -> None:
    """Whoever is last counts: attempts at a chunk have the same rows, or those of a later snapshot."""
    storage.publish(name, msgspec.json.encode(chunk))


def find_chunk(storage: Storage, name: str) -> StagedChunk | None:
    try:
        return from_json(storage.read(name), StagedChunk)
    except FileNotFoundError:
        return None


def remove(storage: Storage, names: Iterable[str]) -> None:
    for name in names:
        with suppress(StateError):  # it is gone already
            storage.delete(name)


def clean(storage: Storage) -> None:
    """All of it is of batches and copies that are over."""
    remove(storage, [name for suffix in (SUFFIX, CHUNK) for name in storage.sizes(suffix)])


def _write(storage: Storage, name: str, data: pa.Buffer) -> None:
    storage.create()
    if not storage.is_local:
        storage.publish(name, data)
        return
    with open(os.path.join(storage.path, name), "wb", opener=private) as file:
        file.write(data)


def _headers(encoded: Encoded) -> pa.BinaryArray:
    if not encoded.headers:
        return pa.nulls(len(encoded), pa.binary())
    found: list[bytes | None] = [None] * len(encoded)
    for record, own in encoded.headers.items():
        found[record] = _packed(own)
    return pa.array(found, pa.binary())


def _packed(headers: Headers) -> bytes:
    return msgspec.msgpack.encode(headers)
