"""The life of tables in one sink: NEW → SNAPSHOT → CATCH_UP → LIVE, each by itself, while the others stay live."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from tailrace import config, events, failpoints
from tailrace.errors import SinkRejected, SourceRefused, TailraceError
from tailrace.model.lifecycle import ASIDE, CATCHING_UP, StoredAs, TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.pipeline.copy_watch import CopyWatch
from tailrace.pipeline.copying import Copies, lanes
from tailrace.pipeline.evolution import evolved_to, fills_of, has_other_text, is_behind
from tailrace.pipeline.follower import SinkFollower
from tailrace.pipeline.threads import IDLE_SECONDS, RepeatingThread
from tailrace.sinks.base import Fetches
from tailrace.sources.base import Published, TableFacts, TableLocked
from tailrace.state import requests
from tailrace.tasks.merged import is_part

DISCOVER_SECONDS = 3.0
LOOK_SHARE, LONGEST_SECONDS = 10, 20.0
"""A catalog of many tables is looked at less often: one part in so many of the time, within limits."""
UNKNOWN_SECONDS = 0.5
REQUEST_SECONDS = 0.5
RETRY_SECONDS = (60.0, 3600.0)
"""How soon a table that failed is tried again, though nothing shows that its cause is gone; twice as late each time."""


class TableSupervisor:
    """A thread of the driver. It finds tables, has them copied, catches up, and hands them to the streaming query."""

    def __init__(self, follower: SinkFollower) -> None:
        self.follower = follower
        self.source = follower.source
        self.copies = Copies(follower)
        self._lanes = lanes(self.copies)
        self._discovered_at = self._asked_at = 0.0
        self._discover_seconds = DISCOVER_SECONDS
        self._refused: dict[str, str] = {}  # tables that can not be published, and why
        self._troubled: set[str] = set()  # tables that the stream does not tell all of
        self._untold: dict[str, tuple[TableSchema, str]] = {}  # what tables are, and since when we know: see _evolve
        self._retries: dict[str, tuple[float, float]] = {}  # of tables that failed: when, and after which wait
        self._is_published = False  # no table waits to be published
        self._looked_at: dict[str, StoredAs | None] = {}  # where tables were stored before the last look
        self._is_settled = False
        name = follower.name
        self._own = RepeatingThread(self._step, f"keeping the tables of sink {name}", follower)
        self._copying = [
            RepeatingThread(lane.step, f"the copy of tables into sink {name}", follower) for lane in self._lanes
        ]
        self._copy_watch = CopyWatch(follower)
        self._watching = RepeatingThread(self._watch, f"watching sink {name}", follower)

    @property
    def _threads(self) -> list[RepeatingThread]:
        return [self._own, *self._copying, self._watching]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    @property
    def error(self) -> TailraceError | None:
        """Why one of the threads has ended, if it did."""
        return next((thread.error for thread in self._threads if thread.error is not None), None)

    @property
    def is_settled(self) -> bool:
        """The source's tables have been looked at, and what was asked of us is heard."""
        return self._is_settled and not self.follower.has_unseen

    def copy_tables(self) -> bool:
        """Find the tables that wait for their copy, and copy them here and now; false if there are none."""
        self._discover()
        worked = [lane.step() for lane in self._lanes]
        return any(worked)

    def _step(self) -> bool:
        self._discover()
        self._hear_requests()
        self._is_settled = self._is_published and not self._untold
        self.follower.make_sure()
        groups = self._catching_up()
        for group in groups:
            self.follower.isolated(lambda group=group: self._catch_up(group))  # type: ignore[misc]  # a loop's variable
        return bool(groups)

    def _watch(self) -> bool:
        """Measure what the run tells of the sink; in a thread of its own, as storage and sink may take their time."""
        self.follower.lag.look()
        return self._copy_watch.step()

    # --- discovery

    def _discover(self) -> None:
        """Take in the tables that the source publishes, and compare those that we know with what they were."""
        age = time.monotonic() - self._discovered_at
        is_urgent = self.follower.unknown.is_set() or self._untold
        if age < (UNKNOWN_SECONDS if is_urgent else self._discover_seconds):
            return
        self.follower.unknown.clear()
        self.follower.sink.check_claim()
        published = self._publish()
        began = time.monotonic()
        self._looked_at = {table: status.stored for table, status in list(self.follower.tables.items())}
        facts = self.source.facts(published.refused)
        self._discover_seconds = min(max(DISCOVER_SECONDS, LOOK_SHARE * (time.monotonic() - began)), LONGEST_SECONDS)
        self.copies.learn(facts)
        self._follow_names(facts)
        for each in facts:
            self.follower.isolated(lambda each=each: self._meet(each))  # type: ignore[misc]  # a loop's variable
        self._miss({each.schema.table for each in facts})
        live = {table for table, status in self.follower.tables.items() if status.state is TableState.LIVE}
        self._untold = {table: seen for table, seen in self._untold.items() if table in live}
        if isinstance(self.follower.sink, Fetches):
            self.follower.sink.tend_ahead(self._ahead_until)
        self._discovered_at = time.monotonic()
        self._is_published = self._is_published or not published.waiting

    def _ahead_until(self, table: str, position: str) -> str:
        """Up to where a live table has newer rows; empty once the sink is there."""
        status = self.follower.tables.get(table)
        if status is None or status.state is not TableState.LIVE:
            return position
        if not position:
            return self.source.current_position()
        return "" if self.source.reached(self.follower.watermark.position, position) else position

    def _publish(self) -> Published:
        """Have the tables published that were made since we last looked, and those that can be published better now.

        Those that somebody has locked are not in the sink, and not forgotten.
        """
        published = self.source.publish(self._is_known)
        if published.changed:
            self.follower.say(events.Published(sink=self.follower.name, tables=tuple(published.changed)))
        locked = dict.fromkeys(published.waiting, "somebody holds a lock on it: it is tried again")
        for table, reason in (published.refused | locked).items():
            if self._refused.get(table) != reason:
                self._refused[table] = reason
                self.follower.say(events.NotPublished(sink=self.follower.name, table=table, reason=reason))
        return published

    def _is_known(self, table: str, part: TableSchema | None = None) -> bool:
        """Whether a table that is not published was taken out by somebody, and not made just now; or a document's."""
        known = self.follower.tables.get(table)
        if known is None or not known.membership:
            return False
        return part is None or known.stored is None or is_part(known.stored, part)

    def _meet(self, facts: TableFacts) -> None:
        """A table that is published now. The sink's lock is held, so that the stream does not change it meanwhile."""
        with self.follower.lock:
            known = self.follower.tables.get(facts.schema.table)
            if facts.trouble:
                self._set_aside(known, facts)
            elif known is None:
                is_founder = self.follower.watermark.offset == 0 and self.source.is_founder(facts)
                since = facts.membership if is_founder else ""
                new = TableStatus(facts.schema.table, TableState.NEW, self.follower.watermark, facts.schema)
                self.follower.tables[facts.schema.table] = msgspec.structs.replace(new, membership=since)
            elif known.state is TableState.FAILED:
                if self._is_worth_a_try(known, facts):
                    self._copy_again(known, facts, "it is tried again")
            elif self._is_newer(known):
                self.follower.unknown.set()
            elif (reason := self._break(known, facts)) is not None:
                self._copy_again(known, facts, reason)
            elif known.state is TableState.LIVE:
                self._follow_storage(known, facts)
                self._evolve(facts)
                self._note(facts)

    def _is_newer(self, known: TableStatus) -> bool:
        """Whether we know more of where a table is stored than the last look may have shown."""
        return known.stored is not None and known.stored != self._looked_at.get(known.table)

    def _set_aside(self, known: TableStatus | None, facts: TableFacts) -> None:
        """A table of which the stream does not tell all: it comes back as soon as it does."""
        status = known or TableStatus(facts.schema.table, TableState.NEW, self.follower.watermark, facts.schema)
        self._troubled.add(status.table)
        if (status.state, status.reason) == (TableState.FAILED, facts.trouble):
            return
        if self.follower.settings.on_table_error is config.OnTableError.STOP:
            raise SourceRefused(f"{status.table} can not be followed: {facts.trouble}", table=status.table)
        self.follower.became(status.aside(TableState.FAILED, facts.trouble))

    def _break(self, known: TableStatus, facts: TableFacts) -> str | None:
        """Why the stream does not tell all that became of a table since we know it; None if it does."""
        if known.state is TableState.PAUSED:
            return "it is published again"
        if not known.membership or not (known.visibility or known.state is TableState.LIVE):
            return None  # it waits for its copy
        if known.held_as and known.held_as != self.follower.sink.held_as(known.schema):
            return "its names in the sink were changed in the file"
        if known.schema.relation != facts.schema.relation:
            return "it was dropped and made again"
        if known.membership != facts.membership:
            return "it was not published for a time"
        if known.stored is None or known.state not in {TableState.LIVE, TableState.CATCH_UP, TableState.AHEAD}:
            return None
        change = self.source.storage_change(known.schema, known.stored, facts.stored)
        if change.is_rewritten or (change.added and self._has_rows(facts, change.added)):
            return str(change.reason)
        return None

    def _has_rows(self, facts: TableFacts, added: Iterable[str]) -> bool:
        """Also where nobody can look at the moment."""
        try:
            return bool(self.source.has_rows(facts.schema, added))
        except TableLocked:
            return True

    def _copy_again(self, known: TableStatus, facts: TableFacts, reason: str) -> None:
        self.follower.became(known.again(self._start_of(known), facts.schema, reason=reason))

    def _start_of(self, known: TableStatus) -> Watermark:
        """From where on the changes of a table are there for its next copy."""
        return self.follower.watermark if known.state in ASIDE | {TableState.LIVE} else known.watermark

    def _follow_storage(self, known: TableStatus, facts: TableFacts) -> None:
        """Remember where the rows are now, the change being one that the stream has told, or that changes nothing."""
        if known.stored != facts.stored and not is_behind(known.schema, facts.schema):
            self.follower.write(msgspec.structs.replace(known, stored=facts.stored, membership=facts.membership))

    def _note(self, facts: TableFacts) -> None:
        known = self.follower.tables[facts.schema.table]
        if known.state is TableState.LIVE and known.reason != facts.remark:
            self.follower.became(msgspec.structs.replace(known, reason=facts.remark))

    def _evolve(self, facts: TableFacts) -> None:
        """Take in what was altered and has not been changed since: the stream has not told, and may never tell."""
        known, schema = self.follower.tables[facts.schema.table], facts.schema
        seen, position = self._untold.pop(schema.table, (None, ""))
        if not is_behind(known.schema, schema):
            return
        if seen != schema:
            position = self.source.current_position()
        if not self.source.reached(self.follower.watermark.position, position):
            self._untold[schema.table] = schema, position  # it may be told yet, up to there
        elif has_other_text(known.schema, schema) or not self._take_in(known, facts):
            self._copy_again(known, facts, "its columns changed")

    def _take_in(self, known: TableStatus, facts: TableFacts) -> bool:
        """Change a live table in place to what it is at the source; false if that can not be."""
        fills = fills_of(self.source, known, facts.schema)
        if fills is None:
            return False
        now = msgspec.structs.replace(
            known,
            table=facts.schema.table,
            schema=facts.schema,
            stored=facts.stored,
            held_as=self.follower.sink.held_as(facts.schema),
        )
        return self.follower.take_in(now, evolved_to(known, facts.schema, fills))

    def _follow_names(self, facts: list[TableFacts]) -> None:
        """Tables that have another name at the source get it here as well, or else are copied under it."""
        present = {each.schema.table for each in facts}
        gone = {s.schema.relation: s for s in list(self.follower.tables.values()) if s.table not in present}
        for each in facts:
            known = gone.get(each.schema.relation)
            if known is None or each.schema.table in self.follower.tables or known.state is not TableState.LIVE:
                continue
            with self.follower.lock:
                if self._take_name(known, each):
                    self.follower.say_table(self.follower.tables[each.schema.table])

    def _is_unbroken(self, known: TableStatus, facts: TableFacts) -> bool:
        """Whether nothing but its name has become of a table, apart from what the stream tells."""
        if known.stored is None or self._is_newer(known) or is_behind(known.schema, facts.schema):
            return False
        return self._break(known, facts) is None

    def _take_name(self, known: TableStatus, facts: TableFacts) -> bool:
        """Give a table its new name in the sink; false where more became of it, or that can not be told or done."""
        try:
            return self._is_unbroken(known, facts) and self._take_in(known, facts)
        except (SinkRejected, SourceRefused) as error:
            if error.retry:
                raise
            return False

    def _miss(self, present: set[str]) -> None:
        """Tables that are not captured any more are set aside, whatever they were."""
        for status in [s for s in list(self.follower.tables.values()) if s.table not in present]:
            if status.state is TableState.PAUSED or self.copies.is_copying(status.table):
                continue
            absence = self.source.absence(status.schema)
            with self.follower.lock:
                now = self.follower.tables[status.table].aside(TableState.PAUSED, absence.reason)
                self.follower.became(msgspec.structs.replace(now, membership="") if absence.is_gone else now)

    # --- tables that failed, and what is asked of us

    def _is_worth_a_try(self, known: TableStatus, facts: TableFacts) -> bool:
        """At the start of a run, when the table is another than it was, or its trouble is over, and now and then."""
        if known.table in self._troubled:
            self._troubled.remove(known.table)
            return True
        now, wait = time.monotonic(), RETRY_SECONDS[0]
        if known.table not in self._retries:
            self._retries[known.table] = (now + wait, wait)
            return not self._is_published
        due, wait = self._retries[known.table]
        if now < due and known.schema == facts.schema:
            return False
        wait = min(wait * 2, RETRY_SECONDS[1])
        self._retries[known.table] = (now + wait, wait)
        return True

    def _hear_requests(self) -> None:
        if time.monotonic() - self._asked_at < max(REQUEST_SECONDS, self.follower.storage.idle_seconds):
            return
        self._asked_at = time.monotonic()
        for name, request in requests.waiting(self.follower.pipeline.state, self.follower.name).items():
            if self.copies.is_copying(request.table):
                continue  # it is heard when that is done
            with self.follower.lock:
                known = self.follower.tables.get(request.table)
                if known is not None and known.table not in self._troubled:
                    self.follower.became(known.again(self._start_of(known), known.schema, reason="it was asked for"))
            requests.done(self.follower.pipeline.state, name)

    # --- catching up

    def _catching_up(self) -> list[list[TableStatus]]:
        """The tables that catch up, those at the same place together: none waits for one that is slower."""
        groups: dict[int, list[TableStatus]] = {}
        for status in [s for s in list(self.follower.tables.values()) if s.state in CATCHING_UP]:
            groups.setdefault(status.watermark.offset, []).append(status)
        return list(groups.values())

    def _catch_up(self, statuses: list[TableStatus]) -> None:
        """Apply what happened since the tables' start; live once past everything that a snapshot saw."""
        sink = self.follower
        statuses = [self._bounded(sink.tables[s.table]) for s in statuses if sink.tables[s.table].state in CATCHING_UP]
        if not statuses:
            return
        first, end = min(status.watermark.offset for status in statuses), sink.watermark.offset
        limit = sink.log.limit(first, sink.settings.max_rows, sink.settings.max_bytes) if first < end else end
        is_past = all(self._is_past(status, sink.watermark) for status in statuses)
        if limit < end or (first < end and not is_past):
            sink.catch_up_to(statuses, min(limit, end), finish=False)
            sink.on_commit()  # a full log makes room for what the snapshot saw
            return
        if not is_past:
            self._own.stopping.wait(IDLE_SECONDS)
            return
        with sink.lock:
            if sink.is_stopping:
                return
            sink.catch_up_to(statuses, sink.watermark.offset, finish=True)
            failpoints.reached("table-live")
        for now in (sink.tables[status.table] for status in statuses):
            sink.say_table(now, now.rows if now.state is TableState.LIVE else None)
        sink.on_commit()

    def _is_past(self, status: TableStatus, mark: Watermark) -> bool:
        return status.state is not TableState.AHEAD and self.source.reached(mark.position, status.snapshot_end)

    def _bounded(self, status: TableStatus) -> TableStatus:
        """A table that is ahead, with the position up to which it is; no longer ahead once its changes are there."""
        if status.state is TableState.AHEAD and status.table in self.follower.fetched:
            self.follower.fetched.discard(status.table)
            self.follower.write(msgspec.structs.replace(status, snapshot_end=self.source.current_position()))
        elif status.state is TableState.AHEAD and self.source.reached(status.watermark.position, status.snapshot_end):
            self.follower.write(status.move(TableState.CATCH_UP))
        return self.follower.tables[status.table]
