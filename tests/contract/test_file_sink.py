"""Folders, held to the contract of sinks that take every change: in JSON lines, and in Parquet."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from tailrace import config, registry
from tailrace.errors import ConfigError, SinkRejected, SinkTaken, SinkUnavailable, StateUnavailable
from tailrace.model.changes import Changes, Op
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, TableSchema
from tailrace.sinks.base import Batch, ChangeSink, ChunkMark
from tailrace.sinks.files import FileSink, committed
from tailrace.sinks.files.naming import OWN, PARTITION, folder_of
from tailrace.testing.change_sink_contract import (
    AT_US,
    ChangeSinkContract,
    TellChanges,
    apply,
    changes,
    inserts,
    nobody,
    staged,
)
from tailrace.testing.dying import Mortal
from tailrace.testing.sink_changes import INT, ITEMS, LOOSE, ORDERS, Inventory, chunk, status, table_of, watermark

MakeFiles = Callable[..., FileSink]
Told = tuple[int, str, tuple[Any, ...]]
OPS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}


@pytest.fixture
def own() -> dict[str, Any]:
    return {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def make_sink(folder: Path, tmp_path: Path, own: dict[str, Any]) -> MakeFiles:
    def make(pipeline: str = "under_test", **more: Any) -> FileSink:
        sink = config.Sink(f"file://{folder}", own=own | more)
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        found = registry.make_sink(
            config.Pipeline(pipeline, source, {"out": sink}, state=str(tmp_path / "state")), "out"
        )
        assert isinstance(found, FileSink)
        return found

    return make


@pytest.fixture
def told(folder: Path) -> TellChanges:
    return lambda schema: told_by(committed(folder).get(folder_of(schema), []), schema)


@pytest.fixture
def inventory(folder: Path) -> Inventory:
    """Of what is committed its folders: each commit has a file of its own."""

    def list_all() -> list[str]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        return sorted({str(path.parent if path.parent.name.startswith(PARTITION) else path) for path in files})

    return list_all


def told_by(files: list[Path], schema: TableSchema) -> list[Told]:
    names = [column.name for column in schema.columns]
    found: list[Told] = []
    for path in files:
        for offset, op, row in _rows(path):
            if found and op == "insert" and found[-1][:2] == (offset, "delete"):
                found.pop()  # a line has no word for a key that changed: it is two of them
                op = "update"
            found.append((offset, op, tuple(row.get(name) for name in names)))
    return found


def _rows(path: Path) -> list[tuple[int, str, dict[str, Any]]]:
    if path.suffix == ".parquet":
        rows = parquet.read_table(path, partitioning=None).to_pylist()
    else:
        text = path.read_text()
        assert text.endswith("\n")
        rows = [json.loads(line) for line in text.split("\n")[:-1]]
    if rows and "_op" not in rows[0]:
        return [(int(row["source"]["lsn"] or 0), OPS[row["op"]], row["after"] or row["before"] or {}) for row in rows]
    return [(row["_offset"] or int(row["_position"].partition("/")[2], 16), row["_op"], row) for row in rows]


class TestLines(ChangeSinkContract):
    """All of it, in Debezium's envelopes."""


class TestParquet(ChangeSinkContract):
    @pytest.fixture
    def own(self) -> dict[str, Any]:
        return {"format": "parquet"}


def test_flat_lines_tell_every_change(make_sink: MakeFiles, told: TellChanges) -> None:
    sink = make_sink(shape="flat")
    made = [(Op.INSERT, (1, "a", None)), (Op.DELETE, (1, None, None)), (Op.TRUNCATE, (None, None, None))]
    apply(sink, [[changes(ITEMS, 1, *made)]], 10)
    assert [(op, row) for _, op, row in told(ITEMS)] == [
        ("insert", (1, "a", None)),
        ("delete", (1, None, None)),
        ("truncate", (None, None, None)),
    ]


