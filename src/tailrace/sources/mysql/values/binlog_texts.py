"""Texts of row events, which are in the character set of their column, as UTF-8."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.columns.characters import data_of
from tailrace.errors import DecodeError, ValueRefused

_UTF8 = {"utf8mb4", "utf8mb3", "utf8", "ascii"}
_SINGLE = {
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "tis620": "tis_620",
    "macroman": "mac_roman",
    "macce": "mac_latin2",
}
_WIDE = {
    "ucs2": "utf_16_be",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
}


def charset_of(collation: str) -> str:
    """Those that are read in one way have one name."""
    charset = collation.partition("_")[0] or "utf8mb4"
    return "utf8mb4" if charset in _UTF8 else charset


def decoded(values: pa.BinaryArray, collation: str, where: str) -> pa.StringArray:
    """Raises ValueRefused for a character set that is not known here, and DecodeError for bytes that are not of it."""
    charset = collation.partition("_")[0] or "utf8mb4"
    try:
        if charset in _UTF8:
            return _utf8(values)
        if charset == "latin1" or charset in _SINGLE:
            return _single(values, charset)
        if charset in _WIDE:
            codec = _WIDE[charset]
            return pa.array([value.decode(codec) for value in values.to_pylist()], pa.string())
    except (UnicodeDecodeError, pa.ArrowInvalid):
        raise DecodeError(f"column {where}: a value is not valid {charset}") from None
    raise ValueRefused(
        f"column {where}: its character set {charset} can not be decoded from the binary log",
        hint="change the column to utf8mb4, or exclude its table with source.tables",
    )


def _utf8(values: pa.BinaryArray) -> pa.StringArray:
    """All-ASCII data, found in one sweep, needs no check value by value."""
    data = values.buffers()[2]
    if data is None or not len(data) or int(np.frombuffer(data, np.uint8).max()) < 128:
        return values.view(pa.string())
    return values.cast(pa.string())


def _single(values: pa.BinaryArray, charset: str) -> pa.StringArray:
    """A byte a character: all texts at once."""
    table, widths = _table(charset)
    data = np.frombuffer(data_of(values), np.uint8)
    if not len(data) or int(data.max()) < 128:
        return _utf8(values)
    if not widths[data].all():
        raise UnicodeDecodeError(charset, b"", 0, 1, "no such character")
    text = data.tobytes().decode("latin-1").translate(table).encode()
    ends = np.concatenate([[0], np.cumsum(widths[data])])
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    offsets = ends[bounds - bounds[0]].astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


@functools.cache
def _table(charset: str) -> tuple[dict[int, str], npt.NDArray[np.int64]]:
    """Each byte's character, and how many bytes that has in UTF-8: 0 for a byte that is none."""
    found: dict[int, str] = {}
    for byte in range(256):
        try:
            found[byte] = bytes([byte]).decode("cp1252" if charset == "latin1" else _SINGLE[charset])
        except UnicodeDecodeError:
            if charset == "latin1":  # MySQL's has all 256, five of them as control characters
                found[byte] = chr(byte)
    return found, np.array([len(found[byte].encode()) if byte in found else 0 for byte in range(256)])
