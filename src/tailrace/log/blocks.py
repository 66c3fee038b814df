"""Bytes in a file as blocks, each compressed and checked by itself: writing and reading needs the memory of one block.

A block is u32 stored length, u32 CRC-32 of what is stored (beginning with that length, not with 0), and an lz4 frame of
BLOCK bytes, the last one of the rest.
A block that lz4 can not make smaller is stored as it is, which shows in its length.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Part: TypeAlias = Any
"""Something with bytes in it: bytes, an Arrow buffer, an array."""

BLOCK = 4 << 20
_HEAD = struct.Struct("<II")


class Damaged(Exception):
    """The bytes of a file are not those that were written; says how it shows."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def written(data: Bytes) -> Iterator[Part]:
    """The parts of a file that hold `data`."""
    codec = pa.Codec("lz4")
    for first in range(0, len(data), BLOCK):
        block = data[first : first + BLOCK]
        small = codec.compress(block)
        stored: Part = small if len(small) < len(block) else block
        yield _HEAD.pack(len(stored), zlib.crc32(stored, len(stored)))
        yield stored


def read_into(target: Bytes, file: Readable) -> None:
    """Fill `target` with what `written` was given, or raise Damaged."""
    codec = pa.Codec("lz4")
    for first in range(0, len(target), BLOCK):
        block = target[first : first + BLOCK]
        length, crc = _HEAD.unpack(whole(file, _HEAD.size))
        stored = whole(file, min(length, len(block)))
        if zlib.crc32(stored, length) != crc:
            raise Damaged("a checksum does not match")
        data = stored if length == len(block) else codec.decompress(stored, len(block))
        block[:] = np.frombuffer(data, np.uint8)


def whole(file: Readable, length: int) -> bytes:
    """The next `length` bytes of a file, none missing."""
    data = file.read(length)
    if len(data) != length:
        raise Damaged("it is cut short")
    return data
