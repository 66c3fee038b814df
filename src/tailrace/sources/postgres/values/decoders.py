"""PostgreSQL values to Arrow, a column at a time: the binary form and the text form of every type.

pgoutput and COPY share these forms, so stream and snapshot go through this one decoder. The text form is that of a
session with `types.CAPTURE_SETTINGS`; both forms of a value give the same Arrow value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.errors import DecodeError
from tailrace.model.types import ColumnType
from tailrace.sources.postgres.values.binary import decode_binary
from tailrace.sources.postgres.values.cells import Bytes, Cells, Integers, in_order
from tailrace.sources.postgres.values.literals import decode_text

_BINARY, _TEXT, _NULL, _UNCHANGED = ord("b"), ord("t"), ord("n"), ord("u")
_KNOWN = np.zeros(256, bool)
_KNOWN[[_BINARY, _TEXT, _NULL, _UNCHANGED]] = True


def decode_values(
    buffer: Bytes, place: Integers, length: Integers, kind: Bytes, type_: ColumnType, *, where: str
) -> pa.Array:
    """One column of `arrow_type(type_)`; NULL and unchanged TOAST are null.

    Row i is the `length[i]` bytes at `buffer[place[i]]`, in the form that `kind[i]` says (pgoutput's n, u, t, b; a
    column may mix them). Raises DecodeError for bytes that do not follow the protocol and ValueRefused for a value that
    the Arrow type can not hold; both name `where` and the type, never a value.
    """
    is_binary = kind == _BINARY
    if is_binary.all():
        return decode_binary(Cells(buffer, place, length, type_, where))
    if not _KNOWN[kind].all():
        raise DecodeError(f"column {where} ({type_.name}): a tuple holds an unknown kind of value")
    parts, rows = [], []
    for chosen, decode in ((is_binary, decode_binary), (kind == _TEXT, decode_text)):
        at = np.flatnonzero(chosen)
        if len(at):
            rows.append(at)
            parts.append(decode(Cells(buffer, place[at], length[at], type_, where)))
    return in_order(parts, rows, len(kind), type_)
