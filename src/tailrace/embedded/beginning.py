"""The start of a stream: its place is claimed, the source made ready, and what has to be copied planned.

The order: the slot is made, then a snapshot is taken, then the first checkpoint is durable. Whatever a crash cuts off,
the next start finds either a checkpoint, or none and a slot that has everything since it was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from tailrace import failpoints
from tailrace.checkpoints.base import CheckpointStore
from tailrace.embedded.copying import Copying
from tailrace.embedded.options import Options, SnapshotMode
from tailrace.embedded.progress import with_copy
from tailrace.embedded.versions import version_of
from tailrace.embedded.waiting import Waiting
from tailrace.errors import (
    CheckpointRefused,
    PositionLost,
    SourceChanged,
    SourceRefused,
    SourceUnavailable,
    TailraceError,
)
from tailrace.model.backoff import Backoff
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.schema import TableSchema
from tailrace.sources.base import Capture, Source, TableFacts

START_SECONDS = 15.0
SETTLE_SECONDS = 0.2
OWN_NAME = "give the stream a name of its own, or delete the checkpoint: `tailrace checkpoint delete STORE NAME`"
BEGIN_ANEW = "begin anew: `stream.drop()` removes the checkpoint, and what was made in the source"

T = TypeVar("T")


class Begun(msgspec.Struct):
    """`tables` are those to be followed, as they are now. Without a stream there is no capture."""

    checkpoint: Checkpoint
    tables: dict[str, TableSchema]
    capture: Capture | None = None
    remarks: dict[str, str] = {}  # what of a table does not come


class Beginning:
    def __init__(
        self,
        source: Source,
        store: CheckpointStore,
        kind: str,
        options: Options,
        copying: Copying,
        waiting: Waiting,
    ) -> None:
        self._source, self._store, self._kind = source, store, kind
        self._options, self._copying, self._waiting = options, copying, waiting

    def begin(self) -> Begun:
        known = self._store.load(self._options.name)
        if known is not None and known.kind != self._kind:
            raise CheckpointRefused(
                f"checkpoint {self._options.name} is of a {known.kind} source, and this is {self._kind}",
                hint=OWN_NAME,
            )
        if known is not None and _is_of_tables(known) is not (self._options.snapshot is SnapshotMode.ONLY):
            what = "snapshot='only'" if _is_of_tables(known) else "a stream"
            raise CheckpointRefused(
                f"checkpoint {self._options.name} is of {what}, and can not be gone on with by"
                f" snapshot='{self._options.snapshot}'",
                hint=OWN_NAME,
            )
        return self._only(known) if self._options.snapshot is SnapshotMode.ONLY else self._stream(known)

    # --- a stream

    def _stream(self, known: Checkpoint | None) -> Begun:
        self._refuse_uncounted(known)
        published = self._published(known) if known is not None and _is_seeded(known) else None
        position = patiently(lambda: self._source.prepare(self._waits_for, lambda: self._refuse_new(known)))
        if known is None:
            position = patiently(lambda: self._source.new_start(position, ()))
        failpoints.reached("embedded-prepared")
        after, source = (position, None) if known is None else (known.position, known.source)
        with self._begin_anew():
            capture = patiently(lambda: self._source.capture(after, 1, {}, source, messages=self._options.messages))
        try:
            self._refuse_restored(known)
            checkpoint = known or Checkpoint(self._kind, position, 0, source=capture.identity)
            facts = self._facts()
            if published is not None:
                self._refuse_late(checkpoint, published, facts)
            checkpoint = _noted(checkpoint, facts) if _is_seeded(known) else self.with_tables(checkpoint, facts)
            checkpoint = msgspec.structs.replace(checkpoint, asked=self._options.asked)
            if checkpoint != known:
                self._store.save(self._options.name, checkpoint)
            failpoints.reached("embedded-planned")
        except BaseException:
            capture.close()
            raise
        tables = {each.schema.table: each.schema for each in facts}
        return Begun(checkpoint, tables, capture, remarks_of(facts))

    def _refuse_uncounted(self, known: Checkpoint | None) -> None:
        """Inside of a transaction events are counted: others would be taken for those that were consumed."""
        if known is not None and known.skip and known.asked and known.asked != self._options.asked:
            raise CheckpointRefused(
                f"checkpoint {self._options.name} is inside of transaction {known.transaction}, and the stream asks for"
                " other tables, or messages, than it did",
                hint="go on with the same tables= and messages= until that transaction is acknowledged",
            )

    def _refuse_restored(self, known: Checkpoint | None) -> None:
        """What a copy's snapshot saw has to be in the source's past."""
        until = [copy.until for copy in known.copies if copy.until] if known is not None else []
        end = patiently(self._source.current_position) if until else ""
        if not all(self._source.reached(end, each) for each in until):
            raise SourceChanged(
                f"the source's log ends at {end}, and rows were read that are newer: it was restored from a backup",
                hint=BEGIN_ANEW,
            )

    def _waits_for(self, whom: list[str]) -> None:
        self._waiting.tell("a new replication slot waits for the end of", whom)

    def _published(self, seeded: Checkpoint) -> dict[str, str]:
        """The memberships of tables before we publish any; the place that was seeded has to be in the source's past."""
        end = patiently(self._source.current_position)
        if not self._source.reached(end, seeded.position):
            raise CheckpointRefused(
                f"checkpoint {self._options.name} was seeded at {seeded.position}, and the source's log ends at {end}",
                hint="seed it with a position that the source has reached: `tailrace checkpoint seed --replace`",
            )
        with self._begin_anew():
            return {each.schema.table: each.membership for each in patiently(self._source.facts)}

    def _refuse_late(self, seeded: Checkpoint, published: dict[str, str], facts: list[TableFacts]) -> None:
        """Of a table that is published only now the source does not send what it has behind a seeded place."""
        late = [each.schema.table for each in facts if published.get(each.schema.table) != each.membership]
        if late:
            raise PositionLost(
                f"{late[0]} was not published before, and what changed since {seeded.position} does not come",
                hint=f"leave it out, seed a place that is now or later, or {BEGIN_ANEW}",
                table=late[0],
            )

    def _refuse_new(self, known: Checkpoint | None) -> None:
        """A slot is about to be made: whoever was at a place of the old one has lost it."""
        if known is not None:
            raise PositionLost(
                f"the source does not have what follows {known.position} any more: its replication slot is gone",
                hint=BEGIN_ANEW,
            )

    @contextmanager
    def _begin_anew(self) -> Iterator[None]:
        """The hint of the pipeline's is not for us."""
        try:
            yield
        except (PositionLost, SourceChanged) as error:
            error.hint = BEGIN_ANEW
            raise

    def _facts(self) -> list[TableFacts]:
        facts = patiently(self._source.facts)
        troubled = [each for each in facts if each.trouble]
        if troubled:
            table = troubled[0].schema.table
            raise SourceRefused(
                f"{table} can not be followed: {troubled[0].trouble}",
                hint=f'mend it, or leave it out: tables=[…, "!{table}"]',
                table=table,
            )
        return facts

    def with_tables(self, before: Checkpoint, facts: list[TableFacts], *, is_settled: bool = False) -> Checkpoint:
        """With copies of the tables that have to be copied, and knowing those that are followed from now on.

        Where it `is_settled` that nobody is left who wrote to them before, nobody is waited for.
        """
        before = _without_absent(before, facts)
        unknown = [each for each in facts if each.schema.table not in before.memberships]
        new = [each for each in unknown if each.schema.table not in before.tables]
        broken = [each for each in facts if _is_broken(before, each)]
        if broken and self._options.snapshot is SnapshotMode.NEVER:
            raise PositionLost(
                f"{broken[0].schema.table} was not in the source's stream for a time: what changed then is lost",
                hint=f"take snapshot='initial', or {BEGIN_ANEW}",
                table=broken[0].schema.table,
            )
        came = [each for each in unknown if each not in new]  # by another name, and changes of them were faster
        if self._options.snapshot is SnapshotMode.INITIAL and (new or came or broken):
            before = self._planned(before, new, came + broken, is_settled=is_settled)
        return _noted(before, facts)

    def _planned(
        self, before: Checkpoint, new: list[TableFacts], broken: list[TableFacts], *, is_settled: bool
    ) -> Checkpoint:
        """With copies, all under one snapshot. The tables are the same before and after it was taken."""
        generation = before.snapshots + 1
        while True:
            if not is_settled:
                self._settle([*new, *broken])
            copies = self._copying.plan((each.schema for each in new), generation)
            copies += self._copying.plan((each.schema for each in broken), generation, is_again=True)
            now = {each.schema.table: each for each in patiently(self._source.facts)}
            if all(_is_same(each, now.get(each.schema.table)) for each in [*new, *broken]):
                break
            self._copying.close()
            if is_settled:
                raise SourceUnavailable("tables were altered while their copy was planned")
            new, broken = ([now[e.schema.table] for e in some if e.schema.table in now] for some in (new, broken))
        for copy in copies:
            before = with_copy(before, copy)
        return before

    def _settle(self, facts: Iterable[TableFacts]) -> None:
        """Wait for those who wrote to a table before it was published: the stream lacks what they wrote."""
        for each in facts:
            if self._source.is_founder(each):
                continue
            awaited = self._source.writers(each)
            while awaited:
                self._waiting.tell(f"{each.schema.table} was published just now: that waits for", awaited.values())
                time.sleep(SETTLE_SECONDS)
                now = self._source.writers(each)
                awaited = {writer: who for writer, who in awaited.items() if writer in now}

    # --- no stream

    def _only(self, known: Checkpoint | None) -> Begun:
        tables = {schema.table: schema for schema in patiently(self._source.readable)}
        identity = self._source.identify()
        if known is None:
            copies = tuple(msgspec.structs.replace(copy, until="") for copy in self._copying.plan(tables.values(), 1))
            position = self._copying.position
            known = Checkpoint(self._kind, position, 0, source=identity, copies=copies, snapshots=1)
            self._store.save(self._options.name, known)
            failpoints.reached("embedded-planned")
        elif known.source is None or (known.source.system, known.source.database) != (
            identity.system,
            identity.database,
        ):
            raise SourceChanged(f"the source is {identity.database}, and the checkpoint is of another database")
        return Begun(known, tables)


