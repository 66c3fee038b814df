"""A folder read back: what the files of a table amount to, key by key, for `tailrace verify`. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import parquet

from tailrace.codecs.base import Codec
from tailrace.codecs.json_events import JsonRows
from tailrace.codecs.reading import MessageReader
from tailrace.errors import DecodeError, SinkRejected, SinkUnavailable
from tailrace.model.schema import TableSchema
from tailrace.sinks.envelopes import Envelopes
from tailrace.sinks.files.naming import folder_of
from tailrace.sinks.files.reading import committed
from tailrace.sinks.files.writing import nullable
from tailrace.sinks.replayed import Read, Replay, Told, foreign, rows_of

PIECE_ROWS = 16_384
TRIES = 5
Row = tuple[Any, ...]


class FolderView:
    """What is committed in the folder of one sink. `codec` opens that of a table's lines; None: files are Parquet."""

    def __init__(self, path: Path, codec: Callable[[TableSchema], Codec] | None) -> None:
        self._path, self._codec = path, codec

    def rows(self, schema: TableSchema) -> Iterator[list[Row]]:
        form = self._form(schema)
        with self._filled(schema, form) as replay:
            for tolds in replay.rows():
                yield rows_of(tolds, [column.name for column in schema.columns])

    def expected(self, schema: TableSchema, batch: pa.RecordBatch) -> list[Row]:
        form = self._form(schema)
        pieces = (batch.slice(start, PIECE_ROWS) for start in range(0, batch.num_rows, PIECE_ROWS))
        return [row for piece in pieces for row in form.expected(piece)]

    def _form(self, schema: TableSchema) -> _Lines | _Parquet:
        if not schema.key:
            raise SinkRejected(f"{schema.table} has no key: which changes are of the same row can not be told")
        return _Parquet(schema) if self._codec is None else _Lines(self._codec(schema), schema)

    def _filled(self, schema: TableSchema, form: _Lines | _Parquet) -> Replay:
        """Of one moment: a file of the last commit may move to its place under our eyes."""
        for _ in range(TRIES):
            with suppress(FileNotFoundError), ExitStack() as undone:
                replay = undone.enter_context(Replay(form.read, f"folder {folder_of(schema)}"))
                for number, path in enumerate(committed(self._path).get(folder_of(schema), [])):
                    form.fill(replay, path, number)
                undone.pop_all()
                return replay
        raise SinkUnavailable(f"files of {schema.table} in {self._path} are moved or deleted while they are read")


class _Lines:
    def __init__(self, codec: Codec, schema: TableSchema) -> None:
        self._envelopes, self._schema = Envelopes(codec, MessageReader(), schema), schema
        self.read: Read = self._envelopes.read
        self.expected = self._envelopes.expected

    def fill(self, replay: Replay, path: Path, file: int) -> None:
        with path.open("rb") as lines:
            for place, line in enumerate(lines):
                self._add(replay, line, file, place)

    def _add(self, replay: Replay, line: bytes, file: int, place: int) -> None:
        """All lines are one lane: the order of the files is that of the log."""
        try:
            seen = self._envelopes.seen(line)
        except DecodeError as error:
            raise foreign(f"folder {folder_of(self._schema)}", file, place) from error
        if seen.op == "truncate":
            replay.truncate(0)
            return
        row = seen.before if seen.op == "delete" else seen.after
        if not isinstance(row, dict) or not all(name in row for name in self._schema.key):
            raise foreign(f"folder {folder_of(self._schema)}", file, place)
        key = msgspec.json.encode([row[name] for name in self._schema.key])
        replay.add(0, place, key, None if seen.op == "delete" else line)


class _Parquet:
    """A row on its way is its canonical JSON, and behind it the names of what was not sent."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema, self._rows = schema, JsonRows(schema)

    def read(self, value: bytes) -> Told:
        row, _, unsent = value.partition(b"\n")
        return Told(msgspec.json.decode(row), frozenset(msgspec.json.decode(unsent)))

    def expected(self, batch: pa.RecordBatch) -> list[Row]:
        rows = self._rows.write_rows(batch, None).to_pylist()
        return rows_of([Told(msgspec.json.decode(row)) for row in rows], [each.name for each in self._schema.columns])

    def fill(self, replay: Replay, path: Path, file: int) -> None:
        with parquet.ParquetFile(path) as content:
            for batch in content.iter_batches(PIECE_ROWS):
                self._add(replay, batch)

    def _add(self, replay: Replay, batch: pa.RecordBatch) -> None:
        rows, old = self._own(batch), batch.column("_before")
        fields = [old.field(place) for place in range(old.type.num_fields)]
        before = self._own(pa.RecordBatch.from_arrays(fields, names=[field.name for field in old.type]))
        told = zip(
            batch.column("_op").to_pylist(),
            self._rows.write_keys(rows).to_pylist(),
            self._rows.write_rows(rows, None).to_pylist(),
            batch.column("_unchanged").to_pylist(),
            old.is_valid().to_pylist(),
            self._rows.write_keys(before).to_pylist(),
            strict=True,
        )
        for op, key, row, unsent, has_old, old_key in told:
            if op == "truncate":
                replay.truncate(0)
                continue
            if op == "update" and has_old and old_key != key:
                replay.add(0, 0, old_key.encode(), None)
            value = f"{row}\n{msgspec.json.encode(unsent or []).decode()}".encode()
            replay.add(0, 0, key.encode(), None if op == "delete" else value)

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the table as it is now; those of a file are of its moment."""
        names = set(batch.schema.names)
        columns = [
            batch.column(name).cast(nullable(type_)) if name in names else pa.nulls(batch.num_rows, type_)
            for name, type_ in ((field.name, field.type) for field in self._schema.arrow)
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._schema.arrow.names)
