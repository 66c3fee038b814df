"""Random documents over random tables, changed at random while the pipeline is killed.

In the end each is what plain SQL builds, none is missing and none is too many. And at every moment none is older than
the watermark says.

`TAILRACE_DOCUMENT_FIRST` is the first seed, `TAILRACE_DOCUMENT_SEEDS` how many there are.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import psycopg
import pytest

from support.document_worlds import FUNCTIONS, World, canonical, documents_query, learn_keys, parsed
from support.opensearch import OpenSearchServer
from support.pipelines import Replica, RunningPipeline, position_of, run_until_current, write_pipeline
from tailrace import failpoints
from tailrace.config import Document
from tailrace.documents.keys import ids
from tailrace.sources.postgres.positions import parse_lsn
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.long]

FIRST = int(os.environ.get("TAILRACE_DOCUMENT_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TAILRACE_DOCUMENT_SEEDS", "1")))
LIVES = 3
KILLS = ("driver", "capture", "jvm")


class Workload(threading.Thread):
    """Transactions of a world, one after the other, until it is told to stop."""

    def __init__(self, url: str, world: World) -> None:
        super().__init__(daemon=True)
        self._url, self._world, self._stopping = url, world, threading.Event()
        self.count = 0

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stopping.wait(0.02):
                with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                    for _ in range(self._world.chance.choice([1, 1, 3])):
                        connection.execute(self._statement().encode())
                    self.count += 1
                    if self._world.chance.random() < 0.1:
                        raise psycopg.Rollback

    def _statement(self) -> str:
        """Tables are emptied now and then, and not so often that there is nothing left to compare."""
        statement = self._world.change()
        is_rare = statement.startswith("TRUNCATE") and self._world.chance.random() < 0.8
        return "SELECT 1" if is_rare else statement

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)


def described(document: Document) -> Any:
    """As a file has it: what is as it is without saying is not said."""

    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {k: plain(v) for k, v in value.items() if v not in (None, [], {}, False) or k == "value"}
            case list():
                return [plain(each) for each in value]
            case _:
                return value

    return plain(msgspec.to_builtins(document))


def indexed(server: OpenSearchServer, alias: str) -> dict[str, Any]:
    server.ask("POST", f"{alias}/_refresh")
    hits = server.ask("GET", f"{alias}/_search?size=10000")["hits"]["hits"]
    return {hit["_id"]: canonical(parsed(msgspec.json.encode(hit["_source"]).decode())) for hit in hits}


def expected(connection: psycopg.Connection[Any], world: World, key: tuple[str, ...]) -> dict[str, Any]:
    import pyarrow as pa

    rows = connection.execute(documents_query(world.document, key).encode()).fetchall()
    parts = [["3.5" if part == "3.50" else part for part in own] for _, *own in rows]  # as keys are written
    names = ids([pa.array([own[place] for own in parts], pa.string()) for place in range(len(key))]).to_pylist()
    return dict(zip(names, (canonical(parsed(text)) for text, *_ in rows), strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_documents_are_what_sql_builds_after_kills(
    postgres_url: str, opensearch_server: OpenSearchServer, opensearch_prefix: str, tmp_path: Path, seed: int
) -> None:
    world, chance = World(seed), random.Random(seed)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(FUNCTIONS.encode())
        world.create(connection)
    learn_keys(world)
    sink = {"url": opensearch_server.url, "prefix": opensearch_prefix, "replicas": 0, "flat": []}
    file = write_pipeline(
        tmp_path, postgres_url, {"search": sink}, tables=["public.*"], documents={"things": described(world.document)}
    )
    workload = Workload(postgres_url, world)
    workload.start()
    for kill in [*chance.sample(KILLS, LIVES - 1), "driver"]:
        with RunningPipeline(file) as running:
            running.wait_for(lambda: Replica(file, "search").is_live(), f"live documents, seed {seed}")
            count = workload.count + chance.randrange(100)
            running.wait_for(lambda count=count: workload.count > count, "some changes")
            {"driver": running.kill, "capture": running.kill_capture, "jvm": running.kill_jvm}[kill]()
            if kill == "capture":
                running.wait_for(lambda count=count: workload.count > count + 50, "some more changes")
                assert running.stop() == 0
    workload.stop()
    key = tuple(world.document.key) or key_of(postgres_url, world)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for _ in range(300):  # or as many as the filters let through
            if len(expected(connection, world, key)) >= 3:
                break
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute(world.insert(world.root).encode())
        run_until_current(file)
        assert indexed(opensearch_server, f"{opensearch_prefix}things") == expected(connection, world, key)


def key_of(url: str, world: World) -> tuple[str, ...]:
    query = (
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indisprimary AND i.indrelid = %s::regclass ORDER BY array_position(i.indkey, a.attnum)"
    )
    with psycopg.connect(url) as connection:
        return tuple(row[0] for row in connection.execute(query, [world.root.name]).fetchall())


# --- never older than the watermark


class Ticks(threading.Thread):
    """Counts children of documents up, and notes which count was committed before which place of the log."""

    def __init__(self, url: str, roots: int) -> None:
        super().__init__(daemon=True)
        self._url, self._roots, self._stopping = url, roots, threading.Event()
        self.committed: list[tuple[int, int, int]] = []  # root, tick, a place after its commit

    def run(self) -> None:
        chance = random.Random(1)
        with psycopg.connect(self._url, autocommit=True) as connection:
            for tick in itertools.count(1):
                if self._stopping.wait(0.01):
                    return
                root = chance.randrange(self._roots)
                connection.execute("UPDATE leaf SET tick = %s WHERE branch_id = %s", [tick, root])
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                self.committed.append((root, tick, parse_lsn(row[0])))

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)


def observations(server: OpenSearchServer, alias: str, file: Path, ticks: Ticks) -> Iterator[tuple[int, int, int]]:
    """Root, what its document has, and what it has to have at least by the watermark that was read before."""
    mark = Replica(file, "search").state().watermark
    if mark is None or not mark.position:
        return
    place = parse_lsn(mark.position)
    least: dict[int, int] = {}
    for root, tick, committed in list(ticks.committed):
        if committed <= place:
            least[root] = tick
    if not server.exists(alias):
        return  # it is live, and about to be shown for the first time
    answer = server.ask("POST", f"{alias}/_mget", {"ids": [str(root) for root in least]}) if least else {"docs": []}
    for found in answer["docs"]:
        assert "_source" in found, f"the document is not there: {found}"
        yield int(found["_id"]), found["_source"]["branch"]["leaf"]["tick"], least[int(found["_id"])]


def test_no_document_is_older_than_the_watermark_says(
    postgres_url: str, opensearch_server: OpenSearchServer, opensearch_prefix: str, tmp_path: Path
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE root (id int PRIMARY KEY)",
        "CREATE TABLE branch (id int PRIMARY KEY, root_id int)",
        "CREATE TABLE leaf (id int PRIMARY KEY, branch_id int, tick int)",
        "INSERT INTO root SELECT generate_series(0, 49)",
        "INSERT INTO branch SELECT n, n FROM generate_series(0, 49) n",
        "INSERT INTO leaf SELECT n, n, 0 FROM generate_series(0, 49) n",
    )
    leaf = {"type": "has_one", "table": "leaf", "foreign_key": "branch_id", "fields": {"tick": "integer"}}
    branch = {"type": "has_one", "table": "branch", "foreign_key": "root_id", "fields": {"leaf": leaf}}
    sink = {"url": opensearch_server.url, "prefix": opensearch_prefix, "replicas": 0}
    file = write_pipeline(
        tmp_path, postgres_url, {"search": sink}, documents={"roots": {"table": "root", "fields": {"branch": branch}}}
    )
    ticks, checked = Ticks(postgres_url, 50), 0
    ticks.start()
    for _ in range(2):
        with RunningPipeline(file) as running:
            running.wait_for(lambda: Replica(file, "search").is_live(), "live documents")
            goal = checked + 500
            while checked < goal:
                for root, has, least in observations(opensearch_server, f"{opensearch_prefix}roots", file, ticks):
                    assert has >= least, f"document {root} is at {has}, and the watermark says {least}"
                    checked += 1
                assert running.process.poll() is None, running.output
            running.kill()
    ticks.stop()
    end = position_of(postgres_url)
    run_until_current(file)
    assert Replica(file, "search").has_reached(end)


# --- between a document and what is remembered of it


@pytest.mark.parametrize("failpoint", ["documents-remembered", "documents-written"])
def test_a_child_that_moves_on_while_a_killed_build_is_not_done_again_is_left_nowhere(
    postgres_url: str, opensearch_server: OpenSearchServer, opensearch_prefix: str, tmp_path: Path, failpoint: str
) -> None:
    """It moves from 1 to 2, whose documents are half written, and then to 3: nothing but the memory leads to both."""
    execute(
        postgres_url,
        "CREATE TABLE root (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, root_id int)",
        "INSERT INTO root VALUES (1), (2), (3)",
        "INSERT INTO child VALUES (7, 1)",
    )
    children = {"type": "has_many", "table": "child", "foreign_key": "root_id", "fields": {"id": "integer"}}
    documents = {"roots": {"table": "root", "fields": {"id": "integer", "children": children}}}
    sink = {"url": opensearch_server.url, "prefix": opensearch_prefix, "replicas": 0, "flat": []}
    file = write_pipeline(tmp_path, postgres_url, {"search": sink}, documents=documents)
    run_until_current(file)
    once = str(tmp_path / "once")
    armed = failpoints.environment(failpoint, action="stop", once=once)
    with RunningPipeline(file, environment=armed) as running:
        execute(postgres_url, "UPDATE child SET root_id = 2 WHERE id = 7")
        running.wait_for(lambda: failpoints.fired(failpoint, once), "a build that is half done")
        others = psutil.Process(running.process.pid).children(recursive=True)
        running.kill()
        for each in others:  # one of them stands still, and would notice nothing
            with suppress(psutil.NoSuchProcess):
                each.kill()
    execute(postgres_url, "UPDATE child SET root_id = 3 WHERE id = 7")
    run_until_current(file)
    found = indexed(opensearch_server, f"{opensearch_prefix}roots")
    assert {id_: len(each["children"]) for id_, each in found.items()} == {"1": 0, "2": 0, "3": 1}
