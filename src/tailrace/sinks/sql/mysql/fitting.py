"""Whether the values of one type of MySQL or MariaDB go unchanged into a column of another."""

from __future__ import annotations

import re

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXT_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 2**32}
_BLOB_BYTES = {"tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 2**32}
_LABELLED = ("enum", "set")
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_CHARACTER_BYTES = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3}
"""The most that a character takes, in the sets of which that matters."""
_LONGEST_LABEL = 255


def fits(wanted: str, existing: str) -> bool:
    """Whether all values of a column declared as `wanted` go unchanged into one that the catalog calls `existing`."""
    base, limits, is_signed = _parsed(wanted)
    other, others, is_other_signed = _parsed(existing)
    if base in _INTEGERS:
        return other in _INTEGERS and is_signed == is_other_signed and _INTEGERS.index(base) <= _INTEGERS.index(other)
    if base == other == "decimal":
        return limits[1:] == others[1:] and limits[0] <= others[0] and is_other_signed >= is_signed
    if base in _LABELLED and base == other:
        return _labels(wanted) <= _labels(existing) and _holds_letters(wanted, existing)
    if (size := _characters(wanted, _width(wanted, existing, 1))) is not None:
        room = _characters(existing, _width(existing, wanted, 4), takes_char=base == "char", takes_labels=False)
        return room is not None and size <= room and _holds_letters(wanted, existing)
    if (size := _size(base, limits, _BLOB_BYTES, ("varbinary",))) is not None:
        room = _size(other, others, _BLOB_BYTES, ("varbinary",))
        return room is not None and size <= room
    if base == "binary":
        return other in ("varbinary", "blob", "mediumblob", "longblob") or (base == other and limits == others)
    if base == other and base in ("bit", "vector"):
        return limits == others if base == "vector" else limits <= others
    return base == other and (limits or [0]) <= (others or [0])


def _width(name: str, other: str, unknown: int) -> int:
    """The bytes of a character. In one set they are the same for both; one of another may have any number."""
    charset = _charset(name)
    return 1 if charset == _charset(other) else _CHARACTER_BYTES.get(charset, unknown)


def _characters(name: str, width: int, *, takes_char: bool = True, takes_labels: bool = True) -> int | None:
    """How many characters of so many bytes there is room for; None for what is no text."""
    base, limits, _ = _parsed(name)
    if base == "varchar" or (base == "char" and takes_char):
        return limits[0] if limits else None
    if base in _LABELLED and takes_labels:
        return _LONGEST_LABEL if base == "enum" else sum(len(label) + 1 for label in _labels(name))
    return _TEXT_BYTES[base] // width if base in _TEXT_BYTES else None


def _labels(name: str) -> set[str]:
    return set(_LABEL.findall(name))


def _charset(name: str) -> str:
    found = re.search(r"CHARACTER SET (\w+)", name)
    return "" if found is None else found[1]


def _holds_letters(wanted: str, existing: str) -> bool:
    mine, theirs = _charset(wanted), _charset(existing)
    is_ascii = theirs not in ("", "ucs2", "utf16", "utf16le", "utf32")  # as far as its values go
    return theirs == "utf8mb4" or (bool(mine) and mine == theirs) or (mine == "ascii" and is_ascii)


def _size(base: str, limits: list[int], named: dict[str, int], limited: tuple[str, ...]) -> int | None:
    if base in named:
        return named[base]
    return limits[0] if base in limited and limits else None


def _parsed(name: str) -> tuple[str, list[int], bool]:
    """Its base, its limits, and whether it is signed. The width in which MariaDB shows integers means nothing."""
    found = re.match(r"(\w+)(?:\(([\d,]+)\))?", name)
    assert found is not None
    has_limits = found[2] is not None and found[1] not in (*_INTEGERS, "year")
    limits = [int(part) for part in found[2].split(",")] if has_limits else []
    return found[1], limits, "unsigned" not in name
