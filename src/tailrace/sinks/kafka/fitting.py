"""Messages that are no larger than may be sent, found in tasks by the sizes of whole columns.

A change whose message is too large is written again without its old row, of which only the key stays; what is too large
even so is set aside, or stops its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.base import Encoded, Record
from tailrace.columns.text import to_text
from tailrace.errors import SinkRejected
from tailrace.model.changes import Changes, Flags, Integers, Op
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Rejected
from tailrace.sinks.kafka.encoding import Encoder

RECORD_BYTES = 36
"""What the client counts of a message beside its key, its value and its headers, at most."""
BATCH_BYTES = 61
"""What a broker counts besides: the head of a batch of one message."""
MOST_REJECTED = 1000
"""Of a table in a batch. Where there are more, the limit is the problem, and not the rows."""
MOST_KEY_BYTES = 4096
"""A key in the quarantine that is larger is left out: an entry is smaller than any limit."""


class Fitting:
    """Pickles, with the limits that the driver has found out about."""

    def __init__(self, encoder: Encoder, own_limit: int, *, is_fatal: bool) -> None:
        self._encoder, self._own, self._is_fatal = encoder, own_limit, is_fatal
        self.limits: dict[str, int] = {}

    def limit(self, topic: str) -> int:
        """The largest sum of a message's key, value and headers."""
        ours = self._own - RECORD_BYTES
        theirs = self.limits.get(topic)
        return ours if theirs is None else min(ours, theirs - RECORD_BYTES - BATCH_BYTES)

    def changes(self, topic: str, changes: Changes, aside: list[Rejected]) -> Iterator[tuple[Encoded, Changes]]:
        """As the encoder gives them, but for what is too large: that goes to `aside`."""
        for encoded, piece in self._encoder.changes(topic, changes):
            if (large := self._too_large(topic, encoded)) is None:
                yield encoded, piece
                continue
            is_large = np.zeros(len(piece), np.bool_)
            is_large[encoded.change[large]] = True
            is_moved = np.bincount(encoded.change, minlength=len(piece)) > 1
            for start, stop in _runs(is_large):
                run, moved = piece.slice(start, stop), is_moved[start:stop]
                lighter = without_old_rows(run, moved) if is_large[start] else run
                for again, part in self._encoder.changes(topic, lighter):
                    yield self._sifted(topic, again, part, aside), part

    def rows(self, topic: str, schema: TableSchema, encoded: Encoded, rows: pa.RecordBatch) -> list[Rejected]:
        """Those of a snapshot that are too large; `kept` gives the others."""
        large = self._too_large(topic, encoded)
        if large is None:
            return []
        of = encoded.change[large]
        return self._rejected(topic, schema, rows.take(pa.array(of)), ["read"] * len(of), _sizes(encoded)[large], [])

    def again(
        self, topic: str, schema: TableSchema, rows: pa.RecordBatch, position: str
    ) -> tuple[list[Record], set[tuple[str, ...]]]:
        """Messages of rows as the source has them now, and the keys, as text, of those that are too large still."""
        encoded = self._encoder.reads(topic, schema, rows, position, 1)
        large = self._too_large(topic, encoded)
        fits = _kept(encoded, ~large) if large is not None else encoded
        refused = [] if large is None else _keys(schema, rows.take(pa.array(encoded.change[large])))
        records = [Record(*pair) for pair in zip(fits.keys.to_pylist(), fits.values.to_pylist(), strict=True)]
        return records, {tuple(str(value) for value in key.values()) for key in refused}

    def kept(self, topic: str, encoded: Encoded) -> Encoded:
        large = self._too_large(topic, encoded)
        return encoded if large is None else _kept(encoded, ~large)

    def _sifted(self, topic: str, encoded: Encoded, piece: Changes, aside: list[Rejected]) -> Encoded:
        large = self._too_large(topic, encoded)
        if large is None:
            return encoded
        of = encoded.change[large]
        operations = [Op(op).name.lower() for op in piece.op[of].tolist()]
        origins = piece.origins
        positions = [] if origins is None else [origins.positions[row] for row in piece.transaction[of].tolist()]
        rows, sizes = piece.after.take(pa.array(of)), _sizes(encoded)[large]
        aside += self._rejected(topic, piece.schema, rows, operations, sizes, positions)
        refuse_many(piece.schema.table, len(aside))
        return _kept(encoded, ~large)

    def _too_large(self, topic: str, encoded: Encoded) -> Flags | None:
        """None where all of them fit."""
        large: Flags = _sizes(encoded) > self.limit(topic)
        return large if large.any() else None

    def _rejected(
        self,
        topic: str,
        schema: TableSchema,
        rows: pa.RecordBatch,
        operations: list[str],
        sizes: Integers,
        positions: list[str],
    ) -> list[Rejected]:
        """Raises SinkRejected where such a message stops its table."""
        if self._is_fatal:
            raise SinkRejected(
                f"a message of {int(sizes.max()):,} bytes is larger than may be sent to topic {topic}",
                hint="raise message_max_bytes here, and message.max.bytes of the broker or max.message.bytes of the"
                " topic; with `on_error: quarantine` such changes are set aside",
                table=schema.table,
            )
        refuse_many(schema.table, len(sizes))
        limit, found = self.limit(topic), []
        for row, key in enumerate(_keys(schema, rows)):
            reason = f"its message of {int(sizes[row]):,} bytes is larger than the {limit:,} of topic {topic}"
            if len(msgspec.json.encode(key)) > MOST_KEY_BYTES:
                key, reason = {}, f"{reason}; so large is its key that it is not told"
            payload = {"position": positions[row]} if positions else {}
            found.append(Rejected(schema.table, operations[row], key, reason, payload))
        return found


