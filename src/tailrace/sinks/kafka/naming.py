"""Which topic a table has, and names that Kafka takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from tailrace.model.schema import TableSchema

LONGEST = 249
"""What Kafka allows of a topic's name."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")


class Names(msgspec.Struct, frozen=True):
    """`routes` are topics of single tables, `schemas` other names of schemas, both as the file has them."""

    prefix: str
    pattern: str
    routes: Mapping[str, str] = {}
    schemas: Mapping[str, str] = {}
    state: str = ""

    def topic(self, schema: TableSchema) -> str:
        if (routed := self.routes.get(schema.table)) is not None:
            return legal(routed)
        own = self.schemas.get(schema.schema, schema.schema)
        found = self.pattern.replace("{prefix}", self.prefix).replace("{schema}", own)
        return legal(found.replace("{table}", schema.name))

    def sharing(self, topic: str) -> list[str]:
        """The tables that the file gives a topic."""
        return [table for table, routed in self.routes.items() if legal(routed) == topic]

    def is_routed(self, table: str) -> bool:
        return table in self.routes


def legal(name: str) -> str:
    """A name that a topic can have: what Kafka does not take is `_`, as with Debezium; a long one ends in a digest."""
    clean = _ILLEGAL.sub("_", name)
    if len(clean) > LONGEST:
        clean = f"{clean[: LONGEST - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return clean if clean.strip(".") else "_" * max(len(clean), 1)
