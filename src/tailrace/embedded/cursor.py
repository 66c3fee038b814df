"""Where the consumer is inside of transactions: what of the next one was consumed, and what of an open one has come.

Immutable: looking at the same cut twice gives the same answer. Whoever hands it out takes the cursor behind it then.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailrace.embedded.buffer import Cut
from tailrace.embedded.content import Stretch
from tailrace.embedded.pieces import first_transaction
from tailrace.embedded.runs import NOTHING, Counted
from tailrace.errors import CheckpointRefused
from tailrace.sources.base import Source


class Cursor(msgspec.Struct, frozen=True):
    """Of the transaction called `again` the first `consumed` events are behind us, and it will be sent again.

    Of the one called `inside`, which came in part, `came` was handed out, or was `behind` us before.
    """

    consumed: int = 0
    again: str = ""
    came: Counted = NOTHING
    behind: int = 0
    inside: str = ""

    def stretch(
        self, source: Source, cut: Cut, begins_at: str, filters: Mapping[str, str], tables: Mapping[str, str]
    ) -> tuple[Stretch, Cursor]:
        """As much of a cut as was not consumed, and the cursor behind it."""
        here = self._sent_again if cut.is_resent and self.came.events else self
        has_events = any(part.piece.has_events for part in cut.parts)
        counted = NOTHING if here.again else here.came
        if here.again and has_events:
            here._require_same(source, cut)
        stretch = Stretch(
            source=source,
            parts=cut.parts,
            begins_at=begins_at,
            filters=filters,
            tables=tables,
            counted=counted,
            consumed=here.consumed if here.again and has_events else max(counted.events, here.behind),
            inside=cut.inside,
        )
        return stretch, here._behind(stretch, cut.inside, has_events=has_events)

    @property
    def _sent_again(self) -> Cursor:
        """The source had to send the transaction again that came in part."""
        return Cursor(max(self.came.events, self.behind), self.inside, self.came, self.behind, self.inside)

    def _behind(self, stretch: Stretch, inside: str, *, has_events: bool) -> Cursor:
        again = ("", 0) if has_events else (self.again, self.consumed)
        if not inside:
            return Cursor(again=again[0], consumed=again[1])
        if not has_events:
            return Cursor(again[1], again[0], self.came, self.behind, self.inside)
        return Cursor(came=stretch.numbered(), behind=stretch.consumed, inside=inside)

    def _require_same(self, source: Source, cut: Cut) -> None:
        found = source.transaction_ids(first_transaction(cut.parts))[0]
        if found != self.again:
            raise CheckpointRefused(
                f"the checkpoint is inside of transaction {self.again}, and the source sends {found} there",
                hint="the source or its tables are others than those that were read: delete it to begin anew",
            )
