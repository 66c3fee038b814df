"""OpenSearch as a sink: the contract of sinks as far as it fits documents, and what documents promise beyond it."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import msgspec
import pyarrow as pa
import pytest

from support.opensearch import OpenSearchServer
from support.opensearch_proxy import Proxy
from tailrace import config
from tailrace.documents.apart import Refused
from tailrace.documents.fields import writer
from tailrace.errors import ConfigError, SinkChanged, SinkRejected, SinkTaken, SinkUnavailable, TailraceError
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import (
    Atomic,
    Batch,
    Documents,
    Evolves,
    Fetches,
    Quarantines,
    RowSink,
    Snapshots,
    Verifies,
)
from tailrace.sinks.opensearch import OpenSearchSink, client, remembering, sending, writing
from tailrace.sinks.opensearch.sending import Target
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import SourceRows, chunk, live, load, net, status, table_of, watermark
from tailrace.testing.sink_process import Commit, LoadChunk, kill_at, stopped_at

pytestmark = pytest.mark.server

Rows = list[tuple[str, str, list[str], list[str]]]
MakeSink = Callable[..., OpenSearchSink]

TEXT = ColumnType(Kind.TEXT, "text")
TEXTS = ColumnType(Kind.ARRAY, "text[]", element=TEXT)
FIELDS = {"name": {"type": "keyword"}, "n": {"type": "integer"}}


def schema_of(name: str, fields: dict[str, Any] | None = None) -> TableSchema:
    made = json.dumps({"settings": {}, "mappings": {"dynamic": "strict", "properties": fields or FIELDS}})
    document = ColumnType(Kind.JSON, "json", labels=(made, "digest"))
    columns = (
        Column("id", TEXT, 1),
        Column("document", document, 2),
        Column("rows", TEXTS, 3),
        Column("key", TEXTS, 4),
    )
    return TableSchema("document", name, columns, ("id",))


USERS, TAGS = schema_of("users"), schema_of("tags")


def doc(id_: str, rows: tuple[str, ...] = (), **fields: Any) -> tuple[str, str, list[str], list[str]]:
    return id_, json.dumps(fields), [f"0:{id_}", *rows], [id_]


@pytest.fixture
def make_sink(opensearch_server: OpenSearchServer, opensearch_prefix: str) -> Iterator[MakeSink]:
    made: list[OpenSearchSink] = []

    def make(name: str = "shop", run: str | None = "run 1", url: str | None = None, **own: Any) -> OpenSearchSink:
        common = {"on_error": own.pop("on_error", config.OnError.STOP)}
        settings = {"prefix": opensearch_prefix, "replicas": 0} | own
        section = config.Sink(url or opensearch_server.url, own=settings, **common)
        pipeline = config.Pipeline(name, config.Source("postgresql://h/d", ("*.*",)), {"search": section})
        made.append(OpenSearchSink(pipeline, "search"))
        if run is not None:
            made[-1].claim(run)
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def sink(make_sink: MakeSink) -> OpenSearchSink:
    return make_sink()


@pytest.fixture
def users(sink: OpenSearchSink) -> OpenSearchSink:
    """A sink with a live document of two."""
    seed(sink, USERS, [doc("1", name="a"), doc("2", name="b")])
    return sink


def seed(sink: OpenSearchSink, schema: TableSchema, rows: Rows, generation: int = 1) -> None:
    live(sink, load(sink, schema, rows, generation), schema)


def apply(sink: OpenSearchSink, offset: int, rows: Rows | None = None, deletes: Sequence[str] = (), **more: Any) -> int:
    sink.begin_build()
    part = sink.stage(f"batch-{offset}", 0, [net(USERS, rows or [], deletes=[(each,) for each in deletes], **more)])
    batch = Batch((part,), watermark(offset), before=sink.read_state().watermark)
    return sink.commit(batch, SourceRows(USERS))


def content(sink: OpenSearchSink, schema: TableSchema = USERS) -> dict[str, Any]:
    return {id_: json.loads(text) for rows in sink.read_table(schema) for id_, text in rows}


def indexes(server: OpenSearchServer, prefix: str) -> list[str]:
    found = server.ask("GET", f"_cat/indices/{prefix}*?format=json&expand_wildcards=all&h=index")
    return sorted(each["index"] for each in found if not re.search("-tailrace-|-rows$", each["index"]))


def index_of(server: OpenSearchServer, prefix: str, name: str = "users") -> str:
    """The one behind the alias."""
    (found,) = server.ask("GET", f"{prefix}{name}/_alias")
    return str(found)


# --- what it is


def test_it_has_the_capabilities_of_a_sink_of_documents(make_sink: MakeSink) -> None:
    sink = make_sink(run=None)
    sink.check()
    has = (RowSink, Snapshots, Verifies, Quarantines, Documents)
    assert [isinstance(sink, each) for each in has] == [True] * len(has)
    assert [isinstance(sink, each) for each in (Evolves, Fetches)] == [False] * 2
    assert (sink.atomic, sink.is_local_only) == (Atomic.ROW, False)


def test_reading_the_state_of_a_sink_that_is_not_there_creates_nothing(
    make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    state = make_sink(run=None).read_state()
    assert (state.watermark, state.tables, state.chunks, state.commits) == (None, {}, {}, 0)
    assert opensearch_server.ask("GET", f"_cat/indices/{opensearch_prefix}*?format=json&expand_wildcards=all") == []


def test_without_documents_in_the_file_all_tables_are_flat(make_sink: MakeSink) -> None:
    sink = make_sink(run=None)
    assert sink.documents == {}
    assert sink.flat is not None
    assert sink.flat.matches("any", "table")
    chosen = make_sink(run=None, flat=["public.*"]).flat
    assert chosen is not None
    assert not chosen.matches("any", "table")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"documents": ["nobody"]}, "no document nobody"),
        ({"prefix": "Upper"}, "prefix"),
        ({"shards": 0}, "shards"),
        ({"refresh_interval": "often"}, "refresh_interval"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(make_sink: MakeSink, own: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_sink(run=None, **own)


def test_a_url_with_a_path_is_refused(make_sink: MakeSink) -> None:
    with pytest.raises(ConfigError, match="address of a server"):
        make_sink(run=None, url="opensearch://127.0.0.1:1/index")


# --- seeds


def test_a_chunk_is_loaded_with_its_mark_and_seen_by_readers_once_all_is_live(
    sink: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    started = sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS, 0), chunk(USERS, 1)], clear=True)
    assert not started.is_beside
    batches = [table_of(USERS, [doc("1", name="a")]), table_of(USERS, []), table_of(USERS, [doc("2"), doc("3")])]
    assert sink.load_chunk(USERS, chunk(USERS, 1), iter(batches)) == 3
    done = msgspec.structs.replace(chunk(USERS, 1), is_loaded=True, rows=3)
    assert sink.read_state().chunks == {USERS.table: [chunk(USERS, 0), done]}
    assert sink.read_state().tables == {USERS.table: started}
    assert not opensearch_server.exists(f"{opensearch_prefix}users")
    assert sink.count_rows(USERS, 5) is None
    assert sink.load_chunk(USERS, chunk(USERS, 0), iter([])) == 0
    sink.finish_snapshot(started)
    live(sink, started, USERS)
    assert content(sink) == {"1": {"name": "a"}, "2": {}, "3": {}}
    assert sink.read_state().chunks == {}


def test_a_chunk_that_is_loaded_already_loads_nothing(sink: OpenSearchSink) -> None:
    sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    counts = [sink.load_chunk(USERS, chunk(USERS), iter([table_of(USERS, [doc("1")])])) for _ in range(2)]
    assert counts == [1, 0]


def test_a_chunk_of_a_plan_that_was_given_up_loads_nothing(sink: OpenSearchSink) -> None:
    begun = sink.begin_snapshot(status(USERS, TableState.SNAPSHOT, generation=2), [chunk(USERS, 0, 2)], clear=True)
    assert sink.load_chunk(USERS, chunk(USERS, generation=1), iter([table_of(USERS, [doc("1")])])) == 0
    live(sink, begun, USERS)
    assert content(sink) == {}


def test_two_attempts_at_a_chunk_at_the_same_time_mark_it_once(sink: OpenSearchSink) -> None:
    sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    other = pickle.loads(pickle.dumps(sink))

    def slow() -> Iterator[pa.RecordBatch]:
        yield table_of(USERS, [doc("1", name="a")])
        assert other.load_chunk(USERS, chunk(USERS), iter([table_of(USERS, [doc("1", name="a")])])) == 1

    assert sink.load_chunk(USERS, chunk(USERS), slow()) == 0
    assert sink.read_state().chunks[USERS.table][0].rows == 1


def test_a_chunk_whose_source_fails_in_the_middle_is_not_marked(sink: OpenSearchSink) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield table_of(USERS, [doc("1")])
        raise ConnectionError("the source is gone")

    sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    with pytest.raises(ConnectionError):
        sink.load_chunk(USERS, chunk(USERS), broken())
    assert not sink.read_state().chunks[USERS.table][0].is_loaded
    assert sink.load_chunk(USERS, chunk(USERS), iter([table_of(USERS, [doc("1")])])) == 1


@pytest.mark.crash
@pytest.mark.parametrize(("failpoint", "is_done"), [("chunk-before-load", False), ("chunk-loaded", True)])
def test_a_process_killed_around_a_chunk_has_marked_it_or_it_is_loaded_again(
    sink: OpenSearchSink, tmp_path: Path, failpoint: str, is_done: bool
) -> None:
    begun = sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    rows = table_of(USERS, [doc("1", name="a")])
    kill_at(failpoint, LoadChunk(sink, USERS, chunk(USERS), rows), tmp_path)
    assert sink.read_state().chunks[USERS.table][0].is_loaded == is_done
    sink.load_chunk(USERS, chunk(USERS), iter([rows]))
    live(sink, begun, USERS)
    assert content(sink) == {"1": {"name": "a"}}


def test_an_index_is_seeded_without_refresh_and_replicas_and_gets_them_after(
    make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    sink = make_sink(refresh_interval="7s", replicas=2, shards=3)
    begun = sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS, 0), chunk(USERS, 1)], clear=True)

    def settings() -> tuple[str, str, str]:
        (index,) = indexes(opensearch_server, opensearch_prefix)
        found = opensearch_server.ask("GET", f"{index}/_settings")[index]["settings"]["index"]
        return found["refresh_interval"], found["number_of_replicas"], found["number_of_shards"]

    sink.load_chunk(USERS, chunk(USERS, 0), iter([table_of(USERS, [doc("1")])]))
    sink.finish_snapshot(begun)  # as before a plan is resumed: there is more to come
    assert settings() == ("-1", "0", "3")
    sink.load_chunk(USERS, chunk(USERS, 1), iter([table_of(USERS, [doc("2")])]))
    for _ in range(2):
        sink.finish_snapshot(begun)
        assert settings() == ("7s", "2", "3")


def test_the_next_generation_takes_the_place_of_the_old_one_without_a_moment_between(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    counts: list[int] = []
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            try:
                counts.append(opensearch_server.ask("GET", f"{opensearch_prefix}users/_count")["count"])
            except HTTPError as error:
                counts.append(-error.code)

    thread = threading.Thread(target=poll)
    thread.start()
    old = index_of(opensearch_server, opensearch_prefix)
    begun = load(users, USERS, [doc(str(number)) for number in range(5)], generation=2)
    assert begun.is_beside
    assert index_of(opensearch_server, opensearch_prefix) == old
    before = len(counts)
    wait_until(lambda: len(counts) > before + 3, seconds=10, what="some looks at the index")
    live(users, begun, USERS)
    before = len(counts)
    wait_until(lambda: len(counts) > before + 3, seconds=10, what="some more looks at the index")
    is_over.set()
    thread.join()
    assert set(counts) == {2, 5}
    assert counts == sorted(counts)
    assert indexes(opensearch_server, opensearch_prefix) == [index_of(opensearch_server, opensearch_prefix)] != [old]


def test_a_seed_that_begins_anew_drops_what_was_built_and_not_what_readers_see(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    load(users, USERS, [doc("9")], generation=2)
    load(users, USERS, [doc("8")], generation=3)
    assert content(users) == {"1": {"name": "a"}, "2": {"name": "b"}}
    assert len(indexes(opensearch_server, opensearch_prefix)) == 2


def test_an_index_takes_the_mapping_and_the_analysis_that_come_with_the_document(
    sink: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    analysis = {"normalizer": {"low": {"type": "custom", "filter": ["lowercase"]}}}
    limits = {"mapping": {"total_fields": {"limit": 1234}}}
    fields = {"name": {"type": "keyword", "normalizer": "low"}}
    made = json.dumps({"settings": {"index": limits, "analysis": analysis}, "mappings": {"properties": fields}})
    column = msgspec.structs.replace(USERS.columns[1], type=ColumnType(Kind.JSON, "json", labels=(made, "d")))
    schema = msgspec.structs.replace(USERS, columns=(USERS.columns[0], column, *USERS.columns[2:]))
    seed(sink, schema, [doc("1", name="LOUD")])
    index = index_of(opensearch_server, opensearch_prefix)
    found = opensearch_server.ask("POST", f"{index}/_search", {"query": {"term": {"name": "loud"}}})
    assert [hit["_source"] for hit in found["hits"]["hits"]] == [{"name": "LOUD"}]
    described = opensearch_server.ask("GET", index)[index]
    assert described["mappings"]["dynamic"] == "strict"
    assert described["settings"]["index"]["mapping"]["total_fields"]["limit"] == "1234"


def test_a_mapping_that_the_server_refuses_is_the_documents_own_trouble(sink: OpenSearchSink) -> None:
    odd = schema_of("odd", {"name": {"type": "no such type"}})
    with pytest.raises(SinkRejected, match="no such type") as error:
        sink.begin_snapshot(status(odd, TableState.SNAPSHOT), [chunk(odd)], clear=True)
    assert (error.value.table, error.value.retry) == ("document.odd", False)


# --- batches


def test_a_batch_changes_documents_and_the_watermark(users: OpenSearchSink) -> None:
    assert apply(users, 10, [doc("1", name="changed"), doc("3", n=3)], ["2"]) == 3
    assert content(users) == {"1": {"name": "changed"}, "3": {"n": 3}}
    assert users.read_state().watermark == watermark(10)


def test_a_batch_that_is_done_again_changes_nothing(users: OpenSearchSink) -> None:
    changes = [net(USERS, [doc("1", name="changed")], deletes=[("2",)])]
    users.begin_build()
    for _ in range(2):
        part = users.stage("batch-10", 0, changes)
    for _ in range(2):
        users.commit(Batch((part,), watermark(10)), SourceRows(USERS))
    assert content(users) == {"1": {"name": "changed"}}
    assert users.read_state().watermark == watermark(10)


def test_every_commit_is_counted_also_one_that_was_there(users: OpenSearchSink) -> None:
    before = users.read_state().commits
    for _ in range(2):
        users.commit(Batch((), watermark(10)), SourceRows(USERS))
    assert users.read_state().commits == before + 2


def test_a_batch_that_starts_elsewhere_is_refused(users: OpenSearchSink) -> None:
    apply(users, 10)
    with pytest.raises(SinkChanged):
        users.commit(Batch((), watermark(12), before=watermark(11)), SourceRows(USERS))
    with pytest.raises(SinkChanged):
        users.commit(Batch((), watermark(12), before=watermark(10), commits=17), SourceRows(USERS))
    assert users.read_state().watermark == watermark(10)


def test_statuses_are_remembered_with_the_watermark(users: OpenSearchSink) -> None:
    now = status(USERS, TableState.LIVE, offset=7)
    users.commit(Batch((), watermark(10), (now,)), SourceRows(USERS))
    assert users.read_state().tables == {USERS.table: now}
    failed = now.aside(TableState.FAILED, "of a reason")
    users.commit(Batch(tables=(failed,)), SourceRows(USERS))
    assert users.read_state().tables == {USERS.table: failed}


def test_a_table_does_not_catch_up_without_its_copy(users: OpenSearchSink) -> None:
    other = status(USERS, TableState.CATCH_UP, generation=9)
    with pytest.raises(SinkChanged, match="copy of"):
        users.commit(Batch(tables=(other,)), SourceRows(USERS))


@pytest.mark.crash
@pytest.mark.parametrize(("failpoint", "is_done"), [("sink-before-commit", False), ("sink-committed", True)])
def test_a_process_killed_around_a_commit_leaves_documents_that_a_replay_makes_right(
    users: OpenSearchSink, tmp_path: Path, failpoint: str, is_done: bool
) -> None:
    changes = [net(USERS, [doc("1", name="changed"), doc("3")], deletes=[("2",)])]
    users.begin_build()
    kill_at(failpoint, Commit(users, changes, watermark(10)), tmp_path)
    assert users.read_state().watermark == (watermark(10) if is_done else None)
    assert content(users) == {"1": {"name": "changed"}, "3": {}}
    users.claim("run 2")
    apply(users, 12, [doc("1", name="later"), doc("3")], ["2"])
    assert content(users) == {"1": {"name": "later"}, "3": {}}


@pytest.mark.crash
def test_a_process_killed_before_the_swap_leaves_it_to_the_next_claim(
    users: OpenSearchSink,
    make_sink: MakeSink,
    tmp_path: Path,
    opensearch_server: OpenSearchServer,
    opensearch_prefix: str,
) -> None:
    begun = load(users, USERS, [doc("9")], generation=2)
    done = msgspec.structs.replace(begun, state=TableState.LIVE, is_beside=False)
    kill_at("sink-committed", Commit(users, [], watermark(10), (done,)), tmp_path)
    assert content(users) == {"1": {"name": "a"}, "2": {"name": "b"}}
    next_run = make_sink(run="run 2")
    assert content(next_run) == {"9": {}}
    assert len(indexes(opensearch_server, opensearch_prefix)) == 1


def test_a_truncate_deletes_all_documents_first(users: OpenSearchSink) -> None:
    apply(users, 10, [doc("3"), doc("2", name="again")], truncate=True)
    assert content(users) == {"2": {"name": "again"}, "3": {}}


def test_documents_of_odd_ids_and_texts_arrive_as_they_are(users: OpenSearchSink) -> None:
    odd = ['a"b\\c', "ä 日本/?#%", "x" * 512, "line\nfeed\ttab", ":"]
    rows: Rows = [(id_, json.dumps({"name": id_}, indent=1), [f"0:{id_}", '1:"\\'], [id_, ""]) for id_ in odd]
    rows.append(("blank", " { } \n", [], ["blank"]))
    apply(users, 10, rows, ["1", "2"])
    assert content(users) == {id_: {"name": id_} for id_ in odd} | {"blank": {}}
    found = users.remembered(USERS).by_rows(pa.array(['1:"\\']))
    assert sorted(key for keys in found for key in keys) == sorted([id_, ""] for id_ in odd)


def test_a_batch_is_sent_in_requests_of_bounded_size(make_sink: MakeSink, opensearch_server: OpenSearchServer) -> None:
    with Proxy(opensearch_server.port) as proxy:
        sink = make_sink(url=f"opensearch://127.0.0.1:{proxy.port}", bulk_bytes=2048)
        seed(sink, USERS, [])
        proxy.requests.clear()
        rows = [doc(str(number), name="x" * 100) for number in range(100)] + [doc("large", name="y" * 5000)]
        apply(sink, 10, rows, [str(number) for number in range(1000, 1010)])
        sent = [path for method, path in proxy.requests if "--w-" in path and "_bulk" in path]
        assert len(content(sink)) == 101
    assert 12 < len(sent) < 40


# --- versions and fences


def test_an_older_build_never_replaces_a_newer_one(users: OpenSearchSink) -> None:
    users.begin_build()
    old = pickle.loads(pickle.dumps(users))
    apply(users, 10, [doc("1", name="newer")], ["2"])
    old.stage("late", 0, [net(USERS, [doc("1", name="older"), doc("2", name="older"), doc("3", name="only here")])])
    assert content(users) == {"1": {"name": "newer"}, "3": {"name": "only here"}}
    old.stage("late", 0, [net(USERS, deletes=[("1",)])])
    assert content(users)["1"] == {"name": "newer"}


def test_a_build_takes_its_number_along_from_the_thread_that_began_it(users: OpenSearchSink) -> None:
    """Copies and batches are begun by threads of their own."""
    users.begin_build()

    def begin_another() -> None:
        users.begin_build()
        pickled.append(pickle.dumps(users))

    pickled: list[bytes] = []
    thread = threading.Thread(target=begin_another)
    thread.start()
    thread.join()
    mine, other = pickle.loads(pickle.dumps(users)), pickle.loads(pickled[0])
    other.stage("b", 0, [net(USERS, [doc("1", name="begun last")])])
    mine.stage("a", 0, [net(USERS, [doc("1", name="begun first")])])
    assert content(users)["1"] == {"name": "begun last"}


@pytest.mark.parametrize(
    "write",
    [
        lambda sink: sink.stage("b", 0, [net(USERS, [doc("1", name="of a zombie")])]),
        lambda sink: sink.stage("b", 0, [net(USERS, deletes=[("1",)])]),
        lambda sink: sink.commit(Batch((), watermark(99)), SourceRows(USERS)),
        lambda sink: sink.load_chunk(USERS, chunk(USERS), iter([table_of(USERS, [doc("9")])])),
        lambda sink: sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [], clear=True),
        lambda sink: sink.finish_snapshot(status(USERS)),
        lambda sink: sink.clean(),
        lambda sink: sink.check_claim(),
    ],
    ids=["stage", "delete", "commit", "load", "begin", "finish", "clean", "check"],
)
def test_a_run_that_was_replaced_writes_nothing_any_more(
    users: OpenSearchSink,
    make_sink: MakeSink,
    opensearch_server: OpenSearchServer,
    opensearch_prefix: str,
    write: Callable[[OpenSearchSink], object],
) -> None:
    (known,) = indexes(opensearch_server, opensearch_prefix)
    zombie = pickle.loads(pickle.dumps(users))
    now = make_sink(run="run 2")
    before = now.read_state()
    for each in (zombie, users):
        with pytest.raises(SinkTaken):
            write(each)
    assert content(now) == {"1": {"name": "a"}, "2": {"name": "b"}}
    assert now.read_state() == before
    assert indexes(opensearch_server, opensearch_prefix) == [known]
    apply(now, 10, [doc("1", name="of the new run")])
    assert content(now)["1"] == {"name": "of the new run"}


@pytest.mark.crash
def test_a_run_that_is_stopped_in_a_chunk_and_wakes_after_another_took_over_loads_nothing(
    users: OpenSearchSink, make_sink: MakeSink, tmp_path: Path
) -> None:
    begun = users.begin_snapshot(status(USERS, TableState.SNAPSHOT, generation=2), [chunk(USERS, 0, 2)], clear=True)
    work = LoadChunk(users, USERS, chunk(USERS, 0, 2), table_of(USERS, [doc("9", name="of a zombie")]))
    with stopped_at("chunk-before-load", work, tmp_path, may_fail=True):
        now = make_sink(run="run 2")
    assert not now.read_state().chunks[USERS.table][0].is_loaded
    live(now, begun, USERS)
    assert content(now) == {}


def test_what_a_broken_off_build_still_sends_is_refused_where_its_tables_were_named(users: OpenSearchSink) -> None:
    users.begin_build([USERS.table])
    straggler = pickle.loads(pickle.dumps(users))
    users.begin_build([USERS.table])  # no commit came
    with pytest.raises(SinkChanged, match="later attempt"):
        straggler.stage("b", 0, [net(USERS, [doc("7")])])
    part = users.stage("b", 0, [net(USERS, [doc("8")])])
    users.commit(Batch((part,), watermark(10)), SourceRows(USERS))
    users.begin_build([USERS.table])  # a commit came: nobody is fenced
    pickle.loads(pickle.dumps(users)).stage("c", 0, [net(USERS, [doc("9")])])
    assert content(users).keys() == {"1", "2", "8", "9"}


def test_what_an_attempt_at_a_chunk_sends_after_the_end_of_the_seed_is_refused(sink: OpenSearchSink) -> None:
    begun = sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    straggler = pickle.loads(pickle.dumps(sink))

    def slow() -> Iterator[pa.RecordBatch]:
        sink.load_chunk(USERS, chunk(USERS), iter([table_of(USERS, [doc("1")])]))
        sink.finish_snapshot(begun)
        yield table_of(USERS, [doc("1"), doc("2")])

    with pytest.raises(SinkChanged):
        straggler.load_chunk(USERS, chunk(USERS), slow())
    live(sink, begun, USERS)
    assert content(sink) == {"1": {}}


def test_of_two_claims_the_later_one_counts_though_its_fence_came_first(
    make_sink: MakeSink, users: OpenSearchSink, opensearch_server: OpenSearchServer
) -> None:
    with Proxy(opensearch_server.port) as proxy:
        slow = make_sink(run=None, url=f"opensearch://127.0.0.1:{proxy.port}")
        quick = make_sink(run=None)

        def overtake(method: str, path: str) -> None:
            if path.startswith("/_aliases"):
                proxy.before = lambda method, path: None
                quick.claim("run 3")

        proxy.before = overtake
        with pytest.raises(SinkTaken):
            slow.claim("run 2")
    apply(quick, 10, [doc("1", name="of the later one")])
    assert content(quick)["1"] == {"name": "of the later one"}


def test_a_claim_that_meets_a_commit_of_the_run_before_is_made_after_it(
    make_sink: MakeSink, users: OpenSearchSink, opensearch_server: OpenSearchServer
) -> None:
    with Proxy(opensearch_server.port) as proxy:
        later = make_sink(run=None, url=f"opensearch://127.0.0.1:{proxy.port}")

        def commit(method: str, path: str) -> None:
            if method == "PUT" and "/_doc/note" in path:
                proxy.before = lambda method, path: None
                users.commit(Batch((), watermark(10), (status(USERS, offset=9),)), SourceRows(USERS))

        proxy.before = commit
        later.claim("run 2")
        assert (later.read_state().watermark, later.read_state().tables[USERS.table].watermark.offset) == (
            watermark(10),
            9,
        )
    with pytest.raises(SinkTaken):
        users.check_claim()


# --- what others do to it


def test_an_index_that_somebody_deleted_is_noticed_and_not_made_by_writing(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    opensearch_server.ask("DELETE", index_of(opensearch_server, opensearch_prefix))
    with pytest.raises(SinkRejected, match="somebody deleted it") as error:
        users.stage("b", 0, [net(USERS, [doc("1")])])
    assert (error.value.table, error.value.retry) == (USERS.table, False)
    assert indexes(opensearch_server, opensearch_prefix) == []
    found = users.read_state().tables[USERS.table]
    assert (found.state, "somebody deleted it" in found.reason) == (TableState.FAILED, True)
    users.check_claim()
    seed(users, USERS, [doc("1")], generation=2)
    assert content(users) == {"1": {}}


def test_a_memory_that_somebody_deleted_is_noticed_and_all_is_built_anew(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    memory = f"{index_of(opensearch_server, opensearch_prefix)}-rows"
    opensearch_server.ask("DELETE", memory)
    for attempt in (
        lambda: users.stage("b", 0, [net(USERS, [doc("1", name="new")])]),
        lambda: users.stage("b", 0, [net(USERS, deletes=[("1",)])]),
        lambda: users.remembered(USERS),
    ):
        with pytest.raises(SinkRejected, match=f"{memory} .*somebody deleted it") as error:
            attempt()
        assert (error.value.table, error.value.retry) == (USERS.table, False)
    assert not opensearch_server.exists(memory)
    found = users.read_state().tables[USERS.table]
    assert (found.state, f"{memory} beside it, was deleted" in found.reason) == (TableState.FAILED, True)
    seed(users, USERS, [doc("1", ("1:7",), name="anew")], generation=2)
    assert content(users) == {"1": {"name": "anew"}}
    assert list(users.remembered(USERS).by_rows(pa.array(["1:7"]))) == [[["1"]]]


def test_a_memory_that_somebody_made_again_is_not_taken_for_the_one_that_was_written(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    memory = f"{index_of(opensearch_server, opensearch_prefix)}-rows"
    made = opensearch_server.ask("GET", memory)[memory]
    opensearch_server.ask("DELETE", memory)
    opensearch_server.ask("PUT", memory, {"mappings": made["mappings"], "aliases": made["aliases"]})
    assert users.read_state().tables[USERS.table].state is TableState.FAILED


def test_an_index_of_before_there_were_memories_is_built_anew(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    """Its identity was that of one index."""
    note = opensearch_server.ask("GET", f"{opensearch_prefix}tailrace-shop-search/_doc/note")["_source"]
    place = f"{opensearch_prefix}tailrace-shop-search/_doc/{note['tables'][USERS.table]}"
    record = opensearch_server.ask("GET", place)["_source"]
    own = {index: " ".join(identity.split()[:-1]) for index, identity in record["identities"].items()}
    opensearch_server.ask("PUT", f"{place}?refresh=true", record | {"identities": own})
    known = pickle.loads(pickle.dumps(users))  # records are read once
    assert known.read_state().tables[USERS.table].state is TableState.FAILED


@pytest.mark.crash
@pytest.mark.parametrize("failpoint", ["documents-remembered", "documents-written"])
def test_a_process_killed_between_documents_and_memory_leaves_one_that_has_the_rows_of_both(
    users: OpenSearchSink, failpoint: str, tmp_path: Path
) -> None:
    """Whichever of the two documents is there, it is found by the rows that it was built from."""
    apply(users, 10, [doc("1", ("1:old", "1:both"), name="old"), doc("2", ("1:other",))])
    users.begin_build()
    kill_at(
        failpoint, Commit(users, [net(USERS, [doc("1", ("1:new", "1:both"), name="new")])], watermark(20)), tmp_path
    )
    name = {"documents-remembered": "old", "documents-written": "new"}[failpoint]
    assert content(users)["1"] == {"name": name}
    for row in ("1:old", "1:new", "1:both"):
        assert list(users.remembered(USERS).by_rows(pa.array([row]))) == [[["1"]]]
    apply(users, 20, [doc("1", ("1:new", "1:both"), name="new")])
    found = users.remembered(USERS)
    assert [len(list(found.by_rows(pa.array([row])))) for row in ("1:old", "1:new", "1:both")] == [0, 1, 1]


def test_a_document_that_is_gone_is_forgotten_after_it(users: OpenSearchSink) -> None:
    apply(users, 10, [doc("1", ("1:a",))])
    apply(users, 20, deletes=["1"])
    assert list(users.remembered(USERS).by_rows(pa.array(["1:a"]))) == []
    assert list(users.remembered(USERS).by_node(0)) == [[["2"]]]


def test_a_document_that_is_refused_keeps_the_memory_of_the_one_that_is_there(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    seed(sink, USERS, [doc("1", ("1:old",), n=1)])
    apply(sink, 10, [doc("1", ("1:new",), n="no number")])
    assert content(sink)["1"] == {"n": 1}
    assert list(sink.remembered(USERS).by_rows(pa.array(["1:old"]))) == [[["1"]]]


def test_what_a_late_request_of_an_older_build_has_of_the_memory_is_refused(users: OpenSearchSink) -> None:
    """It may have been with the server for long when the next build began."""
    users.begin_build()
    old = pickle.loads(pickle.dumps(users))
    apply(users, 10, [doc("1", ("1:new",))])
    old.stage("late", 0, [net(USERS, [doc("1", ("1:old",))])])
    found = users.remembered(USERS)
    assert [len(list(found.by_rows(pa.array([row])))) for row in ("1:old", "1:new")] == [0, 1]


def test_a_readers_alias_that_somebody_removed_is_put_back_and_said(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    index = index_of(opensearch_server, opensearch_prefix)
    opensearch_server.ask("DELETE", f"{index}/_alias/{opensearch_prefix}users")
    with pytest.raises(SinkChanged, match=r"alias of document\.users") as error:
        users.check_claim()
    assert error.value.retry
    users.check_claim()
    assert index_of(opensearch_server, opensearch_prefix) == index


def test_a_writers_alias_that_somebody_removed_is_made_again_by_the_next_build(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    index = index_of(opensearch_server, opensearch_prefix)
    opensearch_server.ask("DELETE", f"{index}/_alias/*--w-*")
    users.begin_build([USERS.table])
    with pytest.raises(SinkChanged):
        users.stage("b", 0, [net(USERS, [doc("3")])])
    users.begin_build([USERS.table])
    users.stage("b", 0, [net(USERS, [doc("3")])])
    assert "3" in content(users)


def test_a_state_that_somebody_deleted_stops_the_sink_and_is_not_made_by_writing(
    users: OpenSearchSink, make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    state = f"{opensearch_prefix}tailrace-shop-search"
    opensearch_server.ask("DELETE", state)
    for use in (users.check_claim, lambda: users.commit(Batch((), watermark(10)), SourceRows(USERS))):
        with pytest.raises(SinkRejected, match="what the sink remembers is gone") as error:
            use()
        assert not error.value.retry
    assert not opensearch_server.exists(state)
    again = make_sink(run="run 2")
    assert again.read_state().tables == {}
    seed(again, USERS, [doc("3")])
    assert content(again) == {"3": {}}
    assert len(indexes(opensearch_server, opensearch_prefix)) == 1


def test_an_index_of_somebody_else_is_neither_taken_nor_dropped(
    sink: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    name = f"{opensearch_prefix}users"
    opensearch_server.ask("PUT", name, {})
    with pytest.raises(SinkRejected, match="that is not this pipeline's") as error:
        sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    assert error.value.table == USERS.table
    assert sink.count_rows(USERS, 5) is None
    sink.clean()
    assert indexes(opensearch_server, opensearch_prefix) == [name]


@pytest.mark.parametrize("kind", ["default_pipeline", "final_pipeline"])
def test_documents_are_not_changed_by_what_the_server_does_to_those_of_others(
    make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str, kind: str
) -> None:
    """A template for all indexes with a pipeline, which may change or drop what is sent; here it is one that fails."""
    template = {"index_patterns": [f"{opensearch_prefix}*"], "template": {"settings": {f"index.{kind}": "nowhere"}}}
    opensearch_server.ask("PUT", f"_index_template/{opensearch_prefix}all", template)
    try:
        sink = make_sink()
        seed(sink, USERS, [doc("1", ("1:1",), name="a"), doc("2", name="b")])
        apply(sink, 10, [doc("3", name="c")], ["2"])
        assert content(sink) == {"1": {"name": "a"}, "3": {"name": "c"}}
        assert list(sink.remembered(USERS).by_rows(pa.array(["1:1"]))) == [[["1"]]]
        assert sink.read_state().watermark == watermark(10)
    finally:
        opensearch_server.ask("DELETE", f"_index_template/{opensearch_prefix}all")


def test_an_alias_of_another_pipeline_is_not_taken(
    users: OpenSearchSink, make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    other = make_sink(name="other")
    with pytest.raises(SinkRejected, match="that is not this pipeline's"):
        other.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    other.clean()
    assert content(users) == {"1": {"name": "a"}, "2": {"name": "b"}}
    apart = make_sink(name="other", prefix=f"{opensearch_prefix}apart-")
    seed(apart, USERS, [doc("5")])
    assert (content(apart), len(content(users))) == ({"5": {}}, 2)


def test_a_deployment_touches_nothing_of_one_whose_prefix_begins_with_its_own(
    users: OpenSearchSink, make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    tried = make_sink(prefix=f"{opensearch_prefix}try-")  # the same pipeline
    seed(tried, USERS, [doc("1", n=1)])
    tried.begin_snapshot(status(USERS, TableState.SNAPSHOT, generation=2), [chunk(USERS)], clear=True)
    expected = indexes(opensearch_server, opensearch_prefix)
    users.clean()
    assert indexes(opensearch_server, opensearch_prefix) == expected
    users.forget()
    seed(tried, TAGS, [doc("1")])
    assert load(tried, USERS, [doc("2", n=2)], generation=3).is_beside
    assert content(tried) == {"1": {"n": 1}}


def test_a_name_that_another_deployment_puts_together_otherwise_is_not_taken(
    make_sink: MakeSink, opensearch_prefix: str
) -> None:
    named = schema_of("try-users")
    sink = make_sink()
    seed(sink, named, [doc("1")])
    tried = make_sink(prefix=f"{opensearch_prefix}try-")
    with pytest.raises(SinkRejected, match="that is not this pipeline's"):
        tried.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    assert content(sink, named) == {"1": {}}


def test_indexes_that_a_crash_left_are_dropped_and_no_others(
    users: OpenSearchSink, make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    other = make_sink(name="other")
    seed(other, TAGS, [doc("1")])
    load(users, USERS, [doc("9")], generation=2)
    expected = indexes(opensearch_server, opensearch_prefix)
    orphan, alias = f"{opensearch_prefix}users-g7-0badcafe", f"{opensearch_prefix}orphan"
    users._generations.create(Target(USERS.table, orphan, alias, f"{alias}-rows"), USERS, 7)
    users.clean()
    assert indexes(opensearch_server, opensearch_prefix) == expected
    assert not opensearch_server.exists(f"{orphan}-rows")


def test_a_forgotten_pipeline_leaves_its_documents_and_takes_them_over_when_it_comes_back(
    users: OpenSearchSink, make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    users.forget()
    assert content(users) == {"1": {"name": "a"}, "2": {"name": "b"}}
    assert users.read_state().tables == {}
    again = make_sink(run="run 2")
    again.clean()
    begun = load(again, USERS, [doc("3")])
    assert begun.is_beside
    assert len(content(again)) == 2
    live(again, begun, USERS)
    assert content(again) == {"3": {}}
    assert len(indexes(opensearch_server, opensearch_prefix)) == 1


# --- bad days of a server


def test_an_index_that_is_read_only_because_the_disk_is_full_is_tried_again_later(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    index = index_of(opensearch_server, opensearch_prefix)
    opensearch_server.ask("PUT", f"{index}/_settings", {"index.blocks.read_only_allow_delete": True})
    with pytest.raises(SinkUnavailable, match="lets nobody write") as error:
        apply(users, 10, [doc("3")])
    assert error.value.hint is not None
    assert "disk" in error.value.hint
    opensearch_server.ask("PUT", f"{index}/_settings", {"index.blocks.read_only_allow_delete": None})
    apply(users, 10, [doc("3")])
    assert "3" in content(users)


def test_what_the_server_is_too_busy_for_is_sent_again(
    make_sink: MakeSink, opensearch_server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(opensearch_server.port) as proxy:
        sink = make_sink(url=f"opensearch://127.0.0.1:{proxy.port}")
        seed(sink, USERS, [])
        left = [429, 503, 429]
        proxy.before = lambda method, path: left.pop() if "_bulk" in path and left else None
        apply(sink, 10, [doc("1")])
        assert (left, content(sink)) == ([], {"1": {}})
        monkeypatch.setattr(sending, "PAUSES", (0.01, 0.01))
        proxy.before = lambda method, path: 429 if "_bulk" in path else None
        with pytest.raises(SinkUnavailable, match="too busy"):
            apply(sink, 11, [doc("2")])


def test_of_a_request_only_the_documents_that_were_not_taken_are_sent_again(
    users: OpenSearchSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[str]] = []
    bulk = users._client.bulk

    def half_busy(alias: str, body: bytes, *, doing: str) -> dict[str, Any]:
        """As a server answers whose queue is full: some items are taken, others are not."""
        actions = [json.loads(line) for line in body.splitlines()[::2]]
        if b'"rows"' in body:  # the memory's
            return bulk(alias, body, doing=doing)
        sent.append([action["index"]["_id"] for action in actions])
        if len(sent) > 1:
            return bulk(alias, body, doing=doing)
        lines = body.splitlines(keepends=True)
        taken = bulk(alias, b"".join(lines[:2]), doing=doing)["items"]
        error = {"type": "rejected_execution_exception", "reason": "rejected execution"}
        return {"errors": True, "items": [*taken, *[{"index": {"status": 429, "error": error}}] * (len(actions) - 1)]}

    monkeypatch.setattr(users._client, "bulk", half_busy)
    users.stage("b", 0, [net(USERS, [doc("3"), doc("4"), doc("5")])])
    assert sent == [["3", "4", "5"], ["4", "5"]]
    assert content(users).keys() == {"1", "2", "3", "4", "5"}


def test_an_answer_that_comes_too_late_is_trouble_that_passes_and_a_replay_makes_it_right(
    make_sink: MakeSink, opensearch_server: OpenSearchServer
) -> None:
    with Proxy(opensearch_server.port) as proxy:
        sink = make_sink(url=f"opensearch://127.0.0.1:{proxy.port}", bulk_timeout_seconds=1)
        seed(sink, USERS, [])
        is_late = threading.Event()

        def delay(method: str, path: str) -> None:
            if "--w-" in path:
                is_late.wait(20)

        proxy.after = delay  # the server has done it, and nobody hears of it
        with pytest.raises(SinkUnavailable, match="did not answer in time"):
            apply(sink, 10, [doc("1", name="a")])
        is_late.set()
        proxy.after = lambda method, path: None
        apply(sink, 10, [doc("1", name="a"), doc("2")])
        assert content(sink) == {"1": {"name": "a"}, "2": {}}


def test_a_commit_whose_answer_was_lost_is_there_and_can_be_repeated(
    make_sink: MakeSink, opensearch_server: OpenSearchServer
) -> None:
    with Proxy(opensearch_server.port) as proxy:
        sink = make_sink(url=f"opensearch://127.0.0.1:{proxy.port}")
        seed(sink, USERS, [])
        done: list[str] = []

        def lose(method: str, path: str) -> None:
            if "/_doc/note" in path and method == "PUT" and not done:
                done.append(path)
                raise ConnectionError("the answer is lost")

        proxy.after = lose
        with pytest.raises(SinkUnavailable):
            sink.commit(Batch((), watermark(10)), SourceRows(USERS))
        assert sink.read_state().watermark == watermark(10)
        sink.commit(Batch((), watermark(10)), SourceRows(USERS))
        assert sink.read_state().watermark == watermark(10)


@pytest.mark.slow
def test_a_server_that_crashed_has_all_that_was_acknowledged_when_it_is_back(
    users: OpenSearchSink, opensearch_server: OpenSearchServer
) -> None:
    apply(users, 10, [doc("3", name="c")])
    opensearch_server.kill()
    with pytest.raises(SinkUnavailable, match="can not be reached"):
        users.check_claim()
    opensearch_server.restart()
    users.check_claim()
    assert users.read_state().watermark == watermark(10)
    assert content(users) == {"1": {"name": "a"}, "2": {"name": "b"}, "3": {"name": "c"}}
    apply(users, 11, [doc("4")], ["1"])
    assert content(users).keys() == {"2", "3", "4"}


@pytest.mark.slow
@pytest.mark.parametrize("before", ["close", "delete"])
def test_an_index_that_was_restored_from_a_backup_is_noticed(
    make_sink: MakeSink, opensearch_server: OpenSearchServer, opensearch_prefix: str, before: str
) -> None:
    """Whatever it lacks, the watermark says that it has it."""
    if "path.repo" not in opensearch_server.settings:
        opensearch_server.restart({"path.repo": opensearch_server.folder / "backups"})
    sink, backup = make_sink(), f"_snapshot/{before}"
    seed(sink, USERS, [doc("1", name="a")])
    index = index_of(opensearch_server, opensearch_prefix)
    opensearch_server.ask("PUT", backup, {"type": "fs", "settings": {"location": before}})
    opensearch_server.ask("PUT", f"{backup}/one?wait_for_completion=true", {"indices": index})
    apply(sink, 10, [doc("2", name="b")])
    opensearch_server.ask(*(("DELETE", index) if before == "delete" else ("POST", f"{index}/_close")))
    opensearch_server.ask("POST", f"{backup}/one/_restore?wait_for_completion=true", {"indices": index})
    again = make_sink(run="another")
    found = again.read_state().tables[USERS.table]
    assert (found.state, "restored or made again" in found.reason) == (TableState.FAILED, True)
    seed(again, USERS, [doc("1", name="a"), doc("2", name="b")], generation=2)
    assert again.read_state().tables[USERS.table].state is TableState.LIVE
    assert content(again).keys() == {"1", "2"}


def test_a_server_that_is_not_there_is_trouble_that_passes(make_sink: MakeSink) -> None:
    with pytest.raises(SinkUnavailable, match="can not be reached"):
        make_sink(run=None, url="opensearch://127.0.0.1:9").check()


# --- documents that are refused


def test_a_document_that_does_not_fit_stops_the_sink_by_its_field_and_without_its_value(users: OpenSearchSink) -> None:
    for fields, words in (({"n": "secret"}, "field n can not be held as integer"), ({"zz": "secret"}, "field zz")):
        with pytest.raises(SinkRejected, match=words) as error:
            users.stage("b", 0, [net(USERS, [doc("7", **fields)])])
        assert error.value.table == USERS.table
        assert USERS.table in str(error.value)
        assert "secret" not in f"{error.value} {error.value.hint} {error.value.__cause__}"


def test_a_document_that_does_not_fit_is_set_aside_listed_and_written_again(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    begun = sink.begin_snapshot(status(USERS, TableState.SNAPSHOT), [chunk(USERS)], clear=True)
    sink.load_chunk(USERS, chunk(USERS), iter([table_of(USERS, [doc("1", n=1), doc("2", n="two")])]))
    sink.finish_snapshot(begun)
    live(sink, begun, USERS)
    apply(sink, 10, [doc("1", n="one"), doc("3", n=3)])
    assert content(sink) == {"1": {"n": 1}, "3": {"n": 3}}
    first, second = sink.quarantined()
    assert (first.rejected.key, second.rejected.key) == ({"id": "2"}, {"id": "1"})
    assert (second.rejected.table, second.rejected.operation, second.place) == (USERS.table, "upsert", watermark(10))
    assert "field n" in second.rejected.reason
    assert '"n": "one"' in second.rejected.payload["document"]
    apply(sink, 11, [doc("1", n="one")])
    assert len(sink.quarantined()) == 2  # it is one entry, however often

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        present = {"1": doc("1", n=11)}
        return table_of(schema, [present[id_] for id_ in keys.column("id").to_pylist() if id_ in present])

    assert sink.replay(sink.quarantined(), fetch) == 2
    assert (content(sink), sink.quarantined()) == ({"1": {"n": 11}, "3": {"n": 3}}, [])


def test_a_replay_asks_for_documents_by_their_keys_because_an_id_may_be_a_hash(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    key = ['a ,"key":["x"]}}', "long" * 200]
    seed(sink, USERS, [("5f2c", '{"n":1}', ["0:x"], key)])
    apply(sink, 10, [("5f2c", '{"n":"one"}', ["0:x"], key)])
    sink.set_aside(USERS, [Refused("77aa", "it has a value that none can have", ("other", "key"))])
    asked: list[Any] = []

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(keys.to_pylist())
        return table_of(schema, [(keys["id"][0].as_py(), '{"n":2}', ["0:x"], keys["key"][0].as_py())])

    assert sink.replay(sink.quarantined(), fetch) == 2
    assert sorted(asked, key=str) == [{"id": "5f2c", "key": key}, {"id": "77aa", "key": ["other", "key"]}]
    assert content(sink) == {"5f2c": {"n": 2}, "77aa": {"n": 2}}


def test_a_replay_does_not_replace_what_the_run_wrote_meanwhile(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    seed(sink, USERS, [doc("1", n=1)])
    apply(sink, 10, [doc("1", n="one")])
    sources: list[int] = [10, 20]

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        found = table_of(schema, [doc("1", n=sources[0])])
        if len(sources) == 2:
            apply(sink, 11, [doc("1", n=20)])  # while the replay has already read
            sources.pop(0)
        return found

    assert sink.replay(sink.quarantined(), fetch) == 1
    assert content(sink) == {"1": {"n": 20}}


def test_a_document_that_is_still_refused_stays_where_it_is(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    seed(sink, USERS, [])
    apply(sink, 10, [doc("1", n="one")])
    assert sink.replay(sink.quarantined(), lambda schema, keys: table_of(schema, [doc("1", n="uno")])) == 0
    sink.drop_quarantined(sink.quarantined())
    assert sink.quarantined() == []


def test_a_new_seed_forgets_what_was_set_aside_of_its_document(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    seed(sink, USERS, [doc("1", n="one")])
    assert len(sink.quarantined()) == 1
    seed(sink, USERS, [doc("1", n=1)], generation=2)
    assert sink.quarantined() == []


def test_where_very_many_are_refused_the_documents_are_not_the_problem(
    make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_REJECTED", 10)
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    seed(sink, USERS, [])
    with pytest.raises(SinkRejected, match="more than 10 documents"):
        sink.stage("b", 0, [net(USERS, [doc(str(number), n="x") for number in range(11)])])


def test_a_document_that_is_no_document_is_refused_alone(make_sink: MakeSink) -> None:
    sink = make_sink(on_error=config.OnError.QUARANTINE)
    seed(sink, USERS, [])
    long = ("x" * 600, '{"n":1}', ["0:x"], ["x"])
    apply(sink, 10, [doc("1", n=1), long, doc("3", n=3)])
    assert content(sink) == {"1": {"n": 1}, "3": {"n": 3}}
    assert [entry.rejected.key["id"] for entry in sink.quarantined()] == ["x" * 600]


# --- what documents remember


def test_documents_are_found_by_the_rows_that_they_were_built_from(
    users: OpenSearchSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "PAGE", 7)
    monkeypatch.setattr(remembering, "TERMS", 3)
    rows = [doc(f"d{number}", (f"1:{number}", "11:1", "2:all"), n=number) for number in range(20)]
    apply(users, 10, rows, ["1", "2"])
    task = pickle.loads(pickle.dumps(users)).remembered(USERS)

    def by(pages: Iterator[list[list[str]]]) -> list[str]:
        return sorted(key for page in pages for (key,) in page)

    everybody = sorted(f"d{number}" for number in range(20))
    assert by(task.by_rows(pa.array(["1:3", "1:5", "0:d7", "1:99", "1:4"]))) == ["d3", "d4", "d5", "d7"]
    assert by(task.by_rows(pa.array(["2:all"]))) == everybody
    assert by(task.by_rows(pa.array([], pa.string()))) == []
    assert by(task.by_node(0)) == everybody
    assert by(task.by_node(1)) == everybody
    assert by(task.by_node(3)) == []
    assert all("_tailrace" not in document for document in content(users).values())


def test_a_search_that_the_server_has_lost_or_given_up_is_trouble_that_passes(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "PAGE", 7)
    apply(users, 10, [doc(f"d{number}") for number in range(20)])
    pages = users.remembered(USERS).by_node(0)
    assert len(next(pages)) == 7
    opensearch_server.ask("DELETE", "_search/scroll/_all")
    with pytest.raises(SinkUnavailable, match="has lost what was found so far"):
        list(pages)
    remembered, ask = users.remembered(USERS), client.Client.ask
    monkeypatch.setattr(client.Client, "ask", lambda *args, **more: ask(*args, **more) | {"timed_out": True})
    with pytest.raises(SinkUnavailable, match="ended before all was found"):
        list(remembered.by_node(0))


def test_what_is_remembered_is_that_of_the_index_which_is_written_to(users: OpenSearchSink) -> None:
    load(users, USERS, [doc("9", ("1:9",))], generation=2)
    assert list(users.remembered(USERS).by_node(0)) == [[["9"]]]


# --- reading back


def test_what_is_read_back_is_what_was_expected_and_a_difference_shows(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    rows = table_of(USERS, [("1", '{"n": 1, "name": "ä"}', [], []), ("2", '{"name":null,"n":2}', [], [])])
    apply(users, 10, [(row["id"], row["document"], ["0:1"], ["1"]) for row in rows.to_pylist()])
    expected = sorted(users.expected_rows(USERS, rows))
    assert sorted(row for page in users.read_table(USERS) for row in page) == expected
    assert users.count_rows(USERS, 5) == 2
    index = index_of(opensearch_server, opensearch_prefix)
    opensearch_server.ask("POST", f"{index}/_update/1", {"doc": {"n": 3}})
    assert sorted(row for page in users.read_table(USERS) for row in page) != expected


def test_a_decimal_has_all_of_its_digits_in_what_a_search_returns(sink: OpenSearchSink) -> None:
    """A document without its memory is written anew by the server, its numbers as doubles."""
    digits = ["12345678901234567890.0123456789", "-0.1234567890123456", "123456789012345678901234567890", "12.5"]
    texts = writer("decimal", ColumnType(Kind.NUMERIC, "numeric"), "worth")(pa.array(digits)).to_pylist()
    schema = schema_of("worths", {"n": {"type": "double", "fields": {"exact": {"type": "keyword"}}}})
    seed(sink, schema, [(str(place), f'{{"n":{text}}}', [], ["k"]) for place, text in enumerate(texts)])
    found = {int(id_): json.loads(text, parse_float=str)["n"] for rows in sink.read_table(schema) for id_, text in rows}
    assert [str(found[place]) for place in range(len(digits))] == digits


def test_a_count_that_takes_too_long_is_none(make_sink: MakeSink, opensearch_server: OpenSearchServer) -> None:
    with Proxy(opensearch_server.port) as proxy:
        sink = make_sink(url=f"opensearch://127.0.0.1:{proxy.port}")
        seed(sink, USERS, [doc("1")])
        is_late = threading.Event()

        def delay(method: str, path: str) -> None:
            if "_count" in path:
                is_late.wait(20)

        proxy.after = delay
        began = time.monotonic()
        assert sink.count_rows(USERS, 0.2) is None
        assert time.monotonic() - began < 10
        is_late.set()


# --- who we are


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for 127.0.0.1 that signs itself, with its key, in one file."""
    folder = tmp_path_factory.mktemp("certificate")
    made = folder / "made.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem"), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "both.pem").write_text(made.read_text() + (folder / "key.pem").read_text())
    return folder / "both.pem"


