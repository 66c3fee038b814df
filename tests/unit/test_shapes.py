"""Arrays of any shape, NaN in decimals and late timestamps, through net changes, composing and the flat form."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from tailrace.columns.net import net_changes
from tailrace.columns.text import to_text
from tailrace.errors import DecodeError, SinkRejected, SinkUnavailable, ValueRefused, about
from tailrace.model import extremes, shapes
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op, concat
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.pieces import compose
from tailrace.sources.postgres.values.arrays import array_literal
from tailrace.testing.sample_values import NUMERIC_12_2, SAMPLES
from tailrace.testing.sink_changes import net

INTEGERS = SAMPLES["matrices"].type
KEYED = TableSchema("public", "keyed", (Column("k", INTEGERS), Column("v", INTEGERS)), ("k",))
LOOSE = TableSchema("public", "loose", (Column("v", INTEGERS),), (), Identity.FULL)

PLAIN, SQUARE, SHIFTED, ROW = (
    ([1, 2, 3, 4], None),
    ([1, 2, 3, 4], "[1:2][1:2]"),
    ([1, 2, 3, 4], "[0:3]"),
    ([1, 2, 3, 4], "[1:1][1:4]"),
)
"""The same elements in four shapes."""


def arrays(*values: tuple[list[int], str | None] | None) -> pa.Array:
    """Plain lists where no value has a shape."""
    lists = pa.array([None if value is None else value[0] for value in values], pa.list_(pa.int32()))
    written = [None if value is None else value[1] for value in values]
    return lists if not any(written) else shapes.shaped(lists, pa.array(written, pa.string()))


def texts(array: pa.Array) -> list[str | None]:
    return to_text(array, INTEGERS).to_pylist()


def changes(schema: TableSchema, op: Op, *columns: pa.Array) -> Changes:
    rows = schema.rows(columns)
    zeros = np.zeros(rows.num_rows, np.int64)
    has_before = op is Op.DELETE and not schema.key
    before_rows = np.arange(rows.num_rows) if has_before else zeros[:0]
    before = rows if has_before else rows.slice(0, 0)
    ops = np.full(rows.num_rows, op, np.int8)
    return Changes(schema, ops, zeros, zeros, NO_TRANSACTIONS, rows, None, before_rows, before)


def test_arrays_of_several_shapes_are_several_keys() -> None:
    first = changes(KEYED, Op.INSERT, arrays(PLAIN), arrays(PLAIN))
    second = changes(KEYED, Op.INSERT, arrays(SQUARE, SHIFTED, ROW), arrays(None, PLAIN, SQUARE))
    third = changes(KEYED, Op.DELETE, arrays(SHIFTED), arrays(None))
    [result] = net_changes([first, second, third])
    assert texts(result.upserts.column("k")) == ["[1,2,3,4]", "[[1,2],[3,4]]", "[[1,2,3,4]]"]
    assert texts(result.upserts.column("v")) == ["[1,2,3,4]", None, "[[1,2],[3,4]]"]
    assert texts(result.deletes.column("k")) == ['{"[0:3]":[1,2,3,4]}']


def test_rows_without_a_key_are_told_apart_by_the_shapes_of_their_arrays() -> None:
    come = changes(LOOSE, Op.INSERT, arrays(PLAIN, SQUARE, SQUARE, None))
    go = changes(LOOSE, Op.DELETE, arrays(SQUARE, SHIFTED, PLAIN))
    [result] = net_changes([come, go])
    assert set(texts(result.upserts.column("v"))) == {None, "[[1,2],[3,4]]"}
    assert texts(result.deletes.column("v")) == ['{"[0:3]":[1,2,3,4]}']


def test_net_changes_of_different_forms_are_composed() -> None:
    first = net(KEYED, KEYED.rows([arrays(PLAIN, SQUARE), arrays(PLAIN, SQUARE)]))
    second = net(KEYED, KEYED.rows([arrays(PLAIN), arrays(None)]))
    result = compose([first, second])
    found = zip(texts(result.upserts.column("k")), texts(result.upserts.column("v")), strict=True)
    assert dict(found) == {"[1,2,3,4]": None, "[[1,2],[3,4]]": "[[1,2],[3,4]]"}


@pytest.mark.parametrize("sample", ["matrices", "undefined", "late", "late_utc"])
def test_what_only_we_can_read_does_not_get_out(sample: str) -> None:
    type_, values = SAMPLES[sample].type, SAMPLES[sample].values
    schema = TableSchema("public", "odd", (Column("v", type_),))
    with pytest.raises(ValueRefused, match=r"column public\.odd\.v \(") as caught:
        changes(schema, Op.INSERT, values).to_arrow()
    assert caught.value.table == "public.odd"
    null = changes(schema, Op.INSERT, values.slice(len(values) - 1) if sample != "matrices" else arrays(None))
    assert null.to_arrow().num_rows == 1


def test_nan_in_a_list_of_decimals_does_not_get_out_either() -> None:
    nans = extremes.nans(1, pa.decimal128(12, 2))
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), nans)
    type_ = ColumnType(Kind.ARRAY, "numeric(12,2)[]", element=NUMERIC_12_2)
    schema = TableSchema("public", "odd", (Column("v", type_),))
    assert to_text(lists, type_).to_pylist() == ['["NaN"]']
    with pytest.raises(ValueRefused, match="NaN"):
        changes(schema, Op.INSERT, lists).to_arrow()


def test_infinities_do_get_out() -> None:
    schema = TableSchema("public", "odd", (Column("v", SAMPLES["timestamp"].type),))
    assert changes(schema, Op.INSERT, SAMPLES["timestamp"].values).to_arrow().num_rows == 9


@pytest.mark.parametrize("microseconds", [0, 2**63 - 2, 2**63 - 1, 2**63, 9_224_318_015_999_999_999, -(10**17)])
def test_a_timestamp_comes_back_from_what_holds_it(microseconds: int) -> None:
    held = extremes.held(microseconds)
    assert held is not None
    assert -(2**63) < held < 2**63 - 1
    assert extremes.microseconds_of(held) == microseconds
    assert extremes.has_late(np.array([held])) == (microseconds >= 2**63 - 1)


def test_the_infinities_and_what_lies_past_the_end_of_time_are_not_held_as_timestamps() -> None:
    assert extremes.held(9_224_318_016_000_000_000) is None
    assert not extremes.has_late(np.array([-(2**63), 2**63 - 1, -210_866_803_200_000_000]))


def test_pieces_of_a_column_come_together_in_either_form() -> None:
    together = shapes.concat([arrays(PLAIN, None), arrays(SQUARE), arrays(PLAIN)])
    assert texts(together) == ["[1,2,3,4]", None, "[[1,2],[3,4]]", "[1,2,3,4]"]
    assert shapes.concat([arrays(PLAIN), arrays(None)]).type == pa.list_(pa.int32())
    assert (
        concat([changes(LOOSE, Op.INSERT, arrays(PLAIN)), changes(LOOSE, Op.INSERT, arrays(ROW))]).after.num_rows == 2
    )


@pytest.mark.parametrize(
    ("canonical", "literal"),
    [
        ("[]", "{}"),
        ("{}", "{}"),
        ("[1,null,-2]", '{"1",NULL,"-2"}'),
        ("[[true],[false]]", "{{true},{false}}"),
        ('{"[0:1]":["a\\"b","\\\\"]}', '[0:1]={"a\\"b","\\\\"}'),
        ("{1,2}", "{1,2}"),
        ("[0:1]={1,2}", "[0:1]={1,2}"),
        ('{"a",NULL}', '{"a",NULL}'),
    ],
)
def test_a_key_that_is_an_array_is_asked_for_as_a_literal(canonical: str, literal: str) -> None:
    assert array_literal(canonical, ColumnType(Kind.TEXT, "text")) == literal


def test_the_elements_of_a_key_of_boxes_have_their_own_delimiter() -> None:
    assert array_literal('["(1,1),(0,0)",null]', ColumnType(Kind.OTHER, "box")) == '{"(1,1),(0,0)";NULL}'


def test_an_error_knows_its_table_and_takes_it_along() -> None:
    for kind in (DecodeError, ValueRefused, SinkRejected):
        with pytest.raises(kind) as caught, about("public.t"):
            raise kind("no", hint="yes")
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy), copy.hint, copy.table) == (kind, "no", "yes", "public.t")
    with pytest.raises(SinkUnavailable) as unavailable, about("public.t"):
        raise SinkUnavailable("away")
    assert unavailable.value.table is None
    with pytest.raises(SinkRejected) as other, about("public.t"):
        raise SinkRejected("no", table="public.u")
    assert other.value.table == "public.u"
