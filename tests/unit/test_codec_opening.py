"""Codecs by their settings."""

from __future__ import annotations

import json
import pickle

import pytest

from tailrace.codecs.base import Record
from tailrace.codecs.opening import open_codec
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.settings import REGISTERED, CodecSettings, Format, Shape, StreamName
from tailrace.errors import ConfigError
from tailrace.testing.codec_contract import records_of, sample
from tailrace.testing.codec_events import facts_of

SHOP = StreamName("shop", "db", "postgresql")
REGISTRY = RegistrySettings("http://127.0.0.1:1", password="hunter2")


def first(settings: CodecSettings) -> Record:
    changes = sample("int64")
    codec = pickle.loads(pickle.dumps(open_codec(settings, SHOP, "shop.public.samples")))
    return records_of(codec.encode_changes(changes, facts_of(changes)))[0]


@pytest.mark.parametrize("shape", Shape)
def test_every_shape_is_written_as_json_after_pickling(shape: Shape) -> None:
    record = first(CodecSettings(shape))
    assert record.key == b'{"id":0}'
    value = json.loads(record.value or b"")
    row = {Shape.DEBEZIUM: lambda v: v["after"], Shape.FLAT: dict, Shape.CLOUDEVENTS: lambda v: v["data"]["after"]}
    assert row[shape](value)["id"] == 0


@pytest.mark.parametrize("shape", [Shape.DEBEZIUM, Shape.FLAT])
def test_a_schema_is_beside_the_payload(shape: Shape) -> None:
    value = json.loads(first(CodecSettings(shape, Format.JSON_SCHEMAS)).value or b"")
    assert [field["field"] for field in value["schema"]["fields"]] == list(value["payload"])


def test_a_codec_is_opened_once_a_topic() -> None:
    assert open_codec(CodecSettings(), SHOP, "a") is open_codec(CodecSettings(), SHOP, "a")


@pytest.mark.parametrize("format_", sorted(REGISTERED))
def test_a_registered_format_needs_a_registry(format_: Format) -> None:
    with pytest.raises(ConfigError, match="needs a schema registry"):
        CodecSettings(format=format_)
    with pytest.raises(ConfigError, match="cloudevents is written as JSON"):
        CodecSettings(Shape.CLOUDEVENTS, format_, REGISTRY)


def test_a_registry_without_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="of no use"):
        CodecSettings(registry=REGISTRY)


def test_secrets_are_not_printed() -> None:
    assert "hunter2" not in repr(CodecSettings(format=Format.AVRO, registry=REGISTRY))
