"""One version of a table: what its columns were, and from where on."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from tailrace.errors import ConfigError
from tailrace.model.schema import TableSchema

KEPT = 256


class SchemaVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`number` counts the versions of a table from 1, also those that retention has removed since.

    It is in force from `position`, in the source's own words, and from `at_us`, microseconds since 1970, until the
    next one. A table that is gone has no `schema`.
    """

    number: int
    schema: TableSchema | None
    position: str
    at_us: int


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many versions of each table are kept, and for how long after another has taken their place.

    The last one of a table always is.
    """

    versions: int = KEPT
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.versions < 1:
            raise ConfigError(f"a history of {self.versions} versions has none", hint="keep 1 or more")
        if self.seconds is not None and self.seconds < 0:
            raise ConfigError(f"a history can not be kept for {self.seconds} seconds", hint="use 0 or more")

    def kept(self, versions: list[SchemaVersion], now_us: int) -> list[SchemaVersion]:
        """What remains of a table's versions, which are in order."""
        recent = versions[-self.versions :]
        if self.seconds is None:
            return recent
        oldest = now_us - int(self.seconds * 1_000_000)
        return [v for v, after in pairwise(recent) if after.at_us >= oldest] + recent[-1:]
