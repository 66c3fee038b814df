"""What every codec promises, over values of every type: subclass it with a fixture `codec`.

`read` gives what a value's bytes say, without what is of its moment; JSON unless a codec says otherwise.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.codecs.base import Codec, Encoded, Facts, Reads, Record
from tailrace.codecs.reads import reads_of
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes, Op
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.testing.codec_events import events_of, facts_of
from tailrace.testing.sample_values import SAMPLES

ID = Column("id", ColumnType(Kind.INT64, "bigint"), 1)
KEYED = TableSchema("public", "orders", (ID, Column("note", ColumnType(Kind.TEXT, "text"), 2)), ("id",))
TOLD = pa.RecordBatch.from_arrays(
    [
        pa.array([7, 8], pa.int64()),
        pa.array([1_709_251_199_500_000, 1_709_251_200_000_000], pa.timestamp("us", "UTC")),
        pa.array([731, 732], pa.int64()),
    ],
    names=["_commit_position", "_commit_time", "_xid"],
)


def changes_of(
    schema: TableSchema,
    ops: list[Op],
    after: list[pa.Array],
    before: dict[int, dict[str, Any]] | None = None,
    unchanged: list[list[bool]] | None = None,
) -> Changes:
    """Changes of two transactions, the second half of them of the second."""
    old = [before[row] for row in sorted(before)] if before else []
    columns = [pa.array([row.get(field.name) for row in old], field.type) for field in schema.arrow]
    return Changes(
        schema=schema,
        op=np.array(ops, np.int8),
        offset=np.arange(100, 100 + len(ops)),
        transaction=np.arange(len(ops)) * 2 // max(len(ops), 1),
        transactions=TOLD,
        after=schema.rows(after),
        unchanged=None if unchanged is None else np.array(unchanged),
        before_rows=np.array(sorted(before or {}), np.int64),
        before=schema.rows(columns),
    )


def sample(name: str) -> Changes:
    """An insert of each value of a sample."""
    found = SAMPLES[name]
    schema = TableSchema("public", "samples", (ID, Column("v", found.type, 2)), ("id",))
    ids = pa.array(range(len(found.values)), pa.int64())
    return changes_of(schema, [Op.INSERT] * len(ids), [ids, found.values])


class CodecContract:
    @pytest.fixture
    def codec(self) -> Codec:
        raise NotImplementedError

    def read(self, value: bytes) -> Any:
        return json.loads(value)

    def seen(self, codec: Codec, record: Record) -> tuple[Any, ...]:
        return record.key, record.value and self.read(record.value), record.headers

    def compare(self, codec: Codec, changes: Changes, facts: Facts | None = None) -> list[Record]:
        """Both ways, compared; a value that one refuses the other refuses as well."""
        facts = facts or facts_of(changes)
        refusal = self._refusal(codec, changes, facts)
        if refusal is not None:
            with pytest.raises(ValueRefused) as refused:
                codec.encode_changes(changes, facts)
            assert (str(refused.value), refused.value.table) == (str(refusal), changes.schema.table)
            return []
        one_by_one = [(row, r) for row, e in enumerate(events_of(changes, facts)) for r in codec.encode(e)]
        together = codec.encode_changes(changes, facts)
        records = records_of(together)
        assert together.change.tolist() == [row for row, _ in one_by_one]
        assert [self.seen(codec, each) for each in records] == [self.seen(codec, each) for _, each in one_by_one]
        return records

    def _refusal(self, codec: Codec, changes: Changes, facts: Facts) -> ValueRefused | None:
        try:
            for event in events_of(changes, facts):
                codec.encode(event)
        except ValueRefused as error:
            return error
        return None

    @pytest.mark.parametrize("name", SAMPLES)
    def test_values_of_every_type_are_the_same_both_ways(self, codec: Codec, name: str) -> None:
        changes = sample(name)
        if self._refusal(codec, changes, facts_of(changes)) is None:
            self.compare(codec, changes)
        else:  # which of them are
            for row in range(len(changes)):
                self.compare(codec, changes.slice(row, row + 1))
        self.compare(codec, changes.slice(1, len(changes)))  # a slice is read from its own beginning

    def test_every_operation_is_the_same_both_ways(self, codec: Codec) -> None:
        ops = [Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.INSERT]
        after = [pa.array([1, 1, 2, 2, None, 3]), pa.array(["a", "b", "c", None, None, 'q"\\\n\x01ü\u2028'])]
        old: dict[int, dict[str, Any]] = {2: {"id": 1}, 3: {"id": 2}}
        assert self.compare(codec, changes_of(KEYED, ops, after, old))

    def test_old_rows_of_a_full_identity_are_the_same_both_ways(self, codec: Codec) -> None:
        schema = TableSchema(KEYED.schema, KEYED.name, KEYED.columns, KEYED.key, Identity.FULL)
        ops = [Op.UPDATE, Op.UPDATE, Op.DELETE]
        old: dict[int, dict[str, Any]] = {
            0: {"id": 1, "note": "old"},
            1: {"id": 1, "note": None},
            2: {"id": 2, "note": "x"},
        }
        assert self.compare(codec, changes_of(schema, ops, [pa.array([1, 2, 2]), pa.array(["n", None, "x"])], old))

    def test_a_table_without_a_key_is_the_same_both_ways(self, codec: Codec) -> None:
        schema = TableSchema("public", "log", KEYED.columns, (), Identity.FULL)
        old: dict[int, dict[str, Any]] = {1: {"id": 1, "note": None}, 2: {"id": 2, "note": "b"}}
        ops = [Op.INSERT, Op.UPDATE, Op.DELETE]
        assert self.compare(codec, changes_of(schema, ops, [pa.array([1, 2, 2]), pa.array([None, "b", "b"])], old))

    def test_a_column_that_was_not_sent_is_the_same_both_ways(self, codec: Codec) -> None:
        ops, after = [Op.UPDATE, Op.UPDATE], [pa.array([1, 2]), pa.array([None, "b"])]
        assert self.compare(codec, changes_of(KEYED, ops, after, unchanged=[[False, True], [False, False]]))

    @pytest.mark.parametrize("reads", [Reads(), Reads(1, True, True), Reads(2, is_last=True)])
    def test_rows_of_a_snapshot_are_the_same_both_ways(self, codec: Codec, reads: Reads) -> None:
        rows = KEYED.rows([pa.array([1, 2, 3]), pa.array(["a", None, 'q"'])])
        assert len(self.compare(codec, *reads_of(KEYED, rows, "0/16B3748", reads))) == 3

    def test_no_changes_are_no_records(self, codec: Codec) -> None:
        changes = sample("int64").slice(0, 0)
        assert len(codec.encode_changes(changes, facts_of(changes))) == 0


def records_of(encoded: Encoded) -> list[Record]:
    keys, values = encoded.keys.to_pylist(), encoded.values.to_pylist()
    return [
        Record(key, value, encoded.headers.get(at, ()))
        for at, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
