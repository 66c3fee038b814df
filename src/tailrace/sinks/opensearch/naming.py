"""What a sink's indexes and aliases are called.

Of a document `users`, with prefix `shop-`: readers use the alias `shop-users`; a generation is an index
`shop-users-g3-5f2c9a71`, hidden from patterns, with its memory `shop-users-g3-5f2c9a71-rows` beside it; the run that
may write to them does so by the aliases `shop-users-g3-5f2c9a71--w-7-0` and `shop-users-g3-5f2c9a71-rows--w-7-0`. What
the sink remembers is in `shop-tailrace-PIPELINE-SINK`.
"""

from __future__ import annotations

import hashlib
import re
import uuid

import msgspec

from tailrace.model.names import parse_table
from tailrace.model.schema import TableSchema

_LEGAL = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_GENERATION = re.compile(r".+-g\d+-[0-9a-f]{8}")
_MEMORY = "-rows"
_WRITER = re.compile(r".+--w-(\d+)-(\d+)")
_LONGEST = 120
"""An index's name has 255 bytes at most; prefix, generation and the alias of its writer have to fit as well."""


class Names(msgspec.Struct, frozen=True):
    """The names of one pipeline's sink."""

    prefix: str
    pipeline: str
    sink: str

    @property
    def owner(self) -> str:
        return f"{self.pipeline}/{self.sink}"

    @property
    def state(self) -> str:
        return f"{self.prefix}tailrace-{self.pipeline}-{self.sink}"

    @property
    def generations(self) -> str:
        """A pattern that all generations match, of all documents, also of other pipelines."""
        return f"{self.prefix}*-g*"

    def readers_alias(self, schema: TableSchema) -> str:
        return self._alias(schema.name)

    def is_own(self, index: str, owner: str, table: str) -> bool:
        """Whether an index that was made by `owner` for a table is of this deployment.

        The same pipeline may have several on one server, of which one's prefix may begin with another's.
        """
        _, name = parse_table(table) or ("", table)
        return owner == self.owner and shown_as(index) == self._alias(name)

    def _alias(self, name: str) -> str:
        return f"{self.prefix}{_legal(name)}"

    def new_index(self, schema: TableSchema, generation: int) -> str:
        """Never used before: one that was given up is not taken for another."""
        return f"{self.readers_alias(schema)}-g{generation}-{uuid.uuid4().hex[:8]}"

    def writers_alias(self, index: str, epoch: int, number: int) -> str:
        return f"{index}--w-{epoch}-{number}"


def shown_as(index: str) -> str:
    """The alias by which readers would see a generation."""
    return index.rpartition("-g")[0]


def is_generation(index: str) -> bool:
    return _GENERATION.fullmatch(index) is not None


def memory_of(index: str) -> str:
    """The index beside a generation, of the rows that its documents were built from."""
    return f"{index}{_MEMORY}"


def generation_of(index: str) -> str | None:
    """The generation that an index is, or is the memory of; None for any other index."""
    generation = index.removesuffix(_MEMORY)
    return generation if is_generation(generation) else None


def claim_of(alias: str) -> tuple[int, int] | None:
    """Epoch and number of a writer's alias; None for any other alias."""
    found = _WRITER.fullmatch(alias)
    return (int(found[1]), int(found[2])) if found else None


def _legal(name: str) -> str:
    """A name that an index can have; another one for every name that it can not have."""
    if _LEGAL.fullmatch(name) and len(name) <= _LONGEST:
        return name
    plain = re.sub(r"[^a-z0-9_.-]", "_", name.lower())[:_LONGEST].lstrip("_.-+")
    return f"{plain or 'x'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
