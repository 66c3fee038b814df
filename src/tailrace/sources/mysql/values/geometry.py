"""Geometries: the server's own form is an SRID of four bytes and then WKB.

Without a reference system the value is plain WKB; with one it is EWKB, which others read as well and which keeps it.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import DecodeError

_HAS_SRID = 0x20000000
_NO_SRID = bytes(4)
_LEAST = 9


def wkb(values: pa.BinaryArray) -> pa.BinaryArray:
    """Geometries as users know them; null stays null. Raises DecodeError for what is none."""
    if pc.any(pc.less(pc.binary_length(values), _LEAST)).as_py():
        raise DecodeError(f"a geometry is shorter than {_LEAST} bytes")
    return pa.array([None if each is None else _with_srid(each) for each in values.to_pylist()], pa.binary())


def _with_srid(value: bytes) -> bytes:
    if value[:4] == _NO_SRID:
        return value[4:]
    order = "<" if value[4] == 1 else ">"
    (srid,) = struct.unpack_from("<I", value)
    (kind,) = struct.unpack_from(f"{order}I", value, 5)
    return value[4:5] + struct.pack(f"{order}II", kind | _HAS_SRID, srid) + value[9:]
