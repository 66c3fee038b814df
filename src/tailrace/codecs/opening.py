"""The one way to a codec from settings: the same in the driver, in a task, and after pickling."""

from __future__ import annotations

from functools import lru_cache

from tailrace.codecs.base import Codec, Encoded, Facts, Record
from tailrace.codecs.cloudevents import CloudEventsCodec
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.flat.codec import FlatCodec
from tailrace.codecs.formats import AvroFormat, ProtobufFormat, RegisteredFormat
from tailrace.codecs.registered import RegisteredCodec
from tailrace.codecs.registered_json import RegisteredJsonCodec
from tailrace.codecs.registry.client import open_registry
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.settings import CodecSettings, Format, Shape, StreamName
from tailrace.codecs.wire.envelopes import EnvelopeShape
from tailrace.codecs.wire.flat import FlatShape
from tailrace.model.changes import Changes
from tailrace.model.event import Event
from tailrace.model.schema import TableSchema


class StreamCodec:
    """A codec for the records of one topic. Pickles as what it was opened with."""

    def __init__(self, settings: CodecSettings, stream: StreamName, topic: str) -> None:
        self._opened_with = (settings, stream, topic)
        self._inner = _codec(settings, stream, topic)
        self.content_type = self._inner.content_type

    def __reduce__(self) -> tuple[object, ...]:
        return open_codec, self._opened_with

    def prepare(self, schema: TableSchema) -> None:
        """Register what a version of a table needs to be registered, and find out whether it can be written at all."""
        if isinstance(self._inner, RegisteredCodec | RegisteredJsonCodec):
            self._inner.table_of(schema)

    def encode(self, event: Event) -> list[Record]:
        return self._inner.encode(event)

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        return self._inner.encode_changes(changes, facts)


@lru_cache(maxsize=4096)
def open_codec(settings: CodecSettings, stream: StreamName, topic: str) -> StreamCodec:
    """One for each topic, and the same one for each call in a process."""
    return StreamCodec(settings, stream, topic)


def check_codec(settings: CodecSettings) -> None:
    """Raise what would stop a run: a registry that does not answer, or does not let us in."""
    if settings.registry is not None:
        open_registry(settings.registry).ping()


def _codec(settings: CodecSettings, stream: StreamName, topic: str) -> Codec:
    own = settings.of(stream)
    if settings.registry is not None:
        return _registered(settings, settings.registry, own, topic)
    match settings.shape:
        case Shape.DEBEZIUM:
            return DebeziumCodec(own)
        case Shape.FLAT:
            return FlatCodec(own)
        case Shape.CLOUDEVENTS:
            return CloudEventsCodec(own)


def _registered(settings: CodecSettings, registry: RegistrySettings, own: DebeziumSettings, topic: str) -> Codec:
    if settings.format is Format.JSON_SCHEMA:
        inner = FlatCodec(own, typed=True) if settings.shape is Shape.FLAT else DebeziumCodec(own)
        return RegisteredJsonCodec(inner, lambda: open_registry(registry), topic)
    shape = FlatShape(own) if settings.shape is Shape.FLAT else EnvelopeShape(own)
    return RegisteredCodec(shape, _FORMATS[settings.format], lambda: open_registry(registry), topic)


_FORMATS: dict[Format, RegisteredFormat] = {Format.AVRO: AvroFormat(), Format.PROTOBUF: ProtobufFormat()}
