"""`format("tailrace")`: the change log as a Spark data source.

With `table`, a DataFrame of that table's typed changes, streaming or batch. Without it, the slices of the log that the
pipeline hands to its tasks. Replaying a range of offsets gives the same rows, because segments never change.

Options: `path` (the state directory), `table`, `reader` (a name under which the log remembers how far a stream is, and
waits for it), `startingOffset`, `endingOffset`, `maxRowsPerTrigger`, `maxBytesPerTrigger` (of the log's files),
`numPartitions`; `news` (a file that says how far the log is, written by a run on the same machine). How a micro-batch
is bounded depends on Spark: `limited.py` from 4.2 on, `unlimited.py` before.

Spark asks a stream without anything new for more a hundred times a second. A local disk is looked at each time; a store
only when there are news, or else once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.errors import ConfigError, OffsetGone, StateError, TailraceError
from tailrace.log.reader import LogIdentity, LogReader, Slice, gone
from tailrace.log.segment import SegmentName
from tailrace.model.changes import change_schema
from tailrace.model.frames import Definition
from tailrace.model.names import parse_table, table_name
from tailrace.model.schema import TableSchema
from tailrace.registry import decoder
from tailrace.spark.places import ReaderHold
from tailrace.spark.versions import has_read_limits
from tailrace.state.layout import HOLD, LOG, READERS
from tailrace.state.readers import Readers
from tailrace.state.scratch import News
from tailrace.state.storage import Storage
from tailrace.tasks.versions import as_version

Offset = dict[str, Any]
"""`{"log": id, "offset": number}`, as it stands in Spark's checkpoint."""

ANY = 1 << 62
"""No limit."""
FIRST_SECONDS, ASK_SECONDS = 0.05, 1.0

SLICES = pa.schema([("part", pa.int32()), ("name", pa.string()), ("first", pa.int64()), ("last", pa.int64())])


class SlicePartition(InputPartition):
    """What one task reads: consecutive slices of the log `log`, which may be left out."""

    def __init__(self, part: int, slices: Sequence[Slice], log: str = "") -> None:
        self.part = part
        self.slices = list(slices)
        self.log = log


class TailraceDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> StructType:
        with _whole_sentence():
            table = self.options.get("table")
            arrow = SLICES if table is None else _columns(_reader(self.options), table)
            return from_arrow_schema(arrow, prefer_timestamp_ntz=True)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return _stream_reader()(dict(self.options), arrow_schema(schema))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(dict(self.options), arrow_schema(schema))


