"""Documents of the shape that flusso measures: a user with 5 orders of 4 items each, and 8 tags.

The peer of a seed is a plain bulk load: the very documents, written down as requests beforehand, sent by as many
connections as a seed has tasks into an index of the same mapping, without the memory that ours has beside it of the
rows that documents were built from.
"""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, LiteralString

import msgspec
import psycopg

from benchmarks import ours
from benchmarks.latency import Latencies
from support.opensearch import OpenSearchServer
from support.pipelines import RunningPipeline, write_pipeline
from tailrace import config, registry
from tailrace.model.watermark import Watermark
from tailrace.testing.postgres import PostgresServer

CONNECTIONS = 2
BULK_BYTES = 5 << 20
PATIENCE = 300.0
TABLES: tuple[LiteralString, ...] = (
    "CREATE TABLE users (id bigint PRIMARY KEY, name text, email text, created_at timestamptz)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint, status text, total numeric(10,2), at timestamptz)",
    "CREATE TABLE items (id bigint PRIMARY KEY, order_id int8, sku text, name text, quantity int, price numeric(8,2))",
    "CREATE TABLE tags (id bigint PRIMARY KEY, label text)",
    "CREATE TABLE users_tags (user_id bigint, tag_id bigint, PRIMARY KEY (user_id, tag_id))",
)
ROWS: tuple[LiteralString, ...] = (
    """INSERT INTO users SELECT i, 'user number ' || i, 'user' || i || '@example.org', now()
       FROM generate_series(1, %(users)s) i""",
    """INSERT INTO orders SELECT i, (i - 1) / 5 + 1, (ARRAY['new','paid','sent'])[i %% 3 + 1], i %% 100000 / 100.0,
       now() FROM generate_series(1, %(users)s * 5) i""",
    """INSERT INTO items SELECT i, (i - 1) / 4 + 1, 'sku-' || i %% 997, 'a thing of kind ' || i %% 97, i %% 9 + 1,
       i %% 10000 / 100.0 FROM generate_series(1, %(users)s * 20) i""",
    "INSERT INTO tags SELECT i, 'tag ' || i FROM generate_series(1, 500) i",
    """INSERT INTO users_tags SELECT u, (u * 7 + t) %% 500 + 1
       FROM generate_series(1, %(users)s) u, generate_series(1, 8) t""",
)
INDEXES: tuple[LiteralString, ...] = (
    "CREATE INDEX ON orders (user_id)",
    "CREATE INDEX ON items (order_id)",
    "CREATE INDEX ON users_tags (tag_id)",
)
ITEM = {"id": "long", "sku": "keyword", "name": "text", "quantity": "integer", "price": "decimal"}
ORDER = {
    "id": "long",
    "status": "keyword",
    "total": "decimal",
    "at": "timestamp",
    "items": {"type": "has_many", "table": "items", "foreign_key": "order_id", "fields": ITEM},
}
USER = {
    "id": "long",
    "name": "text",
    "email": "keyword",
    "created_at": "timestamp",
    "orders": {"type": "has_many", "table": "orders", "foreign_key": "user_id", "fields": ORDER},
    "tags": {
        "type": "many_to_many",
        "table": "tags",
        "through": {"table": "users_tags", "left_key": "user_id", "right_key": "tag_id"},
        "fields": {"id": "long", "label": "keyword"},
    },
}
DOCUMENTS = {"users": {"table": "users", "fields": USER}}
CHANGE: LiteralString = "UPDATE items SET quantity = %s WHERE id = %s"


class Recorded(msgspec.Struct, frozen=True):
    """An index's documents as bulk requests, and what an index for them is made with."""

    count: int
    index: dict[str, Any]
    bodies: list[bytes]


def make_shop(server: PostgresServer, users: int) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in TABLES:
            connection.execute(statement)
        for statement in ROWS:
            connection.execute(statement, {"users": users})
        for statement in INDEXES:
            connection.execute(statement)
        connection.execute("VACUUM ANALYZE")


# --- a seed, and its peer


