"""A batch: what a consumer is given at a time, to be read in one of three ways and then acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from tailrace.embedded.content import Content, Survey
from tailrace.model.event import Event


class Acknowledges(Protocol):
    """The stream that a batch is of."""

    def acknowledge(self, batch: Batch, prefix: int | None, within: Any) -> None: ...


class Batch:
    """Whole transactions in commit order (or parts of a large one, where the stream may split), or rows of a snapshot.

    `position` is where its last transaction ends, in the source's own words. It may be read any number of times, and
    has to be acknowledged once: then the next one comes.
    """

    def __init__(self, stream: Acknowledges, content: Content, position: str) -> None:
        self._stream, self.content = stream, content
        self.position = position
        self._tables: dict[str, list[pa.RecordBatch]] | None = None
        self._survey: Survey | None = None

    @property
    def tables(self) -> dict[str, list[pa.RecordBatch]]:
        """By table, its changes as typed record batches in log order: the table's own columns, then the change columns.

        All at once: `arrow` gives a large one in pieces.
        """
        if self._tables is None:
            found: dict[str, list[pa.RecordBatch]] = {}
            for table, rows in self.arrow():
                found.setdefault(table, []).append(rows)
            self._tables = found
        return self._tables

    def arrow(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The same piece by piece, each with its table's name, in bounded memory. A table's pieces are in log order."""
        return self.content.arrow()

    def events(self) -> Iterator[Event]:
        """One at a time, in commit order."""
        return self.content.events()

    def __len__(self) -> int:
        """How many events there are."""
        return self.survey.events

    def __bool__(self) -> bool:
        return True

    @property
    def survey(self) -> Survey:
        if self._survey is None:
            self._survey = self.content.survey()
        return self._survey

    def ack(self, prefix: int | None = None, *, within: Any = None) -> None:
        """It is done with: the checkpoint is made durable, then the source is told that it may forget.

        With a `prefix`, only its first events are; the others come again with the next poll. `within` is an open
        connection of yours to the database that the checkpoint store is in: the checkpoint is a part of your own
        transaction then, and counts when that is committed.

        Raises Misuse if it was acknowledged before, or polled again since.
        """
        self._stream.acknowledge(self, prefix, within)
