"""The structs of the pipeline file. What stands here is what the file may hold, and nothing else."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta

from tailrace import registry
from tailrace.config import keeping
from tailrace.config.connectors import Connector
from tailrace.config.documents import Document
from tailrace.config.patterns import TablePatterns
from tailrace.config.reading import read
from tailrace.config.sections import Section, Settings
from tailrace.config.shorthand import PATH, short

NAME = "^[a-z0-9_]{1,40}$"
DOCUMENT_NAME = "^[a-z0-9][a-z0-9_-]{0,59}$"
URL = "^[a-z][a-z0-9+.-]*:"
MIB = 1024 * 1024

S = TypeVar("S", bound=Settings)

Url = Annotated[str, Meta(pattern=URL, description="scheme://user:password@host:port/database")]
SinkName = Annotated[str, Meta(min_length=1, max_length=128)]
Bytes = Annotated[int, Meta(ge=1024, description="bytes; `64 MiB` and the like may be written")]


class Acknowledge(StrEnum):
    """When the source may forget a change."""

    SINKS = "sinks"  # every sink has it
    LOG = "log"  # the change log on the state directory has it


class Capture(StrEnum):
    """Where the source's stream is read."""

    HERE = "here"  # by a process that `tailrace run` starts
    ELSEWHERE = "elsewhere"  # by `tailrace capture`, on a host of its own


class OnError(StrEnum):
    """What becomes of a row that a sink's database refuses."""

    STOP = "stop"  # the sink stops, with a sentence
    QUARANTINE = "quarantine"  # the row is set aside, and the others go on


class OnTableError(StrEnum):
    """What becomes of a sink when one of its tables can not be decoded, copied or written."""

    ISOLATE = "isolate"  # the table is set aside with its reason, and the others go on
    STOP = "stop"  # the sink stops, with a sentence


class Misfits(StrEnum):
    """What becomes of a value that the sink's type can not hold exactly."""

    REFUSE = "refuse"  # the sink stops, with a sentence
    TEXT = "text"  # columns of a type that has such values are held as text
    QUARANTINE = "quarantine"  # the row is set aside, and the others go on


class Snapshot(Section, frozen=True):
    """The initial copy of a table."""

    chunk_bytes: Annotated[Bytes, Meta(description="how much of a table is loaded in one step")] = 16 * MIB


class Source(Connector, frozen=True):
    """The database read from."""

    group: ClassVar[str] = registry.SOURCES
    url: Url
    tables: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="patterns on schema.table; `*` and `?` are wildcards, a leading `!` excludes"),
    ]
    acknowledge: Annotated[
        Acknowledge,
        Meta(description="the source may forget a change once all `sinks` have it, or once the change `log` has it"),
    ] = Acknowledge.SINKS
    heartbeat_ms: Annotated[
        int, Meta(ge=10, description="how often the source is told that we live, and how far the sinks are")
    ] = 1000
    snapshot: Snapshot = Snapshot()

    @cached_property
    def patterns(self) -> TablePatterns:
        return TablePatterns(self.tables)


class Sink(Connector, frozen=True):
    """A system written to."""

    group: ClassVar[str] = registry.SINKS
    url: Url
    schemas: Annotated[dict[str, str], Meta(description="source schema: schema in the sink")] = {}
    tables: Annotated[dict[str, SinkName], Meta(description="source table (schema.name): its name in the sink")] = {}
    columns: Annotated[
        dict[str, dict[str, SinkName]],
        Meta(description="source table (schema.name): {source column: its name in the sink}"),
    ] = {}
    misfits: Annotated[
        Misfits,
        Meta(
            description="values that the sink's type can not hold: `refuse` them, hold columns of such types as `text`,"
            " or set their rows aside in `quarantine`"
        ),
    ] = Misfits.REFUSE
    on_error: Annotated[
        OnError, Meta(description="`stop` at a row that the sink refuses, or set it aside in `quarantine`")
    ] = OnError.STOP
    on_table_error: Annotated[
        OnTableError,
        Meta(description="a table that can not be decoded, copied or written: `isolate` it, or `stop` the sink"),
    ] = OnTableError.ISOLATE
    max_rows: Annotated[int, Meta(ge=1, description="changes a micro-batch takes at most; transactions stay whole")] = (
        1_000_000
    )
    max_bytes: Annotated[
        Bytes, Meta(description="how much of the change log a micro-batch takes at most; transactions stay whole")
    ] = 256 * MIB