def seed(source_url: str, search: OpenSearchServer, state: Path, prefix: str) -> float:
    """From the exported snapshot to the last document acknowledged, with what ends a seed."""
    from tailrace.pipeline.follower import SinkFollower
    from tailrace.pipeline.table_supervisor import TableSupervisor

    pipeline = _pipeline(source_url, search, state, prefix)
    spark = ours._warm_spark(pipeline, CONNECTIONS)
    source, sink = registry.make_source(pipeline), registry.make_sink(pipeline, "search")
    try:
        start = source.prepare(lambda _: None, lambda: None)
        follower = SinkFollower(spark, pipeline, "search", source, sink, "bench", lambda *_, **__: None)
        sink.claim("bench")
        follower.watermark = Watermark("bench", 0, start)
        keeper = TableSupervisor(follower)
        began = time.perf_counter()
        keeper.copy_tables()
        return time.perf_counter() - began
    finally:
        sink.close()
        source.drop()


def recorded(search: OpenSearchServer, prefix: str) -> Recorded:
    """What a seed has left."""
    (name,) = [each for each in _names(search, prefix) if "-tailrace-" not in each and not each.endswith("-rows")]
    search.ask("POST", f"{name}/_refresh")
    mappings = search.ask("GET", name)[name]["mappings"]
    analysis = search.ask("GET", name)[name]["settings"]["index"].get("analysis", {})
    plain = {key: value for key, value in mappings.items() if key != "_meta"}
    settings = {"analysis": analysis, "index": {"number_of_replicas": 0, "refresh_interval": "-1"}}
    lines = [
        b"%b\n%b\n" % (msgspec.json.encode({"index": {"_id": hit["_id"]}}), msgspec.json.encode(hit["_source"]))
        for hit in _hits(search, name)
    ]
    return Recorded(len(lines), {"settings": settings, "mappings": plain}, list(_bodies(lines)))


def plain_bulk(search: OpenSearchServer, documents: Recorded, name: str = "plain") -> float:
    """Seconds for all documents, refreshed at the end as a seed is."""
    search.ask("PUT", name, documents.index)
    try:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            began = time.perf_counter()
            list(pool.map(lambda n: _send(search, name, documents.bodies[n::CONNECTIONS]), range(CONNECTIONS)))
            search.ask("POST", f"{name}/_refresh")
            seconds = time.perf_counter() - began
        found = search.ask("GET", f"{name}/_count")["count"]
        if found != documents.count:
            raise RuntimeError(f"the plain load has {found} documents of {documents.count}")
        return seconds
    finally:
        search.ask("DELETE", name)


def forget(search: OpenSearchServer, prefix: str) -> None:
    for name in _names(search, prefix):
        search.ask("DELETE", name)


# --- changes three hops away


@contextlib.contextmanager
def live(source_url: str, search: OpenSearchServer, state: Path, prefix: str) -> Iterator[RunningPipeline]:
    """A pipeline that has built all documents and follows, for as long as the block runs."""
    sink = {"url": search.url, "prefix": prefix, "replicas": 0, "flat": []}
    file = write_pipeline(state, source_url, {"search": sink}, tables=["public.*"], documents=DOCUMENTS)
    pipeline = RunningPipeline(file)
    try:
        pipeline.wait_until_live()
        yield pipeline
    finally:
        pipeline.stop()


