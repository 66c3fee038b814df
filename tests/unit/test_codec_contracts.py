"""Every codec keeps its contract: one event at a time, or all changes of a table at once, the records are the same."""

from __future__ import annotations

import pytest

from tailrace.codecs.base import Codec
from tailrace.codecs.cloudevents import CloudEventsCodec
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.codecs.json_events import JsonCodec
from tailrace.testing.codec_contract import CodecContract

SETTINGS = {
    "default": DebeziumSettings("shop", "db"),
    "plain": DebeziumSettings("shop", "db", schemas=False, tombstones=False, transactions=True),
    "strings": DebeziumSettings("s", "db", decimals=Decimals.STRING, intervals=Intervals.STRING, binary=Binary.HEX),
    "doubles": DebeziumSettings("s", "db", decimals=Decimals.DOUBLE, binary=Binary.BASE64_URL_SAFE),
    "another source": DebeziumSettings("s", 'd"b', connector="outbox", schemas=False),
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
    @pytest.fixture(params=["default", "plain", "another source"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CloudEventsCodec(SETTINGS[request.param], lambda: 1_709_251_200_123_456_789)