def remarks_of(facts: Iterable[TableFacts]) -> dict[str, str]:
    """By table: what of its changes the source does not send."""
    return {each.schema.table: each.remark for each in facts if each.remark}


def _is_seeded(known: Checkpoint | None) -> bool:
    """Whether somebody put it there by hand, to begin at its place: nothing is read first then."""
    return known is not None and not (known.memberships or known.copies or known.tables)


def _is_of_tables(known: Checkpoint) -> bool:
    """Whether it is of a stream that reads tables only."""
    return not known.memberships and bool(known.copies or known.tables)


def _noted(before: Checkpoint, facts: list[TableFacts]) -> Checkpoint:
    """Knowing the tables that are followed; also those that are gone, as they may come back."""
    tables = {each.schema.table: version_of(each.schema) for each in facts}
    memberships = {each.schema.table: each.membership for each in facts}
    return msgspec.structs.replace(before, tables=tables | before.tables, memberships=before.memberships | memberships)


def _without_absent(before: Checkpoint, facts: list[TableFacts]) -> Checkpoint:
    """What happens to tables that are not in the stream, nobody will tell: they are copied again once they come back.

    They may be gone, taken out of the publication, or not asked for this time.
    """
    present = {each.schema.table for each in facts}
    memberships = {table: word if table in present else "" for table, word in before.memberships.items()}
    copies = tuple(copy for copy in before.copies if copy.schema.table in present)
    return msgspec.structs.replace(before, memberships=memberships, copies=copies)


def _is_broken(before: Checkpoint, facts: TableFacts) -> bool:
    """Whether a table that was followed has left the source's stream since, if only for a moment."""
    membership = before.memberships.get(facts.schema.table)
    return membership is not None and membership != facts.membership


def _is_same(before: TableFacts, now: TableFacts | None) -> bool:
    """Whether nothing became of a table between two looks, but that it grew."""
    return now is not None and msgspec.structs.replace(now, bytes=before.bytes) == before


def patiently(work: Callable[[], T], seconds: float = START_SECONDS) -> T:
    """Wait a little for a database that is coming up, or that has not noticed yet that we died."""
    deadline, backoff = time.monotonic() + seconds, Backoff(0.1, 1.0)
    while True:
        try:
            return work()
        except TailraceError as error:
            wait = backoff.wait()
            if not error.retry or time.monotonic() + wait > deadline:
                raise
            time.sleep(wait)
