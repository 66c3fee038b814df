"""The checkpoint of a stream, as it grows: what each acknowledgement makes of it."""

from __future__ import annotations

import msgspec

from tailrace.embedded.content import Place, Stretch
from tailrace.model.checkpoint import Checkpoint, TableCopy
from tailrace.model.chunk import Chunk
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Source


def passed(source: Source, before: Checkpoint, place: Place, identity: SourceIdentity, events: int) -> Checkpoint:
    """The stream was consumed up to a place. Snapshots that are behind it are over."""
    return msgspec.structs.replace(
        before,
        position=place.position,
        skip=place.skip,
        transaction=place.transaction,
        events=before.events + events,
        source=identity,
        tables=before.tables | place.tables,
        copies=tuple(copy for copy in before.copies if not is_over(source, copy, place.position)),
    )


def is_over(source: Source, copy: TableCopy, position: str) -> bool:
    """All its chunks are acknowledged, and the stream is past what its snapshot saw."""
    if copy.left or copy.moved or not copy.chunks:
        return False
    return not copy.until or source.reached(position, copy.until)


def filters_of(source: Source, checkpoint: Checkpoint) -> dict[str, str]:
    """By table: the visibility whose transactions are not delivered, because a snapshot has delivered them."""
    return {
        copy.schema.table: copy.visibility
        for copy in checkpoint.copies
        if copy.visibility and copy.until and not source.reached(checkpoint.position, copy.until)
    }


def chunk_done(before: Checkpoint, copy: TableCopy, chunk: Chunk, rows: int, tables: dict[str, str]) -> Checkpoint:
    """A chunk was consumed. A copy before the stream may have been planned anew; one on demand may be given up."""
    present = next((each for each in before.copies if each.schema.table == copy.schema.table), None)
    if present is None or (present.generation, present.visibility) != (copy.generation, copy.visibility):
        if not copy.visibility:
            return msgspec.structs.replace(before, tables=before.tables | tables)
        present = copy
    now = msgspec.structs.replace(
        present,
        left=tuple(each for each in present.left if each.number != chunk.number),
        moved=tuple(each for each in copy.moved if each.number != chunk.number),
        rows=present.rows + rows,
    )
    return with_copy(msgspec.structs.replace(before, tables=before.tables | tables), now)


def with_copy(before: Checkpoint, copy: TableCopy) -> Checkpoint:
    """With a table's copy in the place of the one that it had; without one that is over and has no use any more."""
    others = tuple(each for each in before.copies if each.schema.table != copy.schema.table)
    is_done = bool(copy.chunks) and not (copy.left or copy.moved or copy.until)
    return msgspec.structs.replace(
        before,
        copies=others if is_done else (*others, copy),
        snapshots=max(before.snapshots, copy.generation),
    )


def without_copy(before: Checkpoint, table: str) -> Checkpoint:
    return msgspec.structs.replace(before, copies=tuple(each for each in before.copies if each.schema.table != table))


def end_of(stretch: Stretch, position: str, consumed: int, tables: dict[str, str]) -> Place:
    """The end of a stretch; `consumed` events of the transaction that it ends inside of are then behind us."""
    if stretch.inside:
        return Place(position, stretch.last + 1, consumed, stretch.inside, tables)
    return Place(position, stretch.last + 1, tables=tables)
