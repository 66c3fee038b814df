"""The source as a sink sees it: its tables, or the documents that are made of them."""

from __future__ import annotations

from tailrace.sinks.base import Documents, Sink
from tailrace.sources.base import Source
from tailrace.tasks.documented import documented


def seen_by(sink: Sink, source: Source) -> Source:
    return documented(source, sink) if isinstance(sink, Documents) else source
