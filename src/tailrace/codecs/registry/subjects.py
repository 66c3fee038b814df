"""What a schema is called in the registry, and what stands before a message so that readers find it."""

from __future__ import annotations

import struct

from tailrace.codecs.registry.settings import Subjects


def subject_of(strategy: Subjects, topic: str, record: str, part: str) -> str:
    """`part` is key or value; `record` is the full name of what the schema describes."""
    match strategy:
        case Subjects.TOPIC:
            return f"{topic}-{part}"
        case Subjects.RECORD:
            return record
        case Subjects.TOPIC_RECORD:
            return f"{topic}-{record}"


def header_of(schema_id: int) -> bytes:
    """Confluent's wire format: a zero, and the schema's number."""
    return struct.pack(">bI", 0, schema_id)
