"""One immutable file of the change log.

Layout, version 2, little-endian:

    8 bytes   "TAILRACE"
    u32       format version
    u32       length of the header
    u32       CRC-32 of the header
    header    msgpack: `Header`
    body      Arrow IPC stream (lz4): the transactions
              blocks (`blocks.py`): the length of each message, u32
              blocks: the messages
              blocks: how many offsets each message has, u32; only where the header counts the messages

In version 1, which is still read, the messages were one binary column of a second Arrow IPC stream.

Guarantee: `read` gives exactly what `encode` was given, or raises LogCorrupt; it needs no other file. The file's name
carries the offsets, so that planning needs a directory listing and nothing more. Besides the messages themselves
neither of the two needs more memory than a block.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.errors import LogCorrupt, OffsetGone
from tailrace.log import blocks
from tailrace.log.blocks import Damaged, Part, Readable, whole
from tailrace.model.frames import PADDING, Definition, Frames
from tailrace.model.stored import from_msgpack
from tailrace.model.watermark import SourceIdentity
from tailrace.state.objects import PIECE_BYTES
from tailrace.state.storage import Storage

MAGIC = b"TAILRACE"
VERSION = 2
_OLDEST = 1
SUFFIX = ".segment"
_PREFIX = struct.Struct("<8sIII")
_NAME = re.compile(r"(\d{20})-(\d{20})-(\d{20})(?:-(\d{10,}))?\.segment")
HEADER_BYTES = 64 << 10
"""What is asked of a store to find a header in: most are much smaller."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class SegmentName(msgspec.Struct, frozen=True, order=True):
    """`committed` is the offset of the last transaction end in it, or first - 1 if it holds none.

    `epoch` tells its writer from those before and after, where a writer may outlive its lock; 0 elsewhere.
    """

    first: int
    committed: int
    last: int
    epoch: int = 0

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        match = _NAME.fullmatch(name)
        return cls(*map(int, match.groups("0"))) if match else None

    @property
    def holds_end(self) -> bool:
        """Some transaction ends in it."""
        return self.committed >= self.first

    def __str__(self) -> str:
        epoch = f"-{self.epoch:013d}" if self.epoch else ""
        return f"{self.first:020d}-{self.committed:020d}-{self.last:020d}{epoch}{SUFFIX}"


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
    messages_length: int  # in bytes; in version 1, of the stream that holds them
    messages_crc: int = 0  # version 1 only: a block has its own
    begins_at: str = ""  # the position of the previous segment
    source: SourceIdentity | None = None  # whom it was read from
    kind: str = "postgresql"  # of source, whose decoder reads the messages
    count: int = 0  # of messages, where it is not that of offsets


def encode(
    frames: Frames,
    log_id: str,
    position: str,
    begins_at: str = "",
    source: SourceIdentity | None = None,
    epoch: int = 0,
) -> tuple[SegmentName, Iterator[Part]]:
    """The file that holds `frames`, in parts. `position` is the source's place at its last transaction end."""
    transactions = _ipc(frames.transactions)
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
            begins_at=begins_at,
            source=source,
            tables=frames.tables,
            first_time_us=int(times[0]) if len(times) else 0,
            last_time_us=int(times[-1]) if len(times) else 0,
            definitions=frames.definitions,
            transactions_length=len(transactions),
            transactions_crc=zlib.crc32(transactions),
            messages_length=int(frames.bounds[-1]),
            kind=frames.kind,
            count=0 if frames.widths is None else frames.count,
        )
    )
    prefix = _PREFIX.pack(MAGIC, VERSION, len(header), zlib.crc32(header))
    lengths = np.diff(frames.bounds).astype("<u4").view(np.uint8)
    messages = frames.buffer[: int(frames.bounds[-1])]
    widths = [] if frames.widths is None else blocks.written(frames.widths.astype("<u4").view(np.uint8))
    parts = itertools.chain([prefix, header, transactions], blocks.written(lengths), blocks.written(messages), widths)
    return SegmentName(frames.first, committed, frames.last, epoch), parts


def read_header(storage: Storage, name: SegmentName) -> Header:
    with _opened(storage, name, HEADER_BYTES) as file:
        return _read_header(file, name)[1]


def read(storage: Storage, name: SegmentName) -> tuple[Header, Frames]:
    """The whole segment, verified."""
    with _opened(storage, name) as file:
        return read_from(file, name)


def read_from(file: Readable, name: SegmentName) -> tuple[Header, Frames]:
    """The segment that a file holds, and nothing behind it. Raises Damaged."""
    version, header = _read_header(file, name)
    transactions = whole(file, header.transactions_length)
    if zlib.crc32(transactions) != header.transactions_crc:
        raise Damaged("a checksum does not match")
    buffer, bounds = _read_messages(file, header) if version > 1 else _read_stream(file, header)
    widths = _read_widths(file, header) if header.count else None
    if file.read(1):
        raise Damaged("bytes lie behind its end")
    told = (_read_ipc(transactions), header.definitions, header.tables, widths)
    return header, Frames(header.kind, header.first, buffer, bounds, *told)


def _read_messages(file: Readable, header: Header) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.empty(header.count or header.last - header.first + 1, "<u4")
    blocks.read_into(lengths.view(np.uint8), file)
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    if bounds[-1] != header.messages_length:
        raise Damaged("its messages have another length")
    buffer = np.empty(header.messages_length + PADDING, np.uint8)
    buffer[header.messages_length :] = 0
    blocks.read_into(buffer[: header.messages_length], file)
    return buffer, bounds


def _read_widths(file: Readable, header: Header) -> np.ndarray:
    widths = np.empty(header.count, "<u4")
    blocks.read_into(widths.view(np.uint8), file)
    if int(widths.sum()) != header.last - header.first + 1:
        raise Damaged("its messages have other offsets")
    return widths


def _read_stream(file: Readable, header: Header) -> tuple[np.ndarray, np.ndarray]:
    """The messages of version 1."""
    data = whole(file, header.messages_length)
    if zlib.crc32(data) != header.messages_crc:
        raise Damaged("a checksum does not match")
    batch = _read_ipc(data)
    _, bounds, values = batch.column(0).buffers()
    offsets = np.frombuffer(bounds, np.int32, batch.num_rows + 1).astype(np.int64)
    buffer = np.zeros(int(offsets[-1]) + PADDING, np.uint8)
    if values is not None:
        buffer[: int(offsets[-1])] = np.frombuffer(values, np.uint8, int(offsets[-1]))
    return buffer, offsets


@contextmanager
def _opened(storage: Storage, name: SegmentName, first_bytes: int = PIECE_BYTES) -> Iterator[Readable]:
    try:
        with storage.open(str(name), first_bytes) as file:
            yield file
    except FileNotFoundError as error:
        raise OffsetGone(f"the change log in {storage.path} no longer holds the segment {name}") from error
    except Damaged as error:
        raise LogCorrupt(f"segment {name} of the change log is damaged: {error}") from None


def _read_header(file: Readable, name: SegmentName) -> tuple[int, Header]:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or prefix[:8] != MAGIC:
        raise Damaged("it is not a segment")
    _, version, length, crc = _PREFIX.unpack(prefix)
    if not _OLDEST <= version <= VERSION:
        raise Damaged(f"its format version is {version}, this tailrace reads {VERSION}")
    data = file.read(length)
    if zlib.crc32(data) != crc:
        raise Damaged("its header's checksum does not match")
    header = from_msgpack(data, Header)
    if (header.first, header.committed, header.last) != (name.first, name.committed, name.last):
        raise Damaged("its header is of another segment")
    return version, header


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _read_ipc(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()
