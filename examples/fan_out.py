"""One stream into several places, each of which has all of it: `python fan_out.py postgresql://user@host/shop`.

A batch is acknowledged when every place has taken it. If one of them fails, all are asked again: a place that can not
take the same batch twice has to remember what it has.
"""

import json
import sys
from pathlib import Path

import tailrace


class JsonLines:
    """A file of events, one a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, batch: tailrace.Batch) -> None:
        rows = ({"op": event.op, "table": event.table, "key": event.key} for event in batch.events())
        with self.path.open("a") as file:
            file.writelines(json.dumps(row, default=str) + "\n" for row in rows)


class Counts:
    """How many changes each table had, as columns: no row becomes a Python object."""

    def __init__(self) -> None:
        self.tables: dict[str, int] = {}

    def take(self, batch: tailrace.Batch) -> None:
        for table, rows in batch.arrow():
            self.tables[table] = self.tables.get(table, 0) + rows.num_rows
        print(json.dumps(self.tables), flush=True)


PLACES: list[JsonLines | Counts] = [JsonLines(Path("one.jsonl")), JsonLines(Path("two.jsonl")), Counts()]

with tailrace.capture(sys.argv[1], "public.*", checkpoint="checkpoints") as stream:
    for batch in stream:
        for place in PLACES:
            place.take(batch)
        batch.ack()
