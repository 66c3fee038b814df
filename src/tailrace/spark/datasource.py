"""`format("tailrace")`: the change log as a Spark data source.

With `table`, a DataFrame of that table's typed changes, streaming or batch. Without it, the slices of the log that the
pipeline hands to its tasks. Replaying a range of offsets gives the same rows, because segments never change.

Options: `path` (the state directory), `table`, `startingOffset`, `endingOffset`, `maxRowsPerTrigger`, `numPartitions`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tailrace.errors import ConfigError, StateError
from tailrace.log.reader import LogReader, Slice
from tailrace.log.segment import SegmentName
from tailrace.log.storage import Storage
from tailrace.model.changes import change_schema
from tailrace.model.names import parse_table, table_name
from tailrace.model.schema import TableSchema
from tailrace.spark.layout import HOLD, LOG
from tailrace.spark.versions import as_version

SLICES = pa.schema([("part", pa.int32()), ("name", pa.string()), ("first", pa.int64()), ("last", pa.int64())])


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to this session."""
    spark.dataSource.register(TailraceDataSource)


class SlicePartition(InputPartition):
    """What one task reads: consecutive slices."""

    def __init__(self, part: int, slices: Sequence[Slice]) -> None:
        self.part = part
        self.slices = list(slices)


class TailraceDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> StructType:
        table = self.options.get("table")
        arrow = SLICES if table is None else change_schema(newest_schema(_reader(self.options), table))
        return from_arrow_schema(arrow, prefer_timestamp_ntz=True)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(dict(self.options), to_arrow_schema(schema, timezone="UTC"))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(dict(self.options), to_arrow_schema(schema, timezone="UTC"))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are the log's own. A micro-batch ends at a transaction end. The columns stay those it started with."""

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self._log = _reader(options)
        self._stop_at: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"offset": _number(self.options, "startingOffset", self._log.begin())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows = _number(self.options, "maxRowsPerTrigger", 0)
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        end = self._log.limit(start["offset"], most)
        stops = [stop for stop in (self._stop_at, _held_at(self.options)) if stop is not None]
        return {"offset": max(min([end, *stops]), start["offset"])}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        return {"offset": self._log.end()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._stop_at = self._log.end()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return plan_parts(self._log.slices(start["offset"], end["offset"]), _parts(self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)


class BatchReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        log = _reader(self.options)
        first = _number(self.options, "startingOffset", log.begin())
        last = _number(self.options, "endingOffset", log.end())
        return plan_parts(log.slices(first, last), _parts(self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)


def plan_parts(slices: Sequence[Slice], most: int) -> list[InputPartition]:
    """At most `most` runs of consecutive slices, about equally large."""
    total = sum(piece.last - piece.first + 1 for piece in slices)
    parts: list[list[Slice]] = []
    done = 0
    for piece in slices:
        if not parts or (len(parts) < most and done >= total * len(parts) / most):
            parts.append([])
        parts[-1].append(piece)
        done += piece.last - piece.first + 1
    return [SlicePartition(number, part) for number, part in enumerate(parts)]


def newest_schema(log: LogReader, table: str) -> TableSchema:
    """The latest definition of a table in the log; the schema may be left out when it is `public`."""
    parts = parse_table(table)
    if parts is None:
        raise ConfigError(
            f'format("tailrace"): the option `table` is a table\'s name, not {table!r}',
            hint='write schema.name, such as public.orders or public."odd.name"',
        )
    wanted = table_name(*parts)
    for name in reversed(log.names()):
        for definition in reversed(log.header(name).definitions):
            if definition.schema.table == wanted:
                return definition.schema
    raise StateError(f"the change log in {log.storage.path} holds no change of {wanted}")


def _reader(options: Any) -> LogReader:
    if "path" not in options:
        raise ConfigError('format("tailrace") needs the option `path`', hint="it is the pipeline's state directory")
    return LogReader(Storage(options["path"]).folder(LOG))


def _held_at(options: dict[str, str]) -> int | None:
    """Where a pipeline's stream must stop for the moment, if somebody holds it."""
    if "table" in options:
        return None
    try:
        note = msgspec.json.decode(Storage(options["path"]).read(HOLD))
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return int(note["offset"]) if note["until"] > time.time() else None


def _parts(options: dict[str, str]) -> int:
    return max(_number(options, "numPartitions", 8), 1)


def _number(options: dict[str, str], name: str, default: int) -> int:
    """Spark hands options over with their names in lower case."""
    text = options.get(name.lower())
    try:
        return default if text is None else int(text)
    except ValueError:
        raise ConfigError(f'format("tailrace"): the option `{name}` is a whole number, not {text!r}') from None


def _read(options: dict[str, str], wanted: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SlicePartition):  # Spark's own, when there is nothing to read
        return
    if "table" not in options:
        rows = [{"part": partition.part, **msgspec.structs.asdict(piece)} for piece in partition.slices]
        yield pa.RecordBatch.from_pylist(rows, schema=SLICES)
        return
    log = _reader(options)
    yield from typed_changes(log, newest_schema(log, options["table"]).table, wanted, partition.slices)


def typed_changes(log: LogReader, table: str, wanted: pa.Schema, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """The changes of one table in `slices`, every version of it brought to the columns `wanted` by name."""
    from tailrace.sources.postgres.pgoutput import decode

    for piece in slices:
        name = SegmentName.parse(piece.name)
        assert name is not None
        header, frames = log.read(name)
        if table in header.tables:
            for changes in decode(frames, piece.first, piece.last, {table}):
                yield as_version(changes.to_arrow(), wanted, table)
