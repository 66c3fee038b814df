"""Documents as rows of a source: what is asked for is found, whatever its key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tailrace import config
from tailrace.config import documents as d
from tailrace.documents import keys
from tailrace.sources.postgres.source import PostgresSource
from tailrace.tasks.documented import DocumentedSource
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.server]


def test_a_document_is_found_by_its_key_though_its_id_is_a_hash(postgres_url: str) -> None:
    """It was taken for one whose row is gone, and a replay deleted it."""
    execute(
        postgres_url,
        "CREATE TABLE pages (address text PRIMARY KEY, n int)",
        "INSERT INTO pages VALUES ('', 1), (repeat('x', 600), 2)",
    )
    document = d.Document(table="public.pages", fields={"n": d.Integer()})
    source = DocumentedSource(
        PostgresSource(config.Pipeline("under_test", config.Source(postgres_url, ("public.*",)), {})),
        cast(Any, SimpleNamespace(documents={"pages": document}, flat=None)),
    )
    source.prepare()
    (facts,) = source.facts()
    texts = pa.array(["", "x" * 600])
    wanted = pa.RecordBatch.from_arrays([keys.ids([texts]), keys.listed([texts])], names=["id", "key"])
    found = source.read_rows(facts.schema, wanted)
    assert sorted(found.column("document").to_pylist()) == ['{"n":1}', '{"n":2}']
