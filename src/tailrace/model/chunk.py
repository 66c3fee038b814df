"""A chunk: one restartable part of a table's copy."""

from __future__ import annotations

import msgspec


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`place` says which rows, in the source's own words; `storage` is another when these are not the planned ones."""

    table: str
    number: int
    bytes: int
    storage: str = ""
    place: str = ""