def refuse_many(table: str, count: int) -> None:
    if count > MOST_REJECTED:
        raise SinkRejected(
            f"more than {MOST_REJECTED:,} messages of {table} in a batch are larger than may be sent",
            hint="raise message_max_bytes here, and message.max.bytes of the broker or max.message.bytes of the topic",
            table=table,
        )


def counted(aside: Iterable[Rejected]) -> None:
    """Refuse what several tasks have set aside, if it is too much in all."""
    counts: dict[str, int] = {}
    for each in aside:
        counts[each.table] = counts.get(each.table, 0) + 1
        refuse_many(each.table, counts[each.table])


def without_old_rows(changes: Changes, is_moved: Flags) -> Changes:
    """Of old rows only the key, and that only where it tells which row it was: of deletes and of keys that changed."""
    needed = (changes.op != Op.UPDATE) | is_moved
    kept = needed[changes.before_rows]
    before = changes.before.filter(pa.array(kept))
    arrays = [
        array if name in changes.schema.key else pa.nulls(len(array), array.type)
        for name, array in zip(before.schema.names, before.columns, strict=True)
    ]
    blank = pa.RecordBatch.from_arrays(arrays, schema=before.schema)
    return replace(changes, before_rows=changes.before_rows[kept], before=blank)


def _sizes(encoded: Encoded) -> Integers:
    key, value = (pc.fill_null(pc.binary_length(each), 0) for each in (encoded.keys, encoded.values))
    sizes: Integers = key.to_numpy(zero_copy_only=False).astype(np.int64) + value.to_numpy(zero_copy_only=False)
    for record, headers in encoded.headers.items():
        sizes[record] += sum(len(name) + len(content) + 10 for name, content in headers)
    return sizes


def _kept(encoded: Encoded, wanted: Flags) -> Encoded:
    mask, place = pa.array(wanted), np.cumsum(wanted) - 1
    headers = {int(place[record]): own for record, own in encoded.headers.items() if wanted[record]}
    return Encoded(encoded.keys.filter(mask), encoded.values.filter(mask), encoded.change[wanted], headers)


def _runs(mask: Flags) -> list[tuple[int, int]]:
    bounds = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    return list(pairwise(bounds))


def _keys(schema: TableSchema, rows: pa.RecordBatch) -> list[dict[str, Any]]:
    types = {column.name: column.type for column in schema.columns}
    texts = {name: to_text(rows.column(name), types[name]).to_pylist() for name in schema.key}
    return [{name: _as_json(texts[name][row]) for name in schema.key} for row in range(rows.num_rows)]


def _as_json(value: Any) -> Any:
    return "\\x" + value.hex() if isinstance(value, bytes) else value
