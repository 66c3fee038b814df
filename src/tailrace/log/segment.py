"""One immutable file of the change log.

Layout, version 1, little-endian:

    8 bytes   "TAILRACE"
    u32       format version
    u32       length of the header
    u32       CRC-32 of the header
    header    msgpack: `Header`
    body      Arrow IPC stream (lz4): the transactions
              Arrow IPC stream (lz4): the messages, one binary column

Guarantee: `read` gives exactly what `encode` was given, or raises LogCorrupt; it needs no other file. The file's name
carries the offsets, so that planning needs a directory listing and nothing more.
"""

from __future__ import annotations

import re
import struct
import zlib

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.errors import LogCorrupt, OffsetGone
from tailrace.log.storage import Storage
from tailrace.model.frames import PADDING, Definition, Frames

MAGIC = b"TAILRACE"
VERSION = 1
SUFFIX = ".segment"
_PREFIX = struct.Struct("<8sIII")
_NAME = re.compile(r"(\d{20})-(\d{20})-(\d{20})\.segment")
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_MESSAGES = pa.schema([pa.field("message", pa.binary(), False)])


class SegmentName(msgspec.Struct, frozen=True, order=True):
    """`committed` is the offset of the last transaction end in it, or first - 1 if it holds none."""

    first: int
    committed: int
    last: int

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        match = _NAME.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None

    @property
    def holds_end(self) -> bool:
        """Some transaction ends in it."""
        return self.committed >= self.first

    def __str__(self) -> str:
        return f"{self.first:020d}-{self.committed:020d}-{self.last:020d}{SUFFIX}"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log_id: str
    first: int
    committed: int
    last: int
    position: str  # of the last transaction end in it; of the previous segment if it holds none
    tables: dict[str, int]  # changes a table
    first_time_us: int  # commit times; 0 when it holds no transaction
    last_time_us: int
    definitions: tuple[Definition, ...]
    transactions_length: int
    transactions_crc: int
    messages_length: int
    messages_crc: int


def encode(frames: Frames, log_id: str, position: str) -> tuple[SegmentName, bytes]:
    """The file that holds `frames`. `position` is the source's place at its last transaction end."""
    transactions = _ipc(frames.transactions)
    messages = _ipc(_pack_messages(frames))
    ends = frames.transactions.column("end").to_numpy()
    times = frames.transactions.column("time_us").to_numpy()
    committed = int(ends.max(initial=0)) or frames.first - 1
    header = msgspec.msgpack.encode(
        Header(
            log_id=log_id,
            first=frames.first,
            committed=committed,
            last=frames.last,
            position=position,
            tables=frames.tables,
            first_time_us=int(times[0]) if len(times) else 0,
            last_time_us=int(times[-1]) if len(times) else 0,
            definitions=frames.definitions,
            transactions_length=len(transactions),
            transactions_crc=zlib.crc32(transactions),
            messages_length=len(messages),
            messages_crc=zlib.crc32(messages),
        )
    )
    prefix = _PREFIX.pack(MAGIC, VERSION, len(header), zlib.crc32(header))
    return SegmentName(frames.first, committed, frames.last), b"".join([prefix, header, transactions, messages])


def read_header(storage: Storage, name: SegmentName) -> Header:
    prefix = _load(storage, name, _PREFIX.size)
    _, length, crc = _check_prefix(prefix, name)
    return _parse_header(_load(storage, name, length, _PREFIX.size), crc, name)


def read(storage: Storage, name: SegmentName) -> tuple[Header, Frames]:
    """The whole segment, verified."""
    data = _load(storage, name)
    _, length, crc = _check_prefix(data[: _PREFIX.size], name)
    start = _PREFIX.size + length
    header = _parse_header(data[_PREFIX.size : start], crc, name)
    body = memoryview(data)[start:]
    transactions = body[: header.transactions_length]
    messages = body[header.transactions_length :]
    if len(messages) != header.messages_length:
        raise _corrupt(name, "it is cut short")
    if zlib.crc32(transactions) != header.transactions_crc or zlib.crc32(messages) != header.messages_crc:
        raise _corrupt(name, "a checksum does not match")
    buffer, bounds = _unpack_messages(_read_ipc(messages))
    frames = Frames(header.first, buffer, bounds, _read_ipc(transactions), header.definitions, header.tables)
    return header, frames


def _load(storage: Storage, name: SegmentName, length: int | None = None, at: int = 0) -> bytes:
    try:
        return storage.read(str(name), length, at)
    except FileNotFoundError as error:
        raise OffsetGone(f"the change log in {storage.path} no longer holds the segment {name}") from error


def _check_prefix(prefix: bytes, name: SegmentName) -> tuple[int, int, int]:
    if len(prefix) < _PREFIX.size or prefix[:8] != MAGIC:
        raise _corrupt(name, "it is not a segment")
    _, version, length, crc = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise _corrupt(name, f"its format version is {version}, this tailrace reads {VERSION}")
    return version, length, crc


def _parse_header(data: bytes, crc: int, name: SegmentName) -> Header:
    if zlib.crc32(data) != crc:
        raise _corrupt(name, "its header's checksum does not match")
    header = msgspec.msgpack.decode(data, type=Header)
    if (header.first, header.committed, header.last) != (name.first, name.committed, name.last):
        raise _corrupt(name, "its header is of another segment")
    return header


def _corrupt(name: SegmentName, why: str) -> LogCorrupt:
    return LogCorrupt(f"segment {name} of the change log is damaged: {why}")


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _read_ipc(data: memoryview) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def _pack_messages(frames: Frames) -> pa.RecordBatch:
    bounds = frames.bounds.astype(np.int32)
    values = pa.py_buffer(frames.buffer[: int(frames.bounds[-1])])
    column = pa.Array.from_buffers(pa.binary(), frames.count, [None, pa.py_buffer(bounds), values])
    return pa.RecordBatch.from_arrays([column], schema=_MESSAGES)


def _unpack_messages(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    _, bounds, values = batch.column(0).buffers()
    offsets = np.frombuffer(bounds, np.int32, batch.num_rows + 1).astype(np.int64)
    buffer = np.zeros(int(offsets[-1]) + PADDING, np.uint8)
    if values is not None:
        buffer[: int(offsets[-1])] = np.frombuffer(values, np.uint8, int(offsets[-1]))
    return buffer, offsets
