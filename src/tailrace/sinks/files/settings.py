"""What a sink of files has of its own in the pipeline file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from tailrace import config
from tailrace.codecs.debezium.settings import PLACEHOLDER, Binary, Decimals, Intervals
from tailrace.codecs.settings import CodecSettings, Shape


class FileFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


class FileSettings(config.Settings, frozen=True):
    """A sink of files: a folder of this machine."""

    format: Annotated[FileFormat, Meta(description="`jsonl`, a JSON object a line, or `parquet`")] = FileFormat.JSONL
    shape: Annotated[Shape, Meta(description="of lines: `debezium` envelopes, `flat` rows or `cloudevents`")] = (
        Shape.DEBEZIUM
    )
    decimals: Annotated[Decimals, Meta(description="of lines; decimal.handling.mode: precise, string or double")] = (
        Decimals.PRECISE
    )
    binary: Annotated[
        Binary, Meta(description="of lines; binary.handling.mode: bytes, base64, base64-url-safe or hex")
    ] = Binary.BYTES
    intervals: Annotated[Intervals, Meta(description="of lines; interval.handling.mode: numeric or string")] = (
        Intervals.NUMERIC
    )
    placeholder: Annotated[
        str, Meta(min_length=1, description="of lines: what stands for a value that the source did not send")
    ] = PLACEHOLDER

    def codec(self) -> CodecSettings:
        return CodecSettings(
            shape=self.shape,
            tombstones=False,
            decimals=self.decimals,
            binary=self.binary,
            intervals=self.intervals,
            placeholder=self.placeholder,
        )
