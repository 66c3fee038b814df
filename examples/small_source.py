"""A source of your own in twenty lines: a file that grows by lines of JSON; `lines:////folder/readings.jsonl`.

Each line is one change of the table `main.readings`: `{"op": "insert", "row": {"sensor": 1, "value": 20.5}}`. The
position is the number of bytes before the next line; a line that is still being written does not count.
"""

import json
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from tailrace.model.changes import Op
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.journal import JournalSource
from tailrace.sources.transactions import RowChange, Transaction

COLUMNS = (Column("sensor", ColumnType(Kind.INT64, "int"), 1), Column("value", ColumnType(Kind.FLOAT64, "float"), 2))
READINGS = TableSchema("main", "readings", COLUMNS, ("sensor",), relation=1)


class LinesSource(JournalSource):
    def identify(self) -> SourceIdentity:
        return SourceIdentity(str(self.path.stat().st_ino), "", str(self.path), "")

    def tables(self) -> list[TableSchema]:
        return [READINGS]

    def current_position(self) -> str:
        return str(self.path.read_bytes().rfind(b"\n") + 1)

    def transactions_after(self, position: int) -> list[Transaction]:
        lines = self.path.read_bytes()[position : int(self.current_position())].splitlines(keepends=True)
        ends = list(accumulate(map(len, lines), initial=position))[1:]
        now, told = time.time_ns() // 1000, ["main.readings"]
        return [Transaction(end, now, line, told) for end, line in zip(ends, lines, strict=True)]

    @staticmethod
    def parse(message: bytes) -> Iterator[RowChange]:
        told = json.loads(message)
        yield RowChange("main.readings", Op[told["op"].upper()], told["row"])

    @property
    def path(self) -> Path:
        return Path(self.settings.url.partition("://")[2])
