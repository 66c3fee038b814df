"""The index of a document on a real OpenSearch: what it takes and refuses, how it is searched and sorted."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError

import pytest

from support.opensearch import OpenSearchServer
from tailrace.config import documents as d
from tailrace.documents.mapping import mapping_of
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind

pytestmark = pytest.mark.server

THINGS = TableSchema("public", "things", (Column("price", ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)),), ())
LEVELS = ("in", "in progress", "dönë => now", "out")
INNER: dict[str, Any] = {"total": d.Decimal(), "notes": d.Map(values=d.ValueType.TEXT)}
DOCUMENT = d.Document(
    table="things",
    fields={
        "name": d.Text(),
        "sku": d.Identifier(),
        "word": d.Keyword(),
        "level": d.Enum(variants=LEVELS),
        "price": d.Decimal(),
        "worth": d.Decimal(),
        "labels": d.Map(values=d.ValueType.KEYWORD),
        "numbers": d.Map(values=d.ValueType.LONG),
        "place": d.Geo(lat="a", lon="b"),
        "at": d.Timestamp(),
        "about": d.Json(),
        "bytes": d.Binary(),
        "address": d.Custom(opensearch="ip"),
        "deep": d.Custom(opensearch="flat_object"),
        "kind": d.Constant(value=["thing"]),
        "parts": d.HasMany(table="parts", foreign_key=("thing_id",), fields=INNER),
        "owner": d.BelongsTo(table="owners", fields={"name": d.Text()}),
    },
)


class Index:
    """An index that was made of the description."""

    def __init__(self, server: OpenSearchServer, name: str) -> None:
        self.server, self.name = server, name
        server.ask("PUT", name, mapping_of(DOCUMENT, {"public.things": THINGS}))

    def put(self, id_: str, **fields: Any) -> None:
        self.server.ask("PUT", f"{self.name}/_doc/{id_}?refresh=true", fields)

    def ids(self, query: dict[str, Any], **more: Any) -> list[str]:
        found = self.server.ask("POST", f"{self.name}/_search", {"query": query, "size": 100, **more})
        return [hit["_id"] for hit in found["hits"]["hits"]]


@pytest.fixture
def index(opensearch_server: OpenSearchServer, opensearch_prefix: str) -> Index:
    return Index(opensearch_server, f"{opensearch_prefix}things")


def test_every_kind_of_field_is_taken_and_given_back(index: Index):
    fields: dict[str, Any] = {
        "name": "Crème Brûlée",
        "sku": "SKU-123_ab",
        "word": 5,
        "level": "in",
        "price": 12.50,
        "labels": {"a": "x", "b": 1},
        "numbers": {"a": 5},
        "place": {"lat": 1, "lon": 2},
        "at": "2024-01-02T03:04:05.123456Z",
        "about": [1, {"a": "x"}],
        "bytes": "AAEC",
        "address": "127.0.0.1",
        "deep": {"a": {"b": "c"}},
        "kind": ["thing"],
        "parts": [{"total": 1.5, "notes": {"en": "hello world"}}],
        "owner": None,
    }
    index.put("1", **fields)
    assert index.server.ask("GET", f"{index.name}/_doc/1")["_source"] == fields
    assert index.ids({"term": {"numbers.a": 5}}) == ["1"]
    assert index.ids({"term": {"labels.b": "1"}}) == ["1"]
    nested = {"path": "parts", "query": {"match": {"parts.notes.en": "world"}}}
    assert index.ids({"nested": nested}) == ["1"]
    assert index.ids({"term": {"deep.a.b": "c"}}) == ["1"]


@pytest.mark.parametrize(
    "fields", [{"other": 1}, {"parts": [{"other": 1}]}, {"numbers": {"a": "b"}}, {"labels": {"a": {"b": 1}}}]
)
def test_what_was_not_described_is_refused(index: Index, fields: dict[str, Any]):
    with pytest.raises(HTTPError) as caught:
        index.put("1", **fields)
    assert caught.value.code == 400


def test_words_are_found_without_accents_and_case(index: Index):
    index.put("1", name="Crème Brûlée", word="Émile")
    assert index.ids({"match": {"name": "BRULEE"}}) == ["1"]
    assert index.ids({"term": {"name.keyword": "Crème Brûlée"}}) == ["1"]
    assert index.ids({"term": {"word.lowercase": "EMILE"}}) == ["1"]
    assert index.ids({"term": {"word": "emile"}}) == []


def test_an_identifier_is_found_by_itself_and_by_its_parts_in_their_order(index: Index):
    index.put("1", sku="SKU-123_ab")
    for text in ("SKU-123_ab", "sku123ab", "sku", "123", "SKU-123", "sku_123_AB", "123ab", "sku 123"):
        assert index.ids({"match": {"sku": text}}) == ["1"], text
    for text in ("123-sku", "sku-999", "ab-123", "s"):
        assert index.ids({"match": {"sku": text}}) == [], text


def test_an_enum_sorts_in_the_order_of_its_variants(index: Index):
    for level in reversed(LEVELS):
        index.put(str(LEVELS.index(level)), level=level)
    everything = {"exists": {"field": "level"}}
    assert index.ids(everything, sort=["level.sort"]) == ["0", "1", "2", "3"]
    assert index.ids({"term": {"level": "in progress"}}) == ["1"]


def test_texts_of_any_length_are_taken_by_every_field_of_text(index: Index):
    endless = "é" * 50_000
    fields = {"name": endless, "sku": endless, "word": endless, "level": endless, "labels": {"a": endless}}
    index.put("1", **fields)
    assert index.server.ask("GET", f"{index.name}/_doc/1")["_source"] == fields


def test_decimals_of_few_digits_are_compared_exactly_and_others_by_their_digits(index: Index):
    """0.07 is not a number of 64 bits, and neither has 27 digits."""
    digits = "123456789012345678901234567.12"
    body = f'{{"price": 0.07, "worth": {digits}}}'
    index.server.ask("PUT", f"{index.name}/_doc/1?refresh=true", body.encode())
    assert index.ids({"range": {"price": {"gte": 0.07, "lte": 0.07}}}) == ["1"]
    assert index.ids({"range": {"price": {"gt": 0.07}}}) == []
    assert index.ids({"term": {"worth.exact": digits}}) == ["1"]
    assert index.ids({"term": {"worth.exact": digits.replace("7.12", "8.12")}}) == []


def test_a_keyword_that_is_too_long_for_a_term_is_in_the_document_all_the_same(index: Index):
    index.put("1", word="ä" * 40_000)
    assert len(index.server.ask("GET", f"{index.name}/_doc/1")["_source"]["word"]) == 40_000
