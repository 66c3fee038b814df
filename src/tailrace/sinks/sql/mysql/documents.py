"""JSON documents of a MySQL source: those whose numbers its text does not tell.

Within a document the server tells decimals from doubles. It prints both, and reads both as a double: one that it would
print otherwise than it came can not be written.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.doubles import json_double

_SUSPECT = r"\d(\.|[eE])|\d{19}"
"""Digits that may be those of a number that is no integer, or of one that is too large."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)')
_LEAST, _MOST = -(2**63), 2**64 - 1


def misfits(array: pa.StringArray) -> tuple[npt.NDArray[np.bool_], str] | None:
    """The documents that the server would print otherwise, and what they are."""
    suspects = pc.fill_null(pc.match_substring_regex(array, _SUSPECT), False).to_numpy(zero_copy_only=False)
    found = np.zeros(len(array), np.bool_)
    for row in np.flatnonzero(suspects).tolist():
        found[row] = any(not _is_told(number[1]) for number in _TOKEN.finditer(array[row].as_py()) if number[1])
    return (found, "a document with a decimal that no double is printed as") if found.any() else None


def _is_told(number: str) -> bool:
    if number.lstrip("-").isdigit():
        return _LEAST <= int(number) <= _MOST
    return json_double(float(number)) == number
