"""What is given to the consumer and waits for its acknowledgement: which checkpoint that makes, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from tailrace.embedded.content import Content, Stretch, Survey
from tailrace.embedded.copying import ReadChunk
from tailrace.embedded.progress import chunk_done, end_of, passed
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Source


class Delivery(Protocol):
    """Something to be acknowledged, whole or in part."""

    @property
    def content(self) -> Content: ...
    @property
    def position(self) -> str: ...
    def whole(self, before: Checkpoint, survey: Survey) -> Checkpoint:
        """The checkpoint once all of it is acknowledged."""

    def first(self, before: Checkpoint, count: int) -> tuple[Checkpoint, Delivery]:
        """The checkpoint once its first `count` events are, and what is left; there is something."""

    @property
    def last(self) -> int:
        """The offset up to which nobody needs the stream once all of it is acknowledged."""


@dataclass(frozen=True, slots=True)
class StreamDelivery:
    source: Source
    content: Stretch
    position: str

    @property
    def last(self) -> int:
        return self.content.last

    def whole(self, before: Checkpoint, survey: Survey) -> Checkpoint:
        consumed = max(self.content.numbered().events, self.content.consumed) if self.content.inside else 0
        place = end_of(self.content, self.position, consumed, survey.tables)
        return passed(self.source, before, place, self.content.identity, survey.events)

    def first(self, before: Checkpoint, count: int) -> tuple[Checkpoint, StreamDelivery]:
        place = self.content.place_of(count)
        rest = StreamDelivery(self.source, self.content.rest(place), self.position)
        return passed(self.source, before, place, self.content.identity, count), rest


@dataclass(frozen=True, slots=True)
class ReadDelivery:
    """A chunk. What was acknowledged of it is known in this process only: after a crash all of it comes again."""

    read: ReadChunk
    identity: SourceIdentity | None = None
    """Whom the stream is read from meanwhile: its last transaction bears witness that the rows are of the same past."""

    @property
    def content(self) -> Content:
        return self.read.reads

    @property
    def position(self) -> str:
        return self.read.reads.position

    @property
    def last(self) -> int:
        return 0

    def whole(self, before: Checkpoint, survey: Survey) -> Checkpoint:
        done = chunk_done(before, self.read.copy, self.read.chunk, self.read.reads.count, survey.tables)
        return msgspec.structs.replace(done, events=done.events + survey.events, source=self.identity or before.source)

    def first(self, before: Checkpoint, count: int) -> tuple[Checkpoint, ReadDelivery]:
        rest = msgspec.structs.replace(self.read, reads=self.read.reads.rest(count))
        return msgspec.structs.replace(before, events=before.events + count), ReadDelivery(rest, self.identity)
