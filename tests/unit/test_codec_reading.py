"""Messages as a person sees them: what was encoded reads back, and what is none of ours is told."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.formats import AvroFormat
from tailrace.codecs.reading import MessageReader
from tailrace.codecs.registered import RegisteredCodec
from tailrace.codecs.registry.client import Registry, RegistrySchema
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.wire.avro_reader import read_avro
from tailrace.codecs.wire.envelopes import EnvelopeShape
from tailrace.errors import ConfigError, DecodeError
from tailrace.model.changes import Op
from tailrace.testing.codec_contract import KEYED, changes_of, records_of, sample
from tailrace.testing.codec_events import facts_of
from tailrace.testing.sample_values import SAMPLES


class Remembering(Registry):
    """Schemas by number, without a server."""

    def __init__(self) -> None:
        self.settings = RegistrySettings("http://nowhere")
        self.known: list[RegistrySchema] = []

    def id_of(self, subject: str, schema: RegistrySchema) -> int:
        if schema not in self.known:
            self.known.append(schema)
        return self.known.index(schema)

    def schema_of(self, number: int) -> tuple[str, str]:
        return self.known[number].kind, self.known[number].text


def avro_codec(registry: Registry) -> RegisteredCodec:
    return RegisteredCodec(EnvelopeShape(DebeziumSettings("shop", "db")), AvroFormat(), lambda: registry, "t")


def test_avro_reads_back() -> None:
    registry = Remembering()
    changes = changes_of(KEYED, [Op.UPDATE], [pa.array([1]), pa.array(["n"])], {0: {"id": 1}})
    (record,) = records_of(avro_codec(registry).encode_changes(changes, facts_of(changes)))
    seen = MessageReader(registry).read(record.key, record.value)
    assert (seen.op, seen.key, seen.after) == ("update", {"id": 1}, {"id": 1, "note": "n"})


@pytest.mark.parametrize("name", ["int64", "float64", "numeric", "bytes", "timestamptz"])
def test_values_in_avro_read_back_whole(name: str) -> None:
    assert name in SAMPLES
    registry, changes = Remembering(), sample(name).slice(1, 3)
    for record in records_of(avro_codec(registry).encode_changes(changes, facts_of(changes))):
        seen = MessageReader(registry).read(record.key, record.value)
        assert seen.op == "insert"
        assert set(seen.after) == {"id", "v"}


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x04\x06abc\x00", b"\x80"])
def test_bytes_that_are_none_of_their_schema_are_refused(data: bytes) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "string"]}]}
    with pytest.raises(DecodeError, match=f"a message of {len(data)} bytes"):
        read_avro(schema, data)


def test_a_message_with_a_registry_wants_one() -> None:
    with pytest.raises(ConfigError, match="in a registry"):
        MessageReader().read(None, b"\x00\x00\x00\x00\x01x")


def test_what_is_no_json_is_told_without_its_content() -> None:
    with pytest.raises(DecodeError, match="a message of 6 bytes is no JSON"):
        MessageReader().read(None, b"secret")


def test_what_is_not_ours_is_shown_as_it_is() -> None:
    assert MessageReader().read(None, json.dumps({"a": 1}).encode()).after == {"a": 1}
