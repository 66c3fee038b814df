"""A checkpoint as bytes: JSON with a format version and a checksum, whichever store it is in.

A record that says another name, lacks a byte, or has another digit somewhere, is refused: a wrong position does not
fail by itself, it skips changes in silence.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TypeVar

import msgspec

from tailrace.checkpoints.succession import check_sound
from tailrace.errors import CheckpointRefused
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.stored import from_json

FORMAT = 1
DAMAGED = (
    "restore it from a backup, or seed it: `tailrace checkpoint delete STORE NAME`, then `tailrace checkpoint seed`"
    " with the last position that you are sure of"
)
_FOREIGN = re.compile(r"[^\x00-\x7f]")
T = TypeVar("T")


class Version(msgspec.Struct, frozen=True):
    """What every format has."""

    format: int


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`saved_us` in microseconds since 1970. The checksum is of all else, the checkpoint's bytes as they stand here."""

    format: int
    name: str
    saved_us: int
    checkpoint: msgspec.Raw
    checksum: str


def encoded(name: str, checkpoint: Checkpoint) -> bytes:
    saved = time.time_ns() // 1000
    body = _ascii(msgspec.json.encode(checkpoint))
    return msgspec.json.encode(Record(FORMAT, name, saved, msgspec.Raw(body), _checksum(name, saved, body)))


def decoded(name: str, data: bytes | str) -> Checkpoint:
    """Raises CheckpointRefused."""
    found = _read(name, bytes(_opened(name, data).checkpoint), Checkpoint)
    check_sound(name, found)
    return found


def age_of(name: str, data: bytes | str) -> float:
    """Seconds since it was saved, by the clocks of those who wrote it and who ask. Never negative."""
    return max(time.time() - _opened(name, data).saved_us / 1e6, 0.0)


def _opened(name: str, data: bytes | str) -> Record:
    """The record, once its format, its checksum and its name are right."""
    version = _read(name, data, Version).format
    if version != FORMAT:
        raise CheckpointRefused(
            f"checkpoint {name} has format {version}, and this version of tailrace knows format {FORMAT}",
            hint="use the version of tailrace that wrote it, or a later one",
        )
    record = _read(name, data, Record)
    if record.checksum != _checksum(record.name, record.saved_us, bytes(record.checkpoint)):
        raise CheckpointRefused(f"checkpoint {name} is damaged: it does not match its checksum", hint=DAMAGED)
    if record.name != name:
        raise CheckpointRefused(
            f"what is kept as checkpoint {name} is the checkpoint {record.name}", hint="was it copied by hand?"
        )
    return record


def _read(name: str, data: bytes | str, kind: type[T]) -> T:
    try:
        return from_json(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error).partition(" - at `")[0].lower()
        raise CheckpointRefused(f"checkpoint {name} is damaged: {reason}", hint=DAMAGED) from error


def _ascii(data: bytes) -> bytes:
    """The same JSON in characters that every database keeps, whatever its encoding and that of a connection."""
    return data if data.isascii() else _FOREIGN.sub(lambda found: json.dumps(found[0])[1:-1], data.decode()).encode()


def _checksum(name: str, saved_us: int, body: bytes) -> str:
    head = msgspec.json.encode((FORMAT, name, saved_us))
    return hashlib.sha256(head + body).hexdigest()
