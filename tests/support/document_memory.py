"""Documents as a sink keeps them, in memory; and what a stream of changes has to say to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from support.document_worlds import canonical, parsed
from tailrace.documents.build import Built
from tailrace.documents.tree import Tree
from tailrace.model.changes import Changes
from tailrace.sources.base import Capture
from tailrace.sources.postgres.source import PostgresSource


class Memory:
    """The documents as a sink has them, and what they remember."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}

    def apply(self, built: Built) -> None:
        for row in built.documents.to_pylist():
            self.documents[row["id"]] = row
        for gone in built.absent.to_pylist():
            self.documents.pop(gone, None)

    def by_rows(self, terms: pa.StringArray) -> Iterator[list[list[str]]]:
        wanted = set(terms.to_pylist())
        yield [row["key"] for row in self.documents.values() if wanted & set(row["rows"])]

    def by_node(self, node: int) -> Iterator[list[list[str]]]:
        prefix = f"{node}:"
        yield [
            row["key"] for row in self.documents.values() if not node or any(t.startswith(prefix) for t in row["rows"])
        ]

    def opened(self) -> dict[tuple[str, ...], Any]:
        return {tuple(row["key"]): canonical(parsed(row["document"])) for row in self.documents.values()}


def news(source: PostgresSource, stream: Capture, tree: Tree) -> Iterator[Changes]:
    """All changes of the tree's tables that were committed and not seen yet."""
    target = source.current_position()
    while not source.reached(stream.received, target):
        stream.poll(0.05)
        if (taken := stream.take()) is not None:
            frames = taken[0]
            yield from source.decode(frames, frames.first, frames.last, tree.tables)
