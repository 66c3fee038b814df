"""Every codec keeps its contract: one event at a time, or all changes of a table at once, the records are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.codecs.base import Codec
from tailrace.codecs.cloudevents import CloudEventsCodec
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.codecs.flat.codec import FlatCodec
from tailrace.codecs.json_events import JsonCodec
from tailrace.testing.codec_contract import CodecContract

SETTINGS = {
    "default": DebeziumSettings("shop", "db"),
    "plain": DebeziumSettings("shop", "db", schemas=False, tombstones=False, transactions=True),
    "strings": DebeziumSettings("s", "db", decimals=Decimals.STRING, intervals=Intervals.STRING, binary=Binary.HEX),
    "doubles": DebeziumSettings("s", "db", decimals=Decimals.DOUBLE, binary=Binary.BASE64_URL_SAFE),
    "another source": DebeziumSettings("s", 'd"b', connector="outbox", schemas=False),
    "mysql": DebeziumSettings("s", "", connector="mysql", transactions=True),
}


class TestDebezium(CodecContract):
    @pytest.fixture(params=SETTINGS)
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return DebeziumCodec(SETTINGS[request.param], lambda: 1_709_251_200_123_456_789)


class TestJson(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec:
        return JsonCodec()


class TestCloudEvents(CodecContract):
    @pytest.fixture(params=["default", "plain", "another source", "mysql"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CloudEventsCodec(SETTINGS[request.param], lambda: 1_709_251_200_123_456_789)


class TestFlat(CodecContract):
    @pytest.fixture(params=["default", "plain", "typed", "strings"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        is_typed = request.param == "typed"
        return FlatCodec(SETTINGS["plain" if is_typed else request.param], typed=is_typed)

    def read(self, value: bytes) -> Any:
        """An event is of no log, so it has no offset."""
        found = json.loads(value)
        found.get("payload", found).pop("_offset")
        return found
