"""Seeds: the next generation of an index is made beside the one that readers see, and filled chunk by chunk, by tasks.

A chunk may be loaded twice: its documents have the same version, and both attempts the same content or the later one a
later snapshot's. What an attempt that nobody waits for any more still sends is fenced when the seed ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tailrace import failpoints
from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableStatus
from tailrace.model.rows import EncodedRows, Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.opensearch.bodies import upserts
from tailrace.sinks.opensearch.claim import Claim
from tailrace.sinks.opensearch.client import Client
from tailrace.sinks.opensearch.generations import Generations
from tailrace.sinks.opensearch.naming import Names, memory_of
from tailrace.sinks.opensearch.quarantine import Quarantine
from tailrace.sinks.opensearch.state import Record, State
from tailrace.sinks.opensearch.writing import Writer


class Seeds:
    def __init__(
        self,
        client: Client,
        names: Names,
        state: State,
        generations: Generations,
        claim: Claim,
        quarantine: Quarantine,
        *,
        bulk_bytes: int,
        is_fatal: bool,
    ) -> None:
        self._client, self._names, self._state, self._generations = client, names, state, generations
        self._claim, self._quarantine = claim, quarantine
        self._bulk_bytes, self._is_fatal = bulk_bytes, is_fatal

    def begin(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        """The order: an index that nobody knows, its plan, then the note that names both; then the former one goes."""
        held = self._state.held_by(self._claim.run)
        records = self._state.records(held.note)
        known = self._known(status, records.get(status.table))
        if not clear and known.target:
            begun = msgspec.structs.replace(known, chunks=tuple(chunk.number for chunk in chunks))
        else:
            index = self._made(status)
            own = {index: self._generations.identities()[index]}
            numbers = tuple(chunk.number for chunk in chunks)
            begun = Record(status, known.live, index, numbers, known.identities | own)
        status = msgspec.structs.replace(status, is_beside=bool(begun.live and begun.building))
        begun = msgspec.structs.replace(begun, status=status)
        self._state.plan(begun.target, chunks)
        names = self._state.add_records([begun])
        former = [known.building] if known.building not in ("", begun.building) else []
        note = msgspec.structs.replace(
            held.note, tables=held.note.tables | names, retired=(*held.note.retired, *former)
        )
        self._state.replace(held, note, self._claim.run)
        self._claim.learn(records | {status.table: begun})
        if clear:
            self._quarantine.drop_table(status.table)
        self._generations.drop(former)
        self._forget(held.note.tables.get(status.table), known if former else None)
        return status

    def _known(self, status: TableStatus, stored: Record | None) -> Record:
        """What there is of a table, of that which is remembered, or of what an earlier life of the pipeline left."""
        seen = self._generations.seen_by_readers(status.schema)
        known = stored or Record(status, live=seen[0] if seen else "")
        there = self._generations.aliases()
        live = known.live if known.live in there else ""
        is_whole = known.building in there and memory_of(known.building) in there
        return msgspec.structs.replace(known, live=live, building=known.building if is_whole else "")

    def _forget(self, name: str | None, given_up: Record | None) -> None:
        """What was remembered of a table before: its record, and the plan that is not carried out any more."""
        self._state.delete([name] if name is not None else [])
        if given_up is not None:
            self._state.forget_marks(given_up.building, given_up.status.generation, given_up.chunks)

    def _made(self, status: TableStatus) -> str:
        index = self._names.new_index(status.schema, status.generation)
        target = self._claim.add(status.table, index)
        self._generations.create(target, status.schema, status.generation)
        return index

    def load(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        self._state.held_by(self._claim.run)
        target = self._claim.target(schema.table)
        found = self._state.find_mark(target.index, mark)
        if found is None or found[0].is_loaded:
            return 0
        failpoints.reached("chunk-before-load")
        count, version = 0, self._claim.version
        with Writer(self._client, target, self._claim.fenced, is_fatal=self._is_fatal, is_seed=True) as writer:
            for batch in batches:
                if isinstance(batch, EncodedRows):
                    raise TypeError(f"{schema.table} came encoded, and nobody asked for that")
                count += writer.send(upserts(batch, version, self._bulk_bytes))
        if writer.rejected:
            self._quarantine.write(writer.rejected, Watermark("", 0, ""))
        _, sequence, term = found
        done = msgspec.structs.replace(mark, is_loaded=True, rows=count, is_beside=False)
        is_first = self._state.mark_loaded(target.index, done, sequence, term)
        failpoints.reached("chunk-loaded")
        return count if is_first else 0

    def finish(self, status: TableStatus) -> None:
        """Settings as they are to be, once all chunks are loaded; until then, no more than nobody else is loading."""
        held = self._state.held_by(self._claim.run)
        record = self._state.records(held.note).get(status.table)
        if record is None or not record.target:
            raise SinkRejected(f"{status.table} has no index, and can not be seeded", table=status.table)
        self._claim.renew([status.table])
        if all(mark.is_loaded for mark in self._state.marks(record)):
            self._generations.restore(record.target)
