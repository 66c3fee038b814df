"""A source of your own in forty lines: a file that grows by lines of JSON; `lines:////folder/readings.jsonl`.

Each line is one change of the table `main.readings`: `{"op": "insert", "row": {"sensor": 1, "value": 20.5}}`. The
position is the number of bytes before the next line. There is nothing to copy: all rows come with the lines.
"""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from tailrace.model.changes import Changes, Op
from tailrace.model.chunk import Chunk
from tailrace.model.frames import Frames
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import ExportedSnapshot
from tailrace.sources.simple import SimpleSource
from tailrace.sources.transactions import RowChange, Transaction, decode_each

COLUMNS = (Column("sensor", ColumnType(Kind.INT64, "int"), 1), Column("value", ColumnType(Kind.FLOAT64, "float"), 2))
READINGS = TableSchema("main", "readings", COLUMNS, ("sensor",), relation=1)


class LinesSource(SimpleSource):
    def identify(self) -> SourceIdentity:
        return SourceIdentity(str(self.path.stat().st_ino), "", str(self.path), "")

    def tables(self) -> list[TableSchema]:
        return [READINGS]

    def oldest_position(self) -> int:
        return 0

    def current_position(self) -> str:
        return str(self.path.read_bytes().rfind(b"\n") + 1)  # a line that is still being written does not count

    def transactions_after(self, position: int) -> list[Transaction]:
        lines = self.path.read_bytes()[position : int(self.current_position())].splitlines(keepends=True)
        ends = list(accumulate((len(line) for line in lines), initial=position))[1:]
        at_us = time.time_ns() // 1000
        return [Transaction(end, at_us, line, [READINGS.table]) for end, line in zip(ends, lines, strict=True)]

    @staticmethod
    def decode(frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
        return decode_each(frames, first, last, tables, changes_in)

    @contextmanager
    def export_snapshot(self) -> Iterator[ExportedSnapshot]:
        yield ExportedSnapshot(id="", visibility="0", position="0")

    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot: str, form: str = "") -> Iterator[pa.RecordBatch]:
        return iter(())

    @property
    def path(self) -> Path:
        return Path(self.settings.url.partition("://")[2])


def changes_in(line: bytes) -> Iterator[RowChange]:
    told = json.loads(line)
    yield RowChange(READINGS.table, Op[told["op"].upper()], told["row"])