def change_all(source_url: str, search: OpenSearchServer, prefix: str, users: int, changes: int) -> float:
    """Seconds from the commit of changes of items, each of another order, to the last document that shows its own."""
    step = max(users * 20 // changes, 1)
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute("UPDATE items SET quantity = 777 WHERE id %% %s = 0", [step])
        began = time.perf_counter()
    last = users * 20 // step * step
    _wait(lambda: _quantity(search, prefix, last) == 777 and _found(search, prefix, 777) >= _touched(users, step))
    return time.perf_counter() - began


def latency(
    source_url: str, search: OpenSearchServer, prefix: str, users: int, *, rate: int = 100, seconds: float = 30
) -> Latencies:
    """From the commit of a change to one item to its document being read with it, at a steady rate."""
    commits: dict[int, tuple[int, float]] = {}
    is_over, slowest = threading.Event(), [0.0]

    def write() -> None:
        with psycopg.connect(source_url, autocommit=True) as connection:
            began = time.monotonic()
            for number in range(round(rate * seconds)):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                item, sent = number * 7919 % (users * 20) + 1, time.monotonic()
                connection.execute(CHANGE, [1_000_000 + number, item])
                commits[number] = item, time.monotonic()
                slowest[0] = max(slowest[0], commits[number][1] - sent)
        is_over.set()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    waited = _watch(search, prefix, commits, is_over)
    return Latencies(waited, len(waited), len(waited) / seconds, slowest[0])


def _watch(
    search: OpenSearchServer, prefix: str, commits: dict[int, tuple[int, float]], is_over: threading.Event
) -> list[float]:
    """One for each change; those of one batch are seen together."""
    waited: dict[int, float] = {}
    deadline = time.monotonic() + PATIENCE
    while not is_over.is_set() or len(waited) < len(commits):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(commits) - len(waited)} of {len(commits)} changes were waited for in vain")
        open_ = [number for number in list(commits) if number not in waited][:64]
        shown = _shown(search, prefix, [commits[number][0] for number in open_])
        now = time.monotonic()
        for number in open_:
            if shown.get(commits[number][0], 0) >= 1_000_000 + number:
                waited[number] = now - commits[number][1]
        time.sleep(0.01)
    return list(waited.values())


def _shown(search: OpenSearchServer, prefix: str, items: list[int]) -> dict[int, int]:
    """The quantities that these items have in their documents, whether or not a search finds them yet."""
    if not items:
        return {}
    ids = sorted({(item - 1) // 20 + 1 for item in items})
    body = {"docs": [{"_id": str(each), "_source": ["orders.items.id", "orders.items.quantity"]} for each in ids]}
    documents = search.ask("POST", f"{prefix}users/_mget", body)["docs"]
    return {
        item["id"]: item["quantity"]
        for each in documents
        for order in each["_source"]["orders"]
        for item in order["items"]
    }


def _quantity(search: OpenSearchServer, prefix: str, item: int) -> int:
    return _shown(search, prefix, [item])[item]


def _found(search: OpenSearchServer, prefix: str, quantity: int) -> int:
    inner = {"nested": {"path": "orders.items", "query": {"term": {"orders.items.quantity": quantity}}}}
    query = {"query": {"nested": {"path": "orders", "query": inner}}}
    search.ask("POST", f"{prefix}users/_refresh")
    return int(search.ask("POST", f"{prefix}users/_count", query)["count"])


def _touched(users: int, step: int) -> int:
    """Documents that have an item whose number is a multiple of `step`."""
    return len({(item - 1) // 20 for item in range(step, users * 20 + 1, step)})


def _pipeline(source_url: str, search: OpenSearchServer, state: Path, prefix: str) -> config.Pipeline:
    sink = {"url": search.url, "prefix": prefix, "replicas": 0, "flat": []}
    return config.load(write_pipeline(state, source_url, {"search": sink}, tables=["public.*"], documents=DOCUMENTS))


def _names(search: OpenSearchServer, prefix: str) -> list[str]:
    found = search.ask("GET", f"_cat/indices/{prefix}*?format=json&expand_wildcards=all&h=index")
    return [str(each["index"]) for each in found]


def _hits(search: OpenSearchServer, name: str) -> Iterator[dict[str, Any]]:
    answer = search.ask("POST", f"{name}/_search?scroll=1m", {"size": 1000, "sort": ["_doc"]})
    while answer["hits"]["hits"]:
        yield from answer["hits"]["hits"]
        answer = search.ask("POST", "_search/scroll", {"scroll": "1m", "scroll_id": answer["_scroll_id"]})


def _bodies(lines: list[bytes]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= BULK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _send(search: OpenSearchServer, name: str, bodies: list[bytes]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", search.port, timeout=120)
    for body in bodies:
        connection.request("POST", f"/{name}/_bulk?filter_path=errors", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        if answer["errors"]:
            raise RuntimeError("the plain load had documents refused")
    connection.close()


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain for the documents")
        time.sleep(0.02)