def test_a_delete_has_the_old_row_as_it_was_sent_also_among_others(make_sink: MakeFiles, told: TellChanges) -> None:
    sink = make_sink()
    made = [
        (Op.DELETE, (1, None, None)),
        (Op.DELETE, (2, None, None), (2, "b", "c")),
        (Op.UPDATE, (3, "d", None), (3, "c", None)),
        (Op.DELETE, (4, None, None)),
    ]
    apply(sink, [[changes(ITEMS, 1, *made)]], 10)
    assert [row for _, _, row in told(ITEMS)] == [(1, None, None), (2, "b", "c"), (3, "d", None), (4, None, None)]


# --- what readers find


def listed(folder: Path, schema: TableSchema) -> list[Path]:
    return sorted(folder.glob(f"{folder_of(schema)}/*/*"), key=lambda path: path.name)


@dataclass(frozen=True)
class Cut:
    """A commit, to be done by another process."""

    sink: Any
    batch: Any

    def __call__(self) -> None:
        self.sink.commit(self.batch, nobody)


def test_a_listing_never_finds_what_is_not_committed_and_the_next_claim_completes_it(
    make_sink: MakeFiles, folder: Path
) -> None:
    """Killed before each step of a commit: a file that can be listed is one that the watermark says is there."""
    step, partly, is_killed = 0, 0, True
    sink = make_sink()
    sink.claim("run 0")
    with Mortal() as mortal:
        while is_killed:
            end = 10 * step + 10
            parts = [[inserts(ITEMS, end - 5, (1, "a", None)), inserts(ORDERS, end - 4, (1, 1))]]
            is_killed = mortal.dies(Cut(sink, staged(sink, parts, end)), step + 1)
            is_there = watermark(end).is_at(sink.read_state().watermark)
            found = [told_by(listed(folder, schema), schema) for schema in (ITEMS, ORDERS)]
            news = sum(offset > end - 10 for each in found for offset, _, _ in each)
            partly += news == 1
            assert is_there or not news
            step += 1
            sink = make_sink()
            sink.claim(f"run {step}")
            if is_there:
                after = [told_by(listed(folder, schema), schema)[-1][0] for schema in (ITEMS, ORDERS)]
                assert after == [end - 5, end - 4]
            else:
                sink.clean()
                apply(sink, parts, end)
    assert partly, "no kill came between two files: the test shows nothing"
    assert [path for path in (folder / OWN).rglob("*") if path.is_file() and path.parent.name == "staged"] == []


def of_days(schema: TableSchema, first: int, days: list[int]) -> Changes:
    made = inserts(schema, first, *((first + number, 1) for number in range(len(days))))
    times = pa.array([AT_US + day * 86_400_000_000 for day in days]).cast(pa.timestamp("us", "UTC"))
    return replace(made, transactions=pa.record_batch([times], ["_commit_time"]))


def test_files_are_by_the_day_of_the_commit_and_in_order_by_their_names(make_sink: MakeFiles, folder: Path) -> None:
    sink = make_sink()
    apply(sink, [[of_days(ORDERS, 1, [0, 0, 1, 0, 1])]], 10)
    files = listed(folder, ORDERS)
    days = [path.parent.name for path in files]
    assert days == [f"{PARTITION}=2023-11-{day}" for day in (14, 15, 14, 15)]
    assert [offset for offset, _, _ in told_by(files, ORDERS)] == [1, 2, 3, 4, 5]
    assert [path.name.split("-")[2:4] for path in files] == [["1", "2"], ["3", "3"], ["4", "4"], ["5", "5"]]


def test_arrow_reads_parquet_as_one_table_with_its_days(make_sink: MakeFiles, folder: Path) -> None:
    sink = make_sink(format="parquet")
    apply(sink, [[of_days(ORDERS, 1, [0, 1])]], 10)
    apply(sink, [[changes(ORDERS, 11, (Op.UPDATE, (2, 7), (1, 1)))]], 20)
    found = dataset.dataset(folder / folder_of(ORDERS), format="parquet", partitioning="hive").to_table().to_pylist()
    by_offset = {row["_offset"]: row for row in found}
    assert {offset: str(row[PARTITION]) for offset, row in by_offset.items()} == {
        1: "2023-11-14",
        2: "2023-11-15",
        11: "2023-11-14",
    }
    last = by_offset[11]
    assert (last["id"], last["item"], last["_before"]) == (2, 7, {"id": 1, "item": 1})
    assert (last["_op"], last["_position"], last["_transaction"], last["_number"]) == ("update", "0/B", "1011", 1)


