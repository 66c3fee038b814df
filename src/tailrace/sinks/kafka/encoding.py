"""Messages of changes: the seam between this sink and the codecs. Called in tasks; asks no broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pyarrow as pa

from tailrace import config
from tailrace.codecs.base import Codec, Encoded, Facts, Reads, Record
from tailrace.codecs.opening import open_codec
from tailrace.codecs.reads import reads_of
from tailrace.codecs.settings import StreamName
from tailrace.errors import SinkRejected
from tailrace.model.changes import Changes, Op
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import Identity, TableSchema
from tailrace.model.types import ColumnType
from tailrace.registry import scheme
from tailrace.sinks.kafka.settings import KafkaSettings

PIECE_ROWS = 16_384
PIECE_BYTES = 8 << 20
"""What is encoded at once: with the schema in each message it becomes many times as much."""


class Encoder:
    """Pickles; opens the codec of a topic where it is used."""

    def __init__(self, pipeline: config.Pipeline, settings: KafkaSettings, prefix: str) -> None:
        self._codec_settings, self._keys = settings.codec(), settings.keys
        self.stream = StreamName(prefix, urlsplit(pipeline.source.url).path.strip("/"), _connector(pipeline.source.url))

    def changes(self, topic: str, changes: Changes) -> Iterator[tuple[Encoded, Changes]]:
        """The messages of changes, in pieces, with the changes that each is of: truncates are by themselves."""
        own = replace(changes, schema=self.keyed(changes.schema))
        for run in _apart(own):
            for piece in _pieces(run):
                yield self.codec(topic).encode_changes(piece, _facts(piece)), piece

    def reads(self, topic: str, schema: TableSchema, rows: pa.RecordBatch, position: str, generation: int) -> Encoded:
        """The messages of rows as a snapshot found them."""
        changes, facts = reads_of(self.keyed(schema), rows, position, Reads(generation))
        return self.codec(topic).encode_changes(changes, facts)

    def truncate(self, topic: str, schema: TableSchema, position: str) -> list[Record]:
        """That a table begins anew: what was told of its rows does not hold any more."""
        event = Event(EventOp.TRUNCATE, schema.table, None, None, None, position, None, None, schema=self.keyed(schema))
        return self.codec(topic).encode(event)

    def is_keyless(self, schema: TableSchema) -> bool:
        return not self.keyed(schema).key

    def key_of(self, schema: TableSchema) -> list[tuple[str, ColumnType]]:
        """What makes the key of a row: with another one it is another row to readers."""
        names = self._keys.get(schema.table, schema.key)
        return [(column.name, column.type) for column in schema.columns if column.name in names]

    def codec(self, topic: str) -> Codec:
        return open_codec(self._codec_settings, self.stream, topic)

    def keyed(self, schema: TableSchema) -> TableSchema:
        """With the key that the file says. It has to be in what the source sends of a row that is gone."""
        chosen = self._keys.get(schema.table)
        if chosen is None or chosen == schema.key:
            return schema
        names = {column.name for column in schema.columns}
        if missing := [name for name in chosen if name not in names]:
            raise SinkRejected(f"{schema.table} has no column {missing[0]} to make a key of", table=schema.table)
        if schema.identity is not Identity.FULL and not set(chosen) <= set(schema.key):
            raise SinkRejected(
                f"the source does not send the columns that `keys` names of a row of {schema.table} that is deleted",
                hint=f"ALTER TABLE {schema.table} REPLICA IDENTITY FULL",
                table=schema.table,
            )
        return msgspec.structs.replace(schema, key=chosen)


def _connector(url: str) -> str:
    kind = scheme(url)
    return "postgresql" if kind == "postgres" else kind


def _facts(changes: Changes) -> Facts:
    origins = changes.origins
    if origins is None:  # of changes that come from no log
        count = changes.transactions.num_rows
        return Facts([""] * count, [""] * count, np.arange(1, len(changes) + 1), late=True)
    numbers = changes.offset - origins.begins[changes.transaction] + 1
    return Facts(origins.ids, origins.positions, numbers, changes.table_number, late=origins.late)


def _apart(changes: Changes) -> Iterator[Changes]:
    is_truncate = changes.op == Op.TRUNCATE
    if not is_truncate.any():
        yield changes
        return
    bounds = [0, *(np.flatnonzero(np.diff(is_truncate)) + 1).tolist(), len(changes)]
    for start, stop in pairwise(bounds):
        yield changes.slice(start, stop)


def _pieces(changes: Changes) -> Iterator[Changes]:
    count = max(-(-len(changes) // PIECE_ROWS), min(-(-changes.nbytes // PIECE_BYTES), len(changes)))
    bounds = np.linspace(0, len(changes), count + 1).astype(np.int64).tolist()
    for start, stop in pairwise(bounds):
        yield changes.slice(start, stop)


def row_pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows as they are encoded together."""
    count = max(-(-rows.num_rows // PIECE_ROWS), min(-(-rows.nbytes // PIECE_BYTES), rows.num_rows))
    size = max(-(-rows.num_rows // max(count, 1)), 1)
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)
