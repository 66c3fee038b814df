"""Geometries and vectors in the server's own form: what it stores is bytes, and so is what a bulk load gives it."""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import pyarrow as pa

from tailrace.model import shapes

_HAS_SRID = 0x20000000
_NO_SRID = bytes(4)


def geometries(values: pa.BinaryArray) -> pa.BinaryArray:
    """WKB, or EWKB with the number of a reference system, as that number and WKB."""
    return pa.array([None if each is None else _stored(each) for each in values.to_pylist()], pa.binary())


def _stored(value: bytes) -> bytes:
    order = "<" if value[0] == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", value, 1)
    if not kind & _HAS_SRID:
        return _NO_SRID + value
    (srid,) = struct.unpack_from(f"{order}I", value, 5)
    return struct.pack("<I", srid) + value[:1] + struct.pack(f"{order}I", kind & ~_HAS_SRID) + value[9:]


def wkb(value: bytes) -> bytes:
    """What `geometries` was given."""
    if value[:4] == _NO_SRID:
        return value[4:]
    order: Literal["little", "big"] = "little" if value[4] == 1 else "big"
    kind = int.from_bytes(value[5:9], order) | _HAS_SRID
    srid = int.from_bytes(value[:4], "little")
    return value[4:5] + kind.to_bytes(4, order) + srid.to_bytes(4, order) + value[9:]


def vectors(values: pa.Array) -> pa.BinaryArray:
    """Lists of numbers as four bytes each."""
    lists = shapes.elements_of(values)
    return pa.array(
        [None if each is None else np.asarray(each, np.dtype("<f4")).tobytes() for each in lists.to_pylist()],
        pa.binary(),
    )
