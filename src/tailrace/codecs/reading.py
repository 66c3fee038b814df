"""Messages of a topic as a person wants to see them, whatever their shape and format.

The shape is told by what is in a message, the format by its first byte: a zero is one with a registry.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec

from tailrace.codecs.registry.client import Registry
from tailrace.codecs.wire.avro_reader import read_avro
from tailrace.errors import ConfigError, DecodeError

_OPS = {"c": "insert", "u": "update", "d": "delete", "r": "read", "t": "truncate", "m": "message"}


class Seen(msgspec.Struct, frozen=True):
    """One message. `op` is `tombstone` for one without a value, and empty for a value that is none of ours."""

    op: str
    key: Any
    before: Any = None
    after: Any = None
    facts: dict[str, Any] = {}


class MessageReader:
    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry

    def read(self, key: bytes | None, value: bytes | None) -> Seen:
        known = None if key is None else self._content(key)
        if value is None:
            return Seen("tombstone", known)
        content = self._content(value)
        if not isinstance(content, dict):
            return Seen("", known, after=content)
        return _seen(known, content)

    def _content(self, message: bytes) -> Any:
        content = self._registered(message) if message[:1] == b"\x00" else _json(message)
        is_wrapped = isinstance(content, dict) and content.keys() == {"schema", "payload"}
        return content["payload"] if is_wrapped else content

    def _registered(self, message: bytes) -> Any:
        if self._registry is None:
            raise ConfigError("the messages have their schemas in a registry", hint="add --registry URL")
        kind, text = self._registry.schema_of(int.from_bytes(message[1:5], "big"))
        match kind:
            case "AVRO":
                return read_avro(json.loads(text), message[5:])
            case "JSON":
                return _json(message[5:])
            case _:
                raise ConfigError(f"messages in {kind.capitalize()} can not be shown", hint="use another consumer")


def _json(message: bytes) -> Any:
    with suppress(ValueError):
        return msgspec.json.decode(message)
    try:
        return json.loads(message)  # which knows NaN and the infinities
    except ValueError as error:
        raise DecodeError(f"a message of {len(message)} bytes is no JSON") from error


def _seen(key: Any, content: dict[str, Any]) -> Seen:
    if "_op" in content and "_position" in content:
        facts = {name: content[name] for name in content if name.startswith("_") and name in _FACTS}
        row = {name: value for name, value in content.items() if name not in _FACTS}
        is_gone = content["_op"] in ("delete", "truncate")
        return Seen(content["_op"], key, row if is_gone else None, None if is_gone else row, facts)
    if "specversion" in content:
        data = content.get("data") or {}
        data = data.get("payload", data)
        facts = {name: value for name, value in content.items() if name != "data"}
        op = _OPS.get(content.get("iodebeziumop", ""), "")
        return Seen(op, key, data.get("before"), data.get("after"), facts)
    if "op" in content and "source" in content:
        facts = {name: content[name] for name in ("source", "transaction") if content.get(name)}
        return Seen(_OPS.get(content["op"], content["op"]), key, content.get("before"), content.get("after"), facts)
    return Seen("", key, after=content)


_FACTS = ("_op", "_offset", "_commit_time", "_position", "_transaction", "_number", "_unchanged")