def test_a_password_and_a_certificate_are_used_and_asked_for(
    make_sink: MakeSink, opensearch_server: OpenSearchServer, certificate: Path
) -> None:
    with Proxy(opensearch_server.port, login="shop:p@ss:word", certificate=certificate) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        url = f"opensearchs://shop:p%40ss%3Aword@{address}"
        make_sink(url=url, ca_file=str(certificate)).check()
        make_sink(run=None, url=url, verify_certificate=False).check()
        with pytest.raises(SinkRejected, match="not trusted") as error:
            make_sink(run=None, url=url).check()
        assert error.value.hint is not None
        with pytest.raises(SinkRejected, match="does not allow") as refused:
            make_sink(run=None, url=f"opensearchs://shop:wrong@{address}", ca_file=str(certificate)).check()
        with pytest.raises(TailraceError) as plain:
            make_sink(run=None, url=f"opensearch://shop:p%40ss%3Aword@{address}").check()
        for each in (error, refused, plain):
            assert "ss:word" not in str(each.value)


def test_a_status_of_another_version_is_refused_with_what_to_do(
    users: OpenSearchSink, opensearch_server: OpenSearchServer, opensearch_prefix: str
) -> None:
    state = f"{opensearch_prefix}tailrace-shop-search"
    opensearch_server.ask("PUT", f"{state}/_doc/note", {"format": 99})
    with pytest.raises(SinkRejected, match="another version of tailrace") as error:
        users.read_state()
    assert error.value.hint is not None


def test_statuses_of_many_tables_are_kept_apart_from_the_note(sink: OpenSearchSink) -> None:
    tables: list[TableStatus] = [status(schema_of(f"t{number}"), TableState.NEW) for number in range(50)]
    sink.commit(Batch(tables=tuple(tables)), SourceRows(USERS))
    assert sorted(sink.read_state().tables) == sorted(each.table for each in tables)
    again = pickle.loads(pickle.dumps(sink))
    assert again.read_state() == sink.read_state()
