"""`verify` of a folder is itself verified: a line changed, lost or doubled, and its key is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tailrace import config
from tailrace.errors import SinkRejected, ValueRefused
from tailrace.model.changes import Op
from tailrace.model.schema import Column, TableSchema
from tailrace.pipeline import verify
from tailrace.sinks.files import FileSink, committed
from tailrace.sinks.files.naming import folder_of
from tailrace.testing.change_sink_contract import apply, changes, inserts
from tailrace.testing.sample_values import SAMPLES
from tailrace.testing.sink_changes import INT, ITEMS, LOOSE, table_of

MakeFiles = Callable[..., FileSink]
FORMS: dict[str, dict[str, Any]] = {"debezium": {}, "flat": {"shape": "flat"}, "parquet": {"format": "parquet"}}
ROWS = [(number, f"name {number}", "note") for number in range(20)]


@pytest.fixture
def make_sink(tmp_path: Path) -> MakeFiles:
    def make(**own: Any) -> FileSink:
        sink = config.Sink(f"file://{tmp_path}/out", own=own)
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        return FileSink(config.Pipeline("under_test", source, {"out": sink}, state=str(tmp_path / "state")), "out")

    return make


class Source:
    """Stands for the source: it has these rows."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def read_all(self, schema: TableSchema, snapshot: str) -> Iterator[pa.RecordBatch]:
        yield self._batch


def differing(sink: FileSink, rows: Any, schema: TableSchema = ITEMS) -> tuple[str, ...]:
    found = verify._compare("out", schema, Source(table_of(schema, rows)), sink, "", "")  # type: ignore[arg-type]
    assert found.is_equal == (not found.differing)
    return found.differing


@pytest.mark.parametrize("form", FORMS)
def test_the_last_change_of_a_key_is_its_row(make_sink: MakeFiles, form: str) -> None:
    sink = make_sink(**FORMS[form])
    apply(sink, [[inserts(ITEMS, 1, (50, "before", None))]], 100)
    apply(sink, [[changes(ITEMS, 101, (Op.TRUNCATE, (None, None, None)))]], 200)
    apply(sink, [[inserts(ITEMS, 201, *ROWS)]], 300)
    moved = (Op.UPDATE, (101, "moved", None), (7, None, None))
    made = changes(ITEMS, 301, (Op.DELETE, (2, None, None)), (Op.UPDATE, (3, "other", None)), moved)
    unsent = np.array([[False] * 3, [False, False, True], [False] * 3])
    apply(sink, [[replace(made, unchanged=unsent)]], 400)
    now = [row for row in ROWS if row[0] not in (2, 3, 7)] + [(3, "other", "note"), (101, "moved", None)]
    assert differing(sink, now) == ()
    assert differing(sink, ROWS) == ("101", "2", "3", "7")


@pytest.mark.parametrize("form", ["debezium", "flat"])
def test_a_line_that_is_changed_lost_or_doubled_is_named(make_sink: MakeFiles, tmp_path: Path, form: str) -> None:
    sink = make_sink(**FORMS[form])
    apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
    apply(sink, [[changes(ITEMS, 101, (Op.UPDATE, (3, "other", None)))]], 200)
    now = [(3, "other", None) if row[0] == 3 else row for row in ROWS]
    path = committed(tmp_path / "out")[folder_of(ITEMS)][0]
    lines = path.read_bytes().splitlines(keepends=True)
    last = committed(tmp_path / "out")[folder_of(ITEMS)][1]
    assert differing(sink, now) == ()
    path.write_bytes(b"".join(lines).replace(b"name 5", b"name S"))
    assert differing(sink, now) == ("5",)
    path.write_bytes(b"".join(lines[1:]))
    assert differing(sink, now) == ("0",)
    path.write_bytes(b"".join(lines))
    last.write_bytes(last.read_bytes() + lines[3])
    assert differing(sink, now) == ("3",)
    last.write_bytes(b"nonsense\n")
    with pytest.raises(SinkRejected, match="a message that is none of this sink's, at 1:0"):
        differing(sink, now)


def test_a_parquet_file_that_lost_a_row_is_named(make_sink: MakeFiles, tmp_path: Path) -> None:
    sink = make_sink(format="parquet")
    apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
    path = committed(tmp_path / "out")[folder_of(ITEMS)][0]
    parquet.write_table(parquet.read_table(path, partitioning=None).slice(1), path)
    assert differing(sink, ROWS) == ("0",)


@pytest.mark.parametrize("form", FORMS)
def test_values_of_every_type_are_compared(make_sink: MakeFiles, form: str) -> None:
    sink, refused = make_sink(decimals="string", **FORMS[form]), []
    for number, (name, sample) in enumerate(SAMPLES.items()):
        schema = TableSchema("public", f"t{number}", (Column("id", INT), Column("v", sample.type)), ("id",))
        ids = pa.array(range(len(sample.values)), pa.int64())
        batch, shorter = schema.rows([ids, sample.values]), schema.rows([ids[:-1], sample.values[:-1]])
        made = replace(inserts(schema, number * 100 + 1, *((row, None) for row in range(len(ids)))), after=batch)
        try:
            apply(sink, [[made]], number * 100 + 100)
        except ValueRefused:
            refused.append(name)
            continue
        assert (name, differing(sink, batch, schema)) == (name, ())
        assert (name, differing(sink, shorter, schema)) == (name, (str(len(ids) - 1),))
    assert len(refused) < len(SAMPLES) // 4, refused


def test_a_table_without_a_key_is_not_compared(make_sink: MakeFiles) -> None:
    sink = make_sink()
    apply(sink, [[inserts(LOOSE, 1, (1, "a"))]], 10)
    with pytest.raises(SinkRejected, match=r"public\.loose has no key"):
        differing(sink, [(1, "a")], LOOSE)
