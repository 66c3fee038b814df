"""Changes, rows of a snapshot and truncates on their way into files of the format that a user chose, in tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from tailrace import config
from tailrace.codecs.base import Codec, Facts, Reads
from tailrace.codecs.flat.rows import FACTS
from tailrace.codecs.opening import open_codec
from tailrace.codecs.reads import reads_of
from tailrace.codecs.settings import Shape, StreamName
from tailrace.errors import SinkRejected
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op
from tailrace.model.schema import TableSchema
from tailrace.registry import scheme
from tailrace.sinks.files.naming import PARTITION, folder_of
from tailrace.sinks.files.settings import FileFormat, FileSettings
from tailrace.sinks.files.writing import LinesFile, OpenFile, ParquetFile

TAKEN = frozenset({*FACTS, "_before", PARTITION})
"""Names that a table's own columns can not have beside ours."""
AsRead = tuple[Changes, Callable[[Changes], Facts]]


class FileForm:
    """Pickles; opens a codec where it is used."""

    def __init__(self, pipeline: config.Pipeline, settings: FileSettings) -> None:
        self._codec, self.is_parquet = settings.codec(), settings.format is FileFormat.PARQUET
        is_flat = not self.is_parquet and settings.shape is Shape.FLAT
        self._taken = TAKEN if self.is_parquet else frozenset({PARTITION} if is_flat else ())
        self.suffix = f".{settings.format}"
        database = urlsplit(pipeline.source.url).path.strip("/")
        self._stream = StreamName(pipeline.name, database, _connector(pipeline.source.url))

    def make(self, path: Path, schema: TableSchema) -> OpenFile:
        """Raises SinkRejected for a table whose columns readers would take for others."""
        _refuse_taken(schema, self._taken)
        return ParquetFile(path) if self.is_parquet else LinesFile(path, self.codec(schema))

    def codec(self, schema: TableSchema) -> Codec:
        """Of a table's lines."""
        return open_codec(self._codec, self._stream, folder_of(schema))


def facts_of(changes: Changes) -> Facts:
    """What the log tells of changes."""
    origins = changes.origins
    if origins is None:  # of changes that come from no log
        count = changes.transactions.num_rows
        return Facts([""] * count, [""] * count, np.arange(1, len(changes) + 1))
    return Facts(origins.ids, origins.positions, changes.offset - origins.begins[changes.transaction] + 1)


def as_read(schema: TableSchema, rows: pa.RecordBatch, position: str, generation: int) -> AsRead:
    """Rows as a snapshot found them."""
    changes, _ = reads_of(schema, rows, position)

    def facts(piece: Changes) -> Facts:
        none = np.zeros(len(piece), np.int64)
        return Facts([""], [position], none, none, Reads(generation))

    return changes, facts


def truncate(schema: TableSchema, position: str) -> AsRead:
    """That a table begins anew: what was told of its rows does not hold any more."""
    one = np.zeros(1, np.int64)
    changes = Changes(
        schema=schema,
        op=np.array([Op.TRUNCATE], np.int8),
        offset=one,
        transaction=one,
        transactions=NO_TRANSACTIONS,
        after=schema.rows([pa.nulls(1, field.type) for field in schema.arrow]),
        unchanged=None,
        before_rows=one[:0],
        before=schema.no_rows(),
    )
    return changes, lambda piece: Facts([""], [position], np.ones(len(piece), np.int64))


def _refuse_taken(schema: TableSchema, names: frozenset[str]) -> None:
    if taken := sorted(names.intersection(column.name.lower() for column in schema.columns)):
        raise SinkRejected(
            f"table {schema.table} has a column {taken[0]}, a name that files have for themselves",
            hint="rename the column, or use format: jsonl with shape: debezium",
            table=schema.table,
        )


def _connector(url: str) -> str:
    kind = scheme(url)
    return "postgresql" if kind == "postgres" else kind
