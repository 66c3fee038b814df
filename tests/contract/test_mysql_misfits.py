"""Values that MySQL and MariaDB have no place for, under each policy: refused, held as text, or set aside."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.contract.test_mysql_sink import REFUSED, make_sink, query, url  # noqa: F401 - fixtures

from tailrace.columns.text import to_text
from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, TableSchema
from tailrace.sinks.sql import sink as sql_sink
from tailrace.sinks.sql.quarantine import sieve
from tailrace.testing.sample_values import SAMPLES
from tailrace.testing.sink_changes import INT, SourceRows, apply, chunk, net, partial, status, watermark

pytestmark = pytest.mark.server

NAMES = sorted(REFUSED)


@pytest.fixture(params=[1 << 20, -1], ids=["inline", "staged"], autouse=True)
def inline_bytes(request, monkeypatch):
    monkeypatch.setattr(sql_sink, "INLINE_BYTES", request.param)


def table(name: str) -> tuple[TableSchema, pa.RecordBatch]:
    """A row for each value of a sample."""
    sample = SAMPLES[name]
    schema = TableSchema("public", name, (Column("id", INT), Column("v", sample.type)), ("id",))
    arrays = [pa.array(range(len(sample.values)), pa.int64()), sample.values]
    return schema, pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def test_refused_by_default(make_sink):  # noqa: F811
    sink = make_sink()
    for name in NAMES:
        schema, batch = table(name)
        with pytest.raises(SinkRejected, match=rf"public\.{name}\.v .* can not hold"):
            apply(sink, [net(schema, batch)], 10)
    assert sink.read_state().watermark is None
    sink.close()


def test_as_text_every_value_is_held(make_sink, query):  # noqa: F811
    sink = make_sink(misfits="text")
    for number, name in enumerate(NAMES):
        schema, batch = table(name)
        sink.begin_snapshot(status(schema, TableState.SNAPSHOT), [chunk(schema)], clear=True)
        sink.load_chunk(schema, chunk(schema), iter([batch.slice(0, 1)]))
        apply(sink, [net(schema, batch.slice(1))], 10 * number + 10)
        found = [value for (value,) in query(f"SELECT v FROM `{name}` ORDER BY id")]
        assert (name, found) == (name, to_text(SAMPLES[name].values, SAMPLES[name].type).to_pylist())
        read = [row for part in sink.read_table(schema) for row in part]
        assert sorted(read) == sorted(sink.expected_rows(schema, batch))
    sink.close()


def test_as_text_a_key_finds_its_row(make_sink, query):  # noqa: F811
    sink = make_sink(misfits="text")
    sample = SAMPLES["timestamptz"]
    schema = TableSchema("public", "by_time", (Column("n", INT), Column("at", sample.type)), ("at",))
    keys = sample.values.drop_null()
    rows = pa.RecordBatch.from_arrays([pa.array([1] * len(keys), pa.int64()), keys], schema=schema.arrow)
    apply(sink, [net(schema, rows)], 10)
    apply(sink, [net(schema, deletes=rows.slice(1).select(["at"]))], 20)
    assert query("SELECT n FROM by_time") == [(1,)]
    sink.close()


def test_in_quarantine_the_other_rows_go_on(make_sink, query):  # noqa: F811
    sink = make_sink(misfits="quarantine")
    for number, name in enumerate(NAMES):
        schema, batch = table(name)
        apply(sink, [net(schema, batch)], 10 * number + 10)
        held = [place for (place,) in query(f"SELECT id FROM `{name}`")]
        texts = to_text(SAMPLES[name].values, SAMPLES[name].type).to_pylist()
        aside = {
            entry.rejected.key["id"]: entry for entry in sink.quarantined() if entry.rejected.table == schema.table
        }
        assert aside
        assert sorted([*held, *map(int, aside)]) == list(range(batch.num_rows))
        for place, entry in aside.items():
            assert entry.rejected.payload == {"id": place, "v": texts[int(place)]}
            assert entry.rejected.reason.startswith(f"public.{name}.v (")
            assert entry.place == watermark(10 * number + 10)
    sink.close()


def test_too_many_rows_that_do_not_fit_are_a_matter_of_the_type(make_sink, query, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sieve, "MOST_REJECTED", 1)
    sink = make_sink(misfits="quarantine")
    schema, batch = table("timestamp")
    with pytest.raises(SinkRejected, match=r"more than 1 rows of a part of public\.timestamp") as refused:
        apply(sink, [net(schema, batch)], 10)
    assert "`misfits: text`" in refused.value.hint
    assert sink.read_state().watermark is None
    sink.close()


def test_rows_that_do_not_fit_and_are_too_large_to_be_kept_are_their_tables_own_trouble(make_sink, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sieve, "MOST_REJECTED_BYTES", 1)
    sink = make_sink(misfits="quarantine")
    schema, batch = table("timestamp")
    with pytest.raises(SinkRejected, match="too large to be set aside") as refused:
        apply(sink, [net(schema, batch)], 10)
    assert refused.value.table == schema.table
    sink.close()


def test_in_quarantine_chunks_updates_and_deletes_go_on(make_sink, query):  # noqa: F811
    sink = make_sink(misfits="quarantine")
    schema, batch = table("date")
    sink.begin_snapshot(status(schema, TableState.SNAPSHOT), [chunk(schema)], clear=True)
    sink.load_chunk(schema, chunk(schema), iter([batch]))
    read = {entry.rejected.key["id"] for entry in sink.quarantined()}
    assert {entry.rejected.operation for entry in sink.quarantined()} == {"read"}
    [(good,)] = query("SELECT min(id) FROM `date` WHERE v IS NOT NULL")
    bad = batch.filter(pa.array([str(n) in set(map(str, read)) for n in range(batch.num_rows)]))
    change = pa.RecordBatch.from_arrays(
        [pa.array([good], pa.int64()), bad.column("v").slice(0, 1)], schema=schema.arrow
    )
    apply(sink, [net(schema, partials=[partial(schema, (), change)])], 10, SourceRows(schema))
    assert [e.rejected.operation for e in sink.quarantined() if e.place.offset == 10] == ["update"]
    apply(sink, [net(schema, deletes=batch.select(["id"]))], 20)
    assert query("SELECT count(*) FROM `date`") == [(0,)]
    sink.close()