def test_tables_have_folders_of_their_own_whatever_they_are_called() -> None:
    def named(schema: str, name: str) -> str:
        return folder_of(TableSchema(schema, name, (Column("id", INT),)))

    assert named("public", "orders") == "public.orders"
    assert named("_tailrace", "x") == "%5Ftailrace.x"
    assert named("a", "b/../c") == "a.%22b%2F..%2Fc%22"
    assert named("a", "b%2Fc") == "a.b%252Fc"
    long = [named("ü" * 63, f"{'ß ' * 31}{end}") for end in "ab"]
    assert (len(set(long)), max(len(each.encode()) for each in long) <= 200) == (2, True)


# --- snapshots


def begun(sink: FileSink, schema: TableSchema = ITEMS, chunks: int = 2, generation: int = 1) -> TableStatus:
    marks = [chunk(schema, number, generation) for number in range(chunks)]
    return sink.begin_snapshot(status(schema, TableState.SNAPSHOT, 5, generation), marks, clear=True)


def staged_chunk(sink: FileSink, number: int, *rows: tuple[Any, ...], generation: int = 1) -> ChunkMark:
    mark = chunk(ITEMS, number, generation)
    assert pickle.loads(pickle.dumps(sink)).load_chunk(ITEMS, mark, iter([table_of(ITEMS, rows)])) == len(rows)
    return mark


@pytest.mark.parametrize("more", [{}, {"shape": "flat"}, {"format": "parquet"}], ids=str)
def test_a_chunk_is_seen_once_it_is_delivered_and_its_mark_with_it(
    make_sink: MakeFiles, told: TellChanges, more: dict[str, Any]
) -> None:
    sink = make_sink(**more)
    sink.claim("run")
    begun(sink)
    mark = staged_chunk(sink, 0, (1, "a", None), (2, "b", None))
    assert told(ITEMS) == []
    assert [sink.deliver(mark), sink.deliver(mark)] == [2, 0]
    assert told(ITEMS) == [(5, "read", (1, "a", None)), (5, "read", (2, "b", None))]
    assert sink.deliver(staged_chunk(sink, 1)) == 0
    found = [(each.is_loaded, each.rows) for each in sink.read_state().chunks[ITEMS.table]]
    assert found == [(True, 2), (True, 0)]


def test_a_chunk_that_nobody_staged_is_not_marked(make_sink: MakeFiles) -> None:
    sink = make_sink()
    sink.claim("run")
    begun(sink)
    assert sink.deliver(chunk(ITEMS, 1)) == 0
    assert not any(each.is_loaded for each in sink.read_state().chunks[ITEMS.table])


def test_chunks_of_a_run_that_was_claimed_over_are_not_delivered(make_sink: MakeFiles, told: TellChanges) -> None:
    first, second = make_sink(), make_sink()
    first.claim("first")
    begun(first)
    mark = staged_chunk(first, 0, (1, "a", None))
    second.claim("second")
    with pytest.raises(SinkTaken):
        first.deliver(mark)
    with pytest.raises(SinkTaken):
        first.load_chunk(ITEMS, mark, iter([]))
    assert second.deliver(mark) == 0
    staged_chunk(second, 0, (1, "a", None))
    assert second.deliver(mark) == 1
    assert len(told(ITEMS)) == 1


@pytest.mark.parametrize("more", [{}, {"shape": "flat"}, {"shape": "cloudevents"}, {"format": "parquet"}], ids=str)
def test_a_table_that_is_copied_again_begins_with_a_truncate(
    make_sink: MakeFiles, folder: Path, more: dict[str, Any]
) -> None:
    sink = make_sink(**more)
    sink.claim("run")
    begun(sink)
    sink.deliver(staged_chunk(sink, 0, (1, "a", None)))
    begun(sink, generation=2, chunks=1)
    begun(sink, generation=3, chunks=1)
    assert sink.deliver(chunk(ITEMS, 0, 1)) == 0
    sink.deliver(staged_chunk(sink, 0, (2, "b", None), generation=3))
    files = committed(folder)[folder_of(ITEMS)]
    assert [path.name.split("-")[2] for path in files] == ["read1", "truncate2", "read3"]
    if more.get("shape") != "cloudevents":
        assert [op for _, op, _ in told_by(files, ITEMS)] == ["read", "truncate", "read"]
    assert [each.generation for each in sink.read_state().chunks[ITEMS.table]] == [3]


