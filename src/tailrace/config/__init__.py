"""The pipeline file: its structs, how it is read, and what its URLs and table patterns mean."""

from tailrace.config.documents import Document
from tailrace.config.keeping import Keep
from tailrace.config.loading import from_urls, load
from tailrace.config.patterns import TablePatterns
from tailrace.config.pipeline import (
    Acknowledge,
    Capture,
    Log,
    Misfits,
    OnError,
    OnTableError,
    Pipeline,
    Sink,
    Snapshot,
    Source,
    Spark,
    Transform,
)
from tailrace.config.schema import json_schema
from tailrace.config.sections import Settings
from tailrace.config.urls import redact, sqlite_path
from tailrace.registry import scheme

__all__ = [
    "Acknowledge",
    "Capture",
    "Document",
    "Keep",
    "Log",
    "Misfits",
    "OnError",
    "OnTableError",
    "Pipeline",
    "Settings",
    "Sink",
    "Snapshot",
    "Source",
    "Spark",
    "TablePatterns",
    "Transform",
    "from_urls",
    "json_schema",
    "load",
    "redact",
    "scheme",
    "sqlite_path",
]
