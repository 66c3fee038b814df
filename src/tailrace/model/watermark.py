"""Where something stands in a change log."""

from __future__ import annotations

import msgspec


class Watermark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offset` is the last one applied, in the log `log_id`; `position` is the same place in the source's own words.

    A log that was lost and rebuilt has a new id. The watermark then finds its offset again by its position.
    """

    log_id: str
    offset: int
    position: str
