"""Reading structs from bytes, in any number of threads.

msgspec completes what it knows of a struct when the first one is decoded, and a thread that decodes one meanwhile takes
the whole process down (0.22: a segmentation fault). So decoders are made by one thread at a time, and kept.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_decoders: dict[tuple[Any, Any], Any] = {}


@overload
def from_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | str, kind: Any) -> Any: ...
def from_json(data: bytes | str, kind: Any) -> Any:
    return _decoder(msgspec.json.Decoder, kind).decode(data)


def from_msgpack(data: bytes, kind: type[T]) -> T:
    found: T = _decoder(msgspec.msgpack.Decoder, kind).decode(data)
    return found


def _decoder(maker: Any, kind: Any) -> Any:
    if (maker, kind) not in _decoders:
        with _lock:
            _decoders[maker, kind] = maker(kind)
    return _decoders[maker, kind]
