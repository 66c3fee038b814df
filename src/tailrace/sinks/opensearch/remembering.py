"""Which documents were built from which rows: their memory is searched (see `memory`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.sinks.opensearch.client import Answer, Client
from tailrace.sinks.opensearch.memory import KEY, PRIMARY, ROWS
from tailrace.sinks.opensearch.naming import memory_of
from tailrace.sinks.opensearch.row_numbers import node_range, numbers_of

TERMS = 8_192
"""Rows that are asked for together; a server takes 65,536."""
PAGE = 5_000
"""Documents that are read together; a server gives 10,000."""
KEPT_ALIVE = "5m"

Keys = list[list[str]]


class RememberedDocuments:
    """What the memory of one index had when this was made: it is refreshed then, once."""

    def __init__(self, client: Client, index: str, table: str) -> None:
        self._client, self._index, self._table = client, memory_of(index), table
        answer = client.ask("POST", f"{self._index}/_refresh", doing=f"refreshing {table}", allow=(404,))
        _found(answer, table, self._index)

    def by_rows(self, terms: pa.StringArray) -> Iterator[Keys]:
        """Root keys of the documents that were built from any of these rows; one may come more than once."""
        for first in range(0, len(terms), TERMS):
            some = numbers_of(terms.slice(first, TERMS)).tolist()
            yield from self._keys({"terms": {ROWS: some}})

    def by_node(self, node: int) -> Iterator[Keys]:
        """Root keys of the documents that were built from any row of a node; of node 0, of all documents."""
        least, most = node_range(node)
        yield from self._keys({"match_all": {}} if node == 0 else {"range": {ROWS: {"gte": least, "lte": most}}})

    def _keys(self, query: dict[str, Any]) -> Iterator[Keys]:
        body = {"query": {"constant_score": {"filter": query}}, "_source": False, "stored_fields": [KEY]}
        for hits in pages(self._client, self._index, self._table, body):
            yield [hit["fields"][KEY] for hit in hits]


def pages(client: Client, index: str, table: str, body: dict[str, Any]) -> Iterator[list[Answer]]:
    """All that a search of the primaries finds, in pages. What fits into one page costs one request."""
    doing = f"searching {table}"
    plain = body | {"size": PAGE, "track_total_hits": PAGE + 1}
    answer = client.ask("POST", f"{index}/_search", plain, doing=doing, allow=(404,), parameters=PRIMARY)
    _found(answer, table, index)
    if answer["hits"]["total"]["value"] <= PAGE:
        if answer["hits"]["hits"]:
            yield answer["hits"]["hits"]
        return
    yield from _scrolled(client, index, table, body | {"size": PAGE, "sort": ["_doc"]})


def _scrolled(client: Client, index: str, table: str, body: dict[str, Any]) -> Iterator[list[Answer]]:
    doing = f"reading {table}"
    parameters = PRIMARY | {"scroll": KEPT_ALIVE}
    answer = client.ask("POST", f"{index}/_search", body, doing=doing, parameters=parameters, allow=(404,))
    try:
        while hits := _found(answer, table, index)["hits"]["hits"]:
            yield hits
            again = {"scroll": KEPT_ALIVE, "scroll_id": answer["_scroll_id"]}
            answer = client.ask("POST", "_search/scroll", again, doing=doing, allow=(404,))
            if answer.get("status") == 404:
                raise SinkUnavailable(f"the server has lost what was found so far, while {doing}: it was restarted")
    finally:
        if "_scroll_id" in answer:
            client.ask("DELETE", "_search/scroll", {"scroll_id": answer["_scroll_id"]}, doing=doing, allow=(404,))


def _found(answer: Answer, table: str, index: str) -> Answer:
    if answer.get("status") == 404:
        raise gone(table, index)
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        raise SinkUnavailable(f"{shards['failed']} of the shards of index {index} do not answer")
    if answer.get("timed_out"):
        raise SinkUnavailable(f"a search of index {index} ended before all was found: the server has a limit of time")
    return answer


def gone(table: str, index: str) -> SinkRejected:
    return SinkRejected(
        f"index {index} of {table} is gone: somebody deleted it",
        hint=f"it is built again by itself after a while, or at once by `tailrace snapshot {table}`",
        table=table,
    )
