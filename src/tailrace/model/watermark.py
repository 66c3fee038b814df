"""Where something stands in a change log, and which database that log was read from."""

from __future__ import annotations

import msgspec


class SourceIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which database a change came from, in the source's own words; only the source compares two of them.

    `system` is the server's own number, `branch` the line of its history (PostgreSQL: the timeline), `database` and
    `slot` are what was read on it. `newest` is the last transaction that was: a server that was restored, and has gone
    on from there, may have come as far again without it. `life` is the server's own since it was started: within one
    life its past can not become another.
    """

    system: str
    branch: str
    database: str
    slot: str
    newest: str = ""
    life: str = ""


class Watermark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offset` is the last one applied, in the log `log_id`; `position` is the same place in the words of `source`.

    A log that was lost and rebuilt has a new id. The watermark then finds its offset again by its position, as long as
    the source is still the one that it was.
    """

    log_id: str
    offset: int
    position: str
    source: SourceIdentity | None = None

    def is_at(self, other: Watermark | None) -> bool:
        """The same place of the same log."""
        return other is not None and (self.log_id, self.offset) == (other.log_id, other.offset)