# --- what goes wrong


def test_what_was_staged_and_is_gone_is_not_committed(make_sink: MakeFiles, told: TellChanges) -> None:
    sink = make_sink()
    batch = staged(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    sink.clean()
    with pytest.raises(StateUnavailable):
        sink.commit(batch, nobody)
    assert (told(ITEMS), sink.read_state().watermark) == ([], None)


def test_while_another_process_commits_nobody_else_does(make_sink: MakeFiles) -> None:
    sink, other = make_sink(), make_sink()
    sink.claim("run")
    with sink._claimed(), pytest.raises(SinkUnavailable):
        other.claim("another")
    sink.check_claim()


@pytest.mark.parametrize(
    ("more", "name"),
    [({"format": "parquet"}, "_Op"), ({"format": "parquet"}, PARTITION), ({"shape": "flat"}, PARTITION)],
    ids=str,
)
def test_a_column_that_readers_would_take_for_another_is_its_tables_own_trouble(
    make_sink: MakeFiles, more: dict[str, Any], name: str
) -> None:
    odd = TableSchema("public", "odd", (Column("id", INT), Column(name, INT)), ("id",))
    sink = make_sink(**more)
    with pytest.raises(SinkRejected, match="a name that files have for themselves") as refused:
        apply(sink, [[inserts(odd, 1, (1, 1))]], 10)
    assert refused.value.table == odd.table


def test_a_table_without_columns_has_its_changes_in_parquet(make_sink: MakeFiles, told: TellChanges) -> None:
    bare = TableSchema("public", "bare", ())
    apply(make_sink(format="parquet"), [[changes(bare, 1, (Op.TRUNCATE, ()))]], 10)
    assert told(bare) == [(1, "truncate", ())]


@pytest.mark.parametrize("url", ["file://relative/folder", "file:///", "file:///a?b=c"])
def test_a_url_that_names_no_folder_is_refused(url: str) -> None:
    source = config.Source("postgresql://localhost/shop", ("*.*",))
    with pytest.raises(ConfigError, match="absolute path"):
        FileSink(config.Pipeline("shop", source, {"out": config.Sink(url)}), "out")


@pytest.mark.parametrize(
    "section",
    [{"tables": {"public.a": "b"}}, {"schemas": {"public": "b"}}, {"on_error": config.OnError.QUARANTINE}],
    ids=str,
)
def test_what_it_does_not_have_is_refused(section: dict[str, Any], folder: Path) -> None:
    source = config.Source("postgresql://localhost/shop", ("*.*",))
    with pytest.raises(ConfigError):
        FileSink(config.Pipeline("shop", source, {"out": config.Sink(f"file://{folder}", **section)}), "out")


def test_a_folder_that_is_a_file_does_not_pass_the_check(make_sink: MakeFiles, folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(SinkRejected, match="is no folder"):
        make_sink().check()


def test_a_part_with_more_tables_than_open_files_is_in_order(
    make_sink: MakeFiles, told: TellChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.sinks.files.staging.OPEN_FILES", 1)
    sink: ChangeSink = make_sink()
    part = [inserts(LOOSE if offset % 2 else ORDERS, offset, (offset, 1)) for offset in range(2, 8, 2)]
    more = [inserts(LOOSE, offset, (offset, "a")) for offset in range(1, 8, 2)]
    mixed = [each for pair in zip(more, part, strict=False) for each in pair]
    receipt = sink.stage_changes("batch", 0, mixed)
    sink.commit(Batch((receipt,), watermark(10), (status(LOOSE, offset=10), status(ORDERS, offset=10))), nobody)
    assert [offset for offset, _, _ in told(LOOSE)] == [1, 3, 5]
    assert [offset for offset, _, _ in told(ORDERS)] == [2, 4, 6]