class Transform(Section, frozen=True):
    """What becomes of a table's rows on their way, in Spark SQL over the table's own columns."""

    where: Annotated[str, Meta(min_length=1, description="rows for which this is true are in the sinks")] | None = None
    columns: Annotated[
        dict[str, Annotated[str, Meta(min_length=1)]],
        Meta(description="a column, replaced or added: its value as an expression"),
    ] = {}
    drop: Annotated[tuple[str, ...], Meta(description="columns that no sink gets")] = ()


class Log(Section, frozen=True):
    """The change log on the state directory."""

    max_bytes: Annotated[Bytes, Meta(description="when full, capture waits instead of filling the disk")] = 10240 * MIB
    segment_bytes: Annotated[Bytes, Meta(description="a segment is closed at this size")] = 32 * MIB
    flush_interval_ms: Annotated[int, Meta(ge=1, description="a segment is closed at this age")] = 100
    keep: (
        Annotated[
            str,
            Meta(
                pattern=keeping.PATTERN,
                description="history that stays though every sink has it: a time such as `24 h` or `7 d`,"
                " or a size such as `10 GiB`; it goes first when the log is full",
            ),
        ]
        | None
    ) = None

    @cached_property
    def kept(self) -> keeping.Keep | None:
        return None if self.keep is None else keeping.Keep.parse(self.keep)


class Spark(Section, frozen=True):
    """The engine."""

    master: Annotated[str, Meta(description="default: what spark-submit says, else local[*]")] | None = None
    conf: Annotated[dict[str, str | bool | int | float], Meta(description="Spark settings, as in spark-defaults")] = {}
    ship: Annotated[
        bool, Meta(description="send tailrace itself to the workers of a cluster; false where it is installed on them")
    ] = True

    def settings(self) -> dict[str, str]:
        """`conf` as Spark wants it: text only, `true` and `false` in lower case."""
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in self.conf.items()}


class Pipeline(Section, frozen=True):
    """One source, its tables, its sinks. Made by `load` or `from_urls`, which resolve its relative paths."""

    name: Annotated[
        str, Meta(pattern=NAME, description="lower case letters, digits and _; names what is made in the source")
    ]
    source: Source
    sinks: Annotated[
        dict[Annotated[str, Meta(pattern=NAME)], Sink], Meta(min_length=1, description="the sinks, each with a name")
    ]
    transforms: Annotated[
        dict[str, Transform], Meta(description="source table (schema.name): what becomes of its rows on their way")
    ] = {}
    documents: Annotated[
        dict[
            Annotated[str, Meta(pattern=DOCUMENT_NAME, description="lower case letters, digits, _ and -")],
            Annotated[Document, short(PATH)],
        ],
        Meta(description="documents of several tables, for search; each described here, or in a file: its path"),
    ] = {}
    state: Annotated[str, Meta(min_length=1, description="folder of the change log; relative to this file")] = "./state"
    capture: Annotated[
        Capture,
        Meta(description="`tailrace run` captures by itself (`here`), or `tailrace capture` does on a host of its own"),
    ] = Capture.HERE
    log: Log = Log()
    spark: Spark = Spark()

    def source_settings(self, kind: type[S]) -> S:
        """What the source's section has of its own, as the source declares it. Raises ConfigError."""
        return read(self.source.own, kind, ("source",))

    def sink_settings(self, name: str, kind: type[S]) -> S:
        """What a sink's section has of its own, as the sink declares it. Raises ConfigError."""
        return read(self.sinks[name].own, kind, ("sinks", name))