class StreamReader(DataSourceStreamReader):
    """Offsets are the log's own, with its id. A micro-batch ends at a transaction end. The columns never change.

    What is the same in all versions of Spark.
    """

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.log = _reader(options)
        self.stop_at: int | None = None
        self.place = _place(options)
        self._has_begun = False
        self._pace = Pace(0.0 if self.log.storage.is_local else ASK_SECONDS)
        self._recent: tuple[float, Offset] | None = None
        self._news = News(options["news"]) if "news" in options else None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        with _whole_sentence():
            log = _identity(self.log).id
            asked = _number(self.options, "startingOffset", None)
            if self.place is None:
                return {"log": log, "offset": _starting(self.log, asked)}
            return {"log": log, "offset": self.place.begin(self.log, log, asked)}

    @property
    def max_rows(self) -> int:
        return _number(self.options, "maxRowsPerTrigger", 0) or ANY

    def newest(self) -> Offset:
        return {"log": _identity(self.log).id, "offset": self.log.end()}

    def recent(self) -> Offset:
        """As `newest`, for who asks all the time: of a store, what it was within the last second."""
        now = time.monotonic()
        if self._recent is None or self.log.storage.is_local or now - self._recent[0] >= ASK_SECONDS:
            self._recent = now, self.newest()
        return self._recent[1]

    def end_after(self, start: Offset, max_rows: int) -> Offset:
        """Where the micro-batch after `start` ends."""
        self._go_on(start)
        offset = _offset(start)
        if not self._may_have_more(offset):
            return start
        end = self.log.limit(offset, max_rows, _number(self.options, "maxBytesPerTrigger", ANY))
        stops = [stop for stop in (self.stop_at, _held_at(self.options)) if stop is not None]
        last = max(min([end, *stops]), offset)
        self._pace.went(is_well=last > offset)
        return {**start, "offset": last}

    def _may_have_more(self, offset: int) -> bool:
        """Whether it is worth asking what the log has behind `offset`."""
        if not self._pace.is_due():
            return False
        end = self._news.read() if self._news is not None else None
        if end is None and self.log.storage.is_conditional:
            end = self.log.end()
        if end is None or end > offset:
            return True
        if self._news is None:
            self._pace.went(is_well=False)
        return False

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        self._go_on(start)
        with _whole_sentence():
            _check_log(self.log, start)
            _refuse_renamed(self.log, self.options, _offset(start))
            slices = self.log.slices(_offset(start), _offset(end))
            return plan_parts(slices, _parts(self.options), str(start["log"]))

    def commit(self, end: Offset) -> None:
        """What lies up to `end` is in Spark's checkpoint: the log need not keep it for us."""
        if self.place is not None:
            self.place.move(str(end["log"]), _offset(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)

    def check_log(self, start: Offset) -> None:
        """Whether the checkpoint is of this log."""
        with _whole_sentence():
            _check_log(self.log, start)

    def _go_on(self, start: Offset) -> None:
        """The first time: whether the checkpoint is of this log, and that the log waits for us."""
        if self._has_begun:
            return
        with _whole_sentence():
            _check_log(self.log, start)
            if _offset(start) > self.log.end():
                raise gone(_offset(start), (self.log.begin(), self.log.end()), self.log.storage.path)
            if self.place is not None:
                self.place.resume(str(start["log"]), _offset(start))
        self._has_begun = True


class Pace:
    """When to ask again: at once while it goes well, else later each time, up to `longest` seconds."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._wait = self._due_at = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    def went(self, *, is_well: bool) -> None:
        self._wait = 0.0 if is_well else min(max(self._wait * 2, FIRST_SECONDS), self._longest)
        self._due_at = time.monotonic() + self._wait


class BatchReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        with _whole_sentence():
            if "reader" in self.options:
                raise ConfigError(
                    'format("tailrace"): the option `reader` is for streams: a batch has no place to keep'
                )
            log = _reader(self.options)
            identity = _identity(log)
            first = _number(self.options, "startingOffset", None)
            last = _number(self.options, "endingOffset", None)
            if first is not None and last is not None and first > last:
                raise ConfigError('format("tailrace"): `endingOffset` lies before `startingOffset`')
            _refuse_renamed(log, self.options, log.begin() if first is None else first)
            return plan_parts(log.slices(first, last), _parts(self.options), identity.id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)


def _stream_reader() -> type[StreamReader]:
    """The one for the Spark that is installed."""
    home, name = ("limited", "LimitedReader") if has_read_limits() else ("unlimited", "UnlimitedReader")
    found: type[StreamReader] = getattr(import_module(f"tailrace.spark.{home}"), name)
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """Times are in UTC, as they are in 4.1 without a word."""
    return to_arrow_schema(schema, timezone="UTC") if has_read_limits() else to_arrow_schema(schema)


def plan_parts(slices: Sequence[Slice], most: int, log: str = "") -> list[InputPartition]:
    """At most `most` runs of consecutive slices, about equally large."""
    total = sum(piece.last - piece.first + 1 for piece in slices)
    parts: list[list[Slice]] = []
    done = 0
    for piece in slices:
        if not parts or (len(parts) < most and done >= total * len(parts) / most):
            parts.append([])
        parts[-1].append(piece)
        done += piece.last - piece.first + 1
    return [SlicePartition(number, part, log) for number, part in enumerate(parts)]


def _columns(log: LogReader, table: str) -> pa.Schema:
    """Of the DataFrame of a table's changes."""
    schema, newest = newest_schema(log, table), log.names()[-1]
    return change_schema(schema, decoder(log.header(newest).kind).transaction_columns)


def newest_schema(log: LogReader, table: str) -> TableSchema:
    """The latest definition of a table that the log knows; the schema may be left out when it is `public`."""
    wanted, tables = full_name(table), log.tables()
    known = tables.get(wanted)
    if known is not None:
        _refuse_partition(known, tables)
        return known.schema
    for name in reversed(log.names()):  # a log from before it kept them apart
        for definition in reversed(log.header(name).definitions):
            if definition.schema.table == wanted:
                return definition.schema
    raise StateError(
        f"the change log in {log.storage.path} holds no change of {wanted}",
        hint="its columns are known from its first change on: wait for that, or give them with .schema(…)",
    )


def _refuse_partition(definition: Definition, tables: dict[str, Definition]) -> None:
    """What is described, and has no changes of its own, would be an empty table for ever."""
    roots = [name for name, other in tables.items() if other.relation == definition.root]
    if definition.root:
        name = roots[0] if roots else "its root"
        raise StateError(
            f"{definition.schema.table} is a partition: its changes come as those of {name}", hint=f"read {name}"
        )


def full_name(table: str) -> str:
    """A table's name as the log files it; the schema may be left out when it is `public`."""
    parts = parse_table(table)
    if parts is None:
        raise ConfigError(
            f'format("tailrace"): the option `table` is a table\'s name, not {table!r}',
            hint='write schema.name, such as public.orders or public."odd.name"',
        )
    return table_name(*parts)


def _refuse_renamed(log: LogReader, options: dict[str, str], after: int) -> None:
    """What follows `after` can not be read by a name that the table no longer has."""
    tables = log.tables() if "table" in options else {}
    own = tables.get(full_name(options["table"])) if tables else None
    if own is None:
        return
    for name, other in tables.items():
        if other.relation == own.relation and own.since < other.since <= after:
            raise StateError(
                f"{own.schema.table} was renamed to {name} in the source",
                hint=f"read {name} with startingOffset {other.since - 1}",
            )


def _starting(log: LogReader, asked: int | None) -> int:
    """Where a stream begins that has no place yet."""
    begin, end = log.begin(), log.end()
    start = begin if asked is None else asked
    if not begin <= start <= end:
        raise gone(start + 1, (begin, end), log.storage.path)
    return start


def _identity(log: LogReader) -> LogIdentity:
    found = log.identity()
    if found is None:
        raise StateError(f"there is no change log in {log.storage.path}")
    return found


def _check_log(log: LogReader, start: Offset) -> None:
    """Offsets of one log mean nothing in another."""
    if start.get("log") != _identity(log).id:
        raise _of_another_log(log, _offset(start))


def _of_another_log(log: LogReader, offset: int) -> OffsetGone:
    return OffsetGone(
        f"the checkpoint is at offset {offset} of a change log that is gone: {log.storage.path} holds another one,"
        " whose offsets began again"
    )


def _offset(offset: Offset) -> int:
    return int(offset["offset"])


class _whole_sentence:  # noqa: N801 - reads as a statement
    """Spark passes on an error's message and nothing else: the hint becomes part of it."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TailraceError) and error.hint:
            raise type(error)(f"{error}; {error.hint}") from error


def _reader(options: Any) -> LogReader:
    if "path" not in options:
        raise ConfigError('format("tailrace") needs the option `path`', hint="it is the pipeline's state directory")
    return LogReader(Storage(options["path"]).folder(LOG))


def _held_at(options: dict[str, str]) -> int | None:
    """Where a pipeline's stream must stop for the moment, if somebody holds it."""
    if "table" in options:
        return None
    try:
        note = Storage(options["path"]).decode(HOLD, dict)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return int(note["offset"]) if note["until"] > time.time() else None


def _parts(options: dict[str, str]) -> int:
    return max(_number(options, "numPartitions", 8), 1)


def _place(options: dict[str, str]) -> ReaderHold | None:
    if "reader" not in options:
        return None
    folder = Storage(options["path"]).folder(READERS)
    return ReaderHold(Readers(folder), options["reader"], full_name(options["table"]) if "table" in options else "")


Default = TypeVar("Default", int, None)


def _number(options: dict[str, str], name: str, default: Default) -> int | Default:
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
    with _whole_sentence():
        yield from typed_changes(_reader(options), full_name(options["table"]), wanted, partition)


def typed_changes(log: LogReader, table: str, wanted: pa.Schema, part: SlicePartition) -> Iterator[pa.RecordBatch]:
    """The changes of one table in `part`, every version of it brought to the columns `wanted` by name."""
    for piece in part.slices:
        name = SegmentName.parse(piece.name)
        assert name is not None
        header, frames = log.read(name)
        if header.log_id != part.log:
            raise _of_another_log(log, piece.first - 1)
        if table in header.tables:
            for changes in decoder(frames.kind).decode(frames, piece.first, piece.last, {table}):
                yield as_version(changes.to_arrow(), wanted, table)
