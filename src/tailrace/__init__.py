"""tailrace: change data capture from a database into other systems, on Spark.

The public names. They are loaded when they are first used, so that `import tailrace` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.embedded.api import capture
    from tailrace.embedded.batch import Batch
    from tailrace.embedded.stream import Stream
    from tailrace.errors import (
        CheckpointRefused,
        CheckpointTaken,
        ConfigError,
        DecodeError,
        EngineLost,
        LogCorrupt,
        MissingExtra,
        Misuse,
        PositionLost,
        SinkError,
        SinkRejected,
        SinkUnavailable,
        SourceChanged,
        SourceError,
        SourceRefused,
        SourceUnavailable,
        StateError,
        StateUnavailable,
        TailraceError,
        ValueRefused,
    )
    from tailrace.pipeline.api import Pipeline
    from tailrace.spark.registering import register

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "CheckpointRefused",
    "CheckpointTaken",
    "ConfigError",
    "DecodeError",
    "EngineLost",
    "LogCorrupt",
    "MissingExtra",
    "Misuse",
    "Pipeline",
    "PositionLost",
    "SinkError",
    "SinkRejected",
    "SinkUnavailable",
    "SourceChanged",
    "SourceError",
    "SourceRefused",
    "SourceUnavailable",
    "StateError",
    "StateUnavailable",
    "Stream",
    "TailraceError",
    "ValueRefused",
    "capture",
    "register",
]

_HOMES = {
    "Batch": "tailrace.embedded.batch",
    "Pipeline": "tailrace.pipeline.api",
    "Stream": "tailrace.embedded.stream",
    "capture": "tailrace.embedded.api",
    "register": "tailrace.spark.registering",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "tailrace.errors")), name)
