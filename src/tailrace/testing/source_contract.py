"""The source contract as a test suite: every source passes it, whoever wrote it.

Subclass `SourceContract` in a test module and give it three fixtures:

- `database`: a fresh one with an empty table, as `source_changes.Database` says;
- `make_source`: a function that makes a source of it, each time as a process that was just started would;
- `other_source`: a source of another database, made in the same way.

A gap is an override marked `xfail(strict=True)` with its reason.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tailrace import registry
from tailrace.errors import SourceChanged
from tailrace.model.changes import change_schema
from tailrace.model.frames import TRANSACTIONS
from tailrace.model.types import Kind
from tailrace.sources.base import Level, Source
from tailrace.testing.source_changes import (
    Change,
    Database,
    Stretch,
    capture,
    copied,
    decoded,
    delete,
    ends,
    folded,
    insert,
    missing,
    plain_rows,
    prepare,
    read_on,
    schema_of,
    told,
    update,
)

MakeSource = Callable[[], Source]

HISTORY: list[list[Change]] = [
    [insert(1, "a"), insert(2, None), insert(3, "ü 日本 '\"\\")],
    [update(1, "b")],
    [update(1, None), delete(2), insert(2, "again")],
    [update(9, "moved", old_id=3)],
    [delete(1)],
]
"""Transactions, of which every change tells in its own way."""
CHANGES = [change for transaction in HISTORY for change in transaction]


class SourceContract:
    """All of it. It reads the data: what a source tells is compared with what was changed."""

    @pytest.fixture
    def source(self, make_source: MakeSource) -> Iterator[Source]:
        source = make_source()
        yield source
        source.drop()

    @pytest.fixture
    def begin(self, source: Source) -> str:
        """Where the stream begins."""
        return prepare(source)

    @pytest.fixture
    def stretch(self, source: Source, begin: str, database: Database) -> Stretch:
        """HISTORY, captured."""
        play(database)
        return capture(source, begin)

    # --- what it is --------------------------------------------------------------------------------------------------

    def test_nothing_is_left_to_the_empty_methods_of_the_protocol(self, source: Source) -> None:
        assert missing(type(source), Source) == set()

    def test_a_sound_source_passes_its_preflight(self, source: Source) -> None:
        assert [finding for finding in source.preflight() if finding.level is Level.FAIL] == []

    def test_a_table_has_its_columns_its_key_and_a_number_of_its_own(
        self, source: Source, begin: str, database: Database
    ) -> None:
        schema = schema_of(source, database.table)
        assert ([column.name for column in schema.columns], schema.key) == (["id", "name"], ("id",))
        kinds = [column.type.kind for column in schema.columns]
        assert kinds[0] in {Kind.INT16, Kind.INT32, Kind.INT64}
        assert kinds[1] is Kind.TEXT
        assert schema.relation != 0, "tables are told apart by it when names change"
        assert source.captures(schema)

    def test_the_facts_are_of_the_same_tables_and_change_only_with_them(
        self, source: Source, begin: str, make_source: MakeSource, database: Database
    ) -> None:
        def facts(of: Source) -> list[object]:
            return [msgspec.structs.replace(each, bytes=0) for each in of.facts()]

        assert [each.schema for each in source.facts()] == source.tables()
        assert all(each.membership and not each.trouble for each in source.facts())
        before = facts(source)
        database.change(insert(1, "a"))
        assert facts(make_source()) == before

    def test_a_source_knows_itself_and_no_other(
        self, source: Source, begin: str, make_source: MakeSource, other_source: Source
    ) -> None:
        known = source.identify()
        assert make_source().check_same(known, begin).database == known.database
        prepare(other_source)
        try:
            with pytest.raises(SourceChanged):
                other_source.check_same(known, begin)
            with pytest.raises(SourceChanged):
                other_source.capture(begin, 1, {}, known).close()
        finally:
            other_source.drop()

    def test_what_was_prepared_can_be_dropped_and_prepared_again(self, source: Source, begin: str) -> None:
        prepare(source)
        source.drop()
        assert source.drop() == []
        assert source.reached(prepare(source), begin)

    # --- the stream --------------------------------------------------------------------------------------------------

    def test_every_change_is_told_in_the_order_of_commits(
        self, source: Source, stretch: Stretch, database: Database
    ) -> None:
        found = told(decoded(source, stretch.frames, database.table))
        assert found == CHANGES
        assert folded([], found) == sorted(database.rows())

    def test_offsets_are_dense_and_each_change_has_one(
        self, source: Source, stretch: Stretch, database: Database
    ) -> None:
        nexts = [frames.last + 1 for frames in stretch.frames]
        assert [frames.first for frames in stretch.frames] == [1, *nexts[:-1]]
        offsets = np.concatenate([each.offset for each in decoded(source, stretch.frames, database.table)])
        assert len(set(offsets.tolist())) == len(CHANGES)
        assert (np.diff(offsets) > 0).all()
        assert 1 <= offsets[0] <= offsets[-1] <= stretch.frames[-1].last

    def test_frames_count_their_changes_and_define_their_tables(
        self, source: Source, stretch: Stretch, database: Database
    ) -> None:
        assert sum(frames.tables.get(database.table, 0) for frames in stretch.frames) == len(CHANGES)
        for frames in (each for each in stretch.frames if database.table in each.tables):
            defined = [each.schema for each in frames.definitions if each.schema.table == database.table]
            assert [(schema.key, schema.arrow.names) for schema in defined] == [(("id",), ["id", "name"])]
        relation = schema_of(source, database.table).relation
        assert {d.relation for f in stretch.frames for d in f.definitions if d.schema.relation == relation} == {
            relation
        }

    def test_a_transaction_is_whole_and_its_own(self, source: Source, stretch: Stretch, database: Database) -> None:
        begins, ends_ = (
            np.concatenate([batch.column(name).to_numpy() for batch in stretch.transactions()])
            for name in ("begin", "end")
        )
        for batch in stretch.transactions():
            assert set(batch.schema) >= set(TRANSACTIONS)  # by name and type; the source's own are beside them
        offsets = np.concatenate([each.offset for each in decoded(source, stretch.frames, database.table)])
        of = [np.flatnonzero((begins <= offset) & (offset <= ends_)).tolist() for offset in offsets]
        assert all(len(found) == 1 for found in of)
        sizes = [len(list(group)) for group in grouped([found[0] for found in of])]
        assert sizes == [len(transaction) for transaction in HISTORY]

    def test_what_is_told_of_a_transaction_is_what_is_said_to_be_told(
        self, source: Source, stretch: Stretch, database: Database
    ) -> None:
        assert source.transaction_columns.field("_commit_time").type == pa.timestamp("us", "UTC")
        schema = schema_of(source, database.table)
        for changes in decoded(source, stretch.frames, database.table):
            assert changes.transactions.schema.equals(source.transaction_columns)
            flat = changes.to_arrow()
            assert flat.schema.names == change_schema(schema, source.transaction_columns).names
            times = [moment.timestamp() for moment in flat.column("_commit_time").to_pylist()]
            assert times == sorted(times)
            assert all(abs(moment - time.time()) < 3600 for moment in times)

    def test_decoding_needs_neither_a_database_nor_its_settings(
        self, source: Source, stretch: Stretch, database: Database
    ) -> None:
        expected = told(decoded(source, stretch.frames, database.table))
        for frames in stretch.frames:
            assert registry.decoder(frames.kind).__name__ == type(source).__name__
        pieces = pickle.loads(pickle.dumps(stretch.frames))
        assert told(decoded(registry.decoder(pieces[0].kind), pieces, database.table)) == expected
        assert told(decoded(pickle.loads(pickle.dumps(source)), pieces, database.table)) == expected

    def test_any_part_of_frames_can_be_decoded(self, source: Source, stretch: Stretch, database: Database) -> None:
        whole = decoded(source, stretch.frames, database.table)
        offsets = np.concatenate([each.offset for each in whole]).tolist()
        for frames in stretch.frames:
            assert list(source.decode(frames, frames.first, frames.last, {"no.such"})) == []
            for cut in range(frames.first, frames.last + 1):
                parts = [*source.decode(frames, frames.first, cut - 1), *source.decode(frames, cut, frames.last)]
                found = [offset for part in parts for offset in part.offset.tolist()]
                assert found == [offset for offset in offsets if frames.first <= offset <= frames.last]

    # --- positions ---------------------------------------------------------------------------------------------------

    def test_positions_are_in_the_order_of_commits(self, source: Source, stretch: Stretch, begin: str) -> None:
        places = [begin, *ends(source, stretch), stretch.received]
        for earlier, later in itertools.pairwise(places):
            assert source.reached(later, earlier)
        assert [source.reached(begin, place) for place in places[1:-1]] == [False] * len(places[1:-1])
        assert source.reached(begin, begin)
        assert source.distance(begin, begin) == 0 < source.distance(begin, places[-1])
        assert stretch.positions[-1] == places[-2]

    def test_a_transaction_ends_at_the_same_position_whoever_reads_it(
        self, source: Source, begin: str, make_source: MakeSource, database: Database
    ) -> None:
        """A log that was lost is read anew, and the sinks find their place in it by the position."""
        with closing(source.capture(begin, 1, {}, None)) as opened:
            bit_by_bit: list[str] = []
            for transaction in HISTORY:
                database.change(*transaction)
                bit_by_bit += changed_at(source, read_on(source, opened), database.table)
        at_once = capture(make_source(), begin)
        assert changed_at(source, at_once, database.table) == bit_by_bit
        assert len(bit_by_bit) == len(HISTORY)

    def test_capture_goes_on_after_any_transaction_and_after_a_restart(
        self, stretch: Stretch, source: Source, make_source: MakeSource, database: Database
    ) -> None:
        places = changed_at(source, stretch, database.table)
        for number, position in enumerate(places, 1):
            rest = capture(make_source(), position, first=1000, known=stretch.identity)
            found = decoded(source, rest.frames, database.table)
            assert told(found) == [change for transaction in HISTORY[number:] for change in transaction]
            assert all(frames.first >= 1000 for frames in rest.frames)

    def test_what_was_acknowledged_need_not_come_again_and_what_follows_does(
        self, source: Source, begin: str, make_source: MakeSource, database: Database
    ) -> None:
        database.change(insert(1, "a"))
        with closing(source.capture(begin, 1, {}, None)) as opened:
            position = read_on(source, opened).positions[-1]
            opened.acknowledge(position)
            database.change(insert(2, "b"))
            read_on(source, opened)
        restarted = make_source()
        assert source.reached(position, prepare(restarted)), "the source still has what was not acknowledged"
        rest = capture(restarted, position)
        assert told(decoded(source, rest.frames, database.table)) == [insert(2, "b")]

    def test_a_source_at_rest_is_read_to_its_end(self, source: Source, begin: str, database: Database) -> None:
        found = capture(source, begin)
        assert told(decoded(source, found.frames, database.table)) == []
        assert source.reached(found.received, begin)

    def test_a_capture_that_waits_wakes_up_when_it_is_asked_to(self, source: Source, begin: str) -> None:
        reading, writing = os.pipe()
        with closing(source.capture(begin, 1, {}, None)) as opened, open(reading) as wake, open(writing, "w") as ask:
            print("wake up", file=ask, flush=True)
            began = time.monotonic()
            for wait in (opened.poll, opened.idle):
                wait(20.0, wake)
            assert time.monotonic() - began < 10

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def test_the_chunks_of_a_snapshot_together_have_every_row_once(
        self, source: Source, begin: str, database: Database
    ) -> None:
        database.change(*(insert(number, f"name {number}" * 10) for number in range(500)))
        schema = schema_of(source, database.table)
        with source.export_snapshot() as snapshot:
            assert sorted(copied(source, schema, snapshot, chunk_bytes=8192)) == database.rows()
            assert sorted(plain_rows(source.read_all(schema, snapshot.id))) == database.rows()
        assert sorted(copied_now(source, database)) == database.rows()

    def test_an_empty_table_has_a_chunk(self, source: Source, begin: str, database: Database) -> None:
        """With its mark the sink knows that the table was copied."""
        schema = schema_of(source, database.table)
        with source.export_snapshot() as snapshot:
            assert source.plan_snapshot(schema, 1 << 20)
            assert copied(source, schema, snapshot) == []

    def test_a_snapshot_is_of_one_moment_wherever_it_is_read(
        self, source: Source, begin: str, database: Database
    ) -> None:
        database.change(insert(1, "a"), insert(2, "b"))
        schema = schema_of(source, database.table)
        task = pickle.loads(pickle.dumps(source))
        with source.export_snapshot() as snapshot:
            database.change(update(1, "later"), delete(2), insert(3, "later"))
            assert sorted(copied(task, schema, snapshot)) == [(1, "a"), (2, "b")]
            assert source.reached(source.current_position(), snapshot.position)

    def test_a_snapshot_and_the_changes_that_it_does_not_see_are_the_table(
        self, source: Source, begin: str, database: Database
    ) -> None:
        """The promise that all copies rest on, while somebody goes on writing."""
        schema = schema_of(source, database.table)
        copies = []
        with writing(database):
            for _ in range(3):
                wait_for_a_change(database)
                with source.export_snapshot() as snapshot:
                    wait_for_a_change(database)
                    copies.append((snapshot, copied(source, schema, snapshot)))
        stretch = capture(source, begin)
        changes = decoded(source, stretch.frames, database.table)
        for snapshot, rows in copies:
            unseen = [each.keep(source.unseen(each, snapshot.visibility)) for each in changes]
            assert 0 < sum(map(len, unseen)) < sum(map(len, changes))
            assert folded(rows, told(unseen)) == database.rows()

    def test_what_a_snapshot_sees_ends_before_its_position(
        self, source: Source, begin: str, database: Database
    ) -> None:
        database.change(insert(1, "a"))
        with source.export_snapshot() as snapshot:
            database.change(insert(2, "b"))
        transactions = capture(source, begin).transactions()
        seen = [each for batch in transactions for each in source.seen(batch, snapshot.visibility).to_pylist()]
        positions = [position for batch in transactions for position in source.end_positions(batch)]
        is_told = dict(zip(positions, seen, strict=True))
        assert {True, False} <= set(is_told.values())  # and None for what is no transaction
        for position in (position for position, is_seen in is_told.items() if is_seen):
            assert source.reached(snapshot.position, position)

    def test_rows_are_read_by_their_keys(self, source: Source, begin: str, database: Database) -> None:
        database.change(insert(1, "a"), insert(2, "b"), insert(3, None))
        schema = schema_of(source, database.table)
        numbers = pa.RecordBatch.from_arrays([pa.array([3, 1, 7], schema.arrow.field("id").type)], names=["id"])
        for keys in (numbers, pa.RecordBatch.from_arrays([pa.array(["3", "1", "7"])], names=["id"])):
            assert sorted(plain_rows([source.read_rows(schema, keys)])) == [(1, "a"), (3, None)]

    def test_rows_are_found_by_any_values_as_a_snapshot_sees_them(
        self, source: Source, begin: str, database: Database
    ) -> None:
        database.change(insert(1, "a"), insert(2, "b"), insert(3, None), insert(4, "a"))
        schema = schema_of(source, database.table)
        with source.export_snapshot() as snapshot:
            database.change(update(1, "later"), delete(2), insert(7, "a"))
            with pickle.loads(pickle.dumps(source)).reader(snapshot.id) as read:
                found = [
                    read(
                        schema,
                        by,
                        pa.RecordBatch.from_arrays(list(map(pa.array, values)), names=list(by)),
                        ("name", "id"),
                    )
                    for by, values in (
                        (("id",), [["3", "1", "7", "3", None]]),
                        (("name",), [["a", None, "later"]]),
                        (("name", "id"), [["a", "a", "b", None], ["1", "2", "2", "3"]]),
                        (("id",), [["no number", "99999999999999999999"]]),
                    )
                ]
        assert [rows.schema.names for rows in found] == [["name", "id"]] * 4
        assert [sorted(rows.column("id").to_pylist()) for rows in found] == [[1, 3], [1, 4], [1, 2], []]

    def test_everybody_sees_what_has_been_committed(self, source: Source, stretch: Stretch) -> None:
        assert source.is_shown(stretch.transactions())


def play(database: Database) -> None:
    for transaction in HISTORY:
        database.change(*transaction)


def grouped(numbers: list[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(number, []).append(number)
    return list(groups.values())


def changed_at(source: Source, stretch: Stretch, table: str) -> list[str]:
    """Where the transactions end that changed the table."""
    offsets = [offset for each in decoded(source, stretch.frames, table) for offset in each.offset.tolist()]
    found = []
    for batch in stretch.transactions():
        facts = zip(batch.column("begin").to_pylist(), batch.column("end").to_pylist(), strict=True)
        for (begin, end), position in zip(facts, source.end_positions(batch), strict=True):
            if any(begin <= offset <= end for offset in offsets):
                found.append(position)
    return found


def copied_now(source: Source, database: Database) -> list[tuple[int, str | None]]:
    return plain_rows(source.read_all(schema_of(source, database.table)))


class writing:  # noqa: N801 - reads as a statement
    """Somebody changes the table all the time, every so many `seconds`; ids are `first` and more."""

    def __init__(self, database: Database, first: int = 0, seconds: float = 0.002) -> None:
        self._database, self._first, self._seconds = database, first, seconds
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(30)
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            for number in itertools.count(self._first, 2):
                if self._done.is_set():
                    break
                changes = [insert(number, f"n{number}"), insert(number + 1, None)]
                if number > self._first + 2:
                    changes += [update(number - 2, "changed"), delete(number - 3)]
                self._database.change(*changes)
                self._done.wait(self._seconds)
        except BaseException as error:
            self._error = error


def wait_for_a_change(database: Database, seconds: float = 30.0) -> None:
    before, deadline = database.rows(), time.monotonic() + seconds
    while database.rows() == before:
        assert time.monotonic() < deadline, "nobody writes"
        time.sleep(0.005)
