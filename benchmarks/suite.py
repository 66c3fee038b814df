"""What is measured: who races whom on the same work, and which figures come of it."""

import contextlib
import functools
import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psycopg

from benchmarks import (
    copying,
    debezium,
    documents,
    embedding,
    kafka,
    latency,
    loading,
    memory,
    ours,
    starting,
    streaming,
    transforming,
)
from benchmarks import mysql_copying as my_copying
from benchmarks import mysql_debezium as my_debezium
from benchmarks import mysql_source as my
from benchmarks.backlog import (
    FINGERPRINT,
    NEW_ROW,
    PUBLICATION,
    SETTINGS,
    TABLE,
    Backlog,
    make_backlog,
    make_published_table,
)
from benchmarks.race import Contender, Heat, attempt, in_own_process, race, surroundings
from benchmarks.report import Result, result
from support.kafka import KafkaCluster
from support.mysql import MariaDbServer, MySqlServer
from support.mysql_sources import LoggingMySql
from support.opensearch import OpenSearchServer
from tailrace.testing.postgres import PostgresServer

Pairs = Mapping[str, tuple[str, str]]  # a ratio's name: our contender, and the one it is compared with

STREAM_RACES: Sequence[Pairs] = [
    {"capture_vs_pg_recvlogical": ("capture", "pg_recvlogical")},
    {
        "sqlite_vs_debezium": ("sqlite", "debezium"),
        "postgres_vs_debezium": ("postgres", "debezium"),
        "postgres_vs_null": ("postgres", "null"),
    },
]
EMBEDDED_RACES: Sequence[Pairs] = [
    {
        "embedded_arrow_vs_capture": ("arrow", "capture"),
        "embedded_arrow_vs_psycopg": ("arrow", "psycopg"),
        "embedded_events_vs_debezium": ("events", "debezium"),
    },
]
KAFKA_RACE: Pairs = {
    "kafka_vs_debezium": ("kafka", "debezium"),
    "kafka_vs_producer": ("kafka", "producer"),
    "kafka_commit_vs_producer": ("commit", "producer"),
}
LATENCIES = {"latency_p50_seconds": 50, "latency_p95_seconds": 95, "latency_p99_seconds": 99}
KAFKA_LATENCIES = {"kafka_latency_p50_seconds": 50, "kafka_latency_p99_seconds": 99}
MYSQL_RACES: Sequence[Pairs] = [
    {"mysql_capture_vs_mysqlbinlog": ("capture", "mysqlbinlog")},
    {"mysql_sqlite_vs_debezium": ("sqlite", "debezium")},
]
MARIADB_RACE: Pairs = {"mariadb_sqlite_vs_debezium": ("sqlite", "debezium")}
BINLOG_DECODES = frozenset({"binlog_decode_changes_per_second", "binlog_decode_one_row_events_per_second"})
MYSQL_SNAPSHOT_RACE: Pairs = {
    "mysql_snapshot_vs_debezium": ("null", "debezium"),
    "mysql_snapshot_vs_client": ("null", "mysql_quick"),
    "mysql_snapshot_vs_mysqldump": ("null", "mysqldump"),
}
SNAPSHOT_RACES: Sequence[Pairs] = [
    {"snapshot_vs_copy": ("null", "copy"), "snapshot_vs_binary_copy": ("null", "binary_copy")},
    {"snapshot_sqlite_vs_executemany": ("sqlite", "executemany")},
    {
        "snapshot_postgres_vs_psql_copy": ("postgres", "psql_copy"),
        "snapshot_postgres_vs_subscription": ("postgres", "subscription"),
    },
]


_numbers = itertools.count(1)
SEEDS = frozenset({"documents_seed_per_second", "documents_seed_vs_bulk"})
DOCUMENT_CHANGES = frozenset({"documents_change_per_second", "documents_latency_p50_seconds"})


class Run(msgspec.Struct, frozen=True):
    """What was asked for."""

    wanted: frozenset[str]
    scale: float
    repeat: int
    say: Callable[[str], None]

    def rows(self, full: int) -> int:
        return max(1, round(full * self.scale))

    def details(self, **more: object) -> dict[str, object]:
        taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {**more, "scale": self.scale, "taken": taken, **surroundings()}


def stream(run: Run) -> list[Result]:
    """The backlog: captured only, and all the way into a sink."""
    with PostgresServer.start(settings=SETTINGS) as source, PostgresServer.start(settings=SETTINGS) as target:
        backlog = make_backlog(source, run.scale, prepare=ours.prepare_streams)
        contenders: dict[str, Contender] = {
            "pg_recvlogical": lambda: streaming.pg_recvlogical(backlog),
            "capture": lambda: _capture(backlog),
            "debezium": lambda: debezium.count_backlog(backlog),
            "sqlite": lambda: _stream_to_sqlite(backlog),
            "null": lambda: _stream_to_null(backlog),
            "postgres": lambda: _stream_to_postgres(backlog, target),
        }
        return [each for pairs in STREAM_RACES for each in _compare(run, pairs, contenders, backlog.changes)]


def embedded(run: Run) -> list[Result]:
    """The backlog, consumed inside of a Python program: as record batches, and as events."""
    with PostgresServer.start(settings=SETTINGS) as source:
        backlog = make_backlog(source, run.scale, prepare=ours.prepare_streams)
        contenders: dict[str, Contender] = {
            "capture": lambda: _capture(backlog),
            "arrow": lambda: embedding.arrow(backlog),
            "events": lambda: embedding.events(backlog),
            "psycopg": lambda: embedding.psycopg_loop(backlog),
            "debezium": lambda: debezium.read_backlog(backlog),
        }
        results = [each for pairs in EMBEDDED_RACES for each in _compare(run, pairs, contenders, backlog.changes)]
        rates = {"embedded_arrow_changes_per_second": "arrow", "embedded_events_per_second": "events"}
        wanted = {name: contenders[who] for name, who in rates.items() if name in run.wanted}
        for name, heat in race(wanted, run.repeat, run.say).items() if wanted else ():
            rate = None if heat.best is None else backlog.changes / heat.best
            results.append(result(name, rate, run.details(tailrace=heat.describe(backlog.changes))))
        return results


def topics(run: Run) -> list[Result]:
    """The backlog into Kafka, and the latency of what is committed there; one broker for all."""
    with KafkaCluster.start(options=()) as broker, _folder() as folder:
        results = _to_topics(run, broker, folder) if not run.wanted.isdisjoint(KAFKA_RACE) else []
        return results + (_topic_latencies(run, broker) if not run.wanted.isdisjoint(KAFKA_LATENCIES) else [])


def _to_topics(run: Run, broker: KafkaCluster, folder: Path) -> list[Result]:
    recorded = folder / "messages"  # as we write them, for those who only send
    with PostgresServer.start(settings=SETTINGS) as source:
        backlog = make_backlog(source, run.scale, prepare=ours.prepare_streams)
        contenders: dict[str, Contender] = {
            "kafka": lambda: _stream_to_kafka(backlog, broker, recorded),
            "debezium": lambda: _debezium_to_kafka(backlog, broker),
            "producer": lambda: _bare_producer(broker, recorded),
            "commit": lambda: _commit_to_kafka(broker, recorded),
        }
        run.say("messages to be sent again")
        _stream_to_kafka(backlog, broker, recorded)
        return _compare(run, KAFKA_RACE, contenders, backlog.changes)


def _topic_latencies(run: Run, broker: KafkaCluster) -> list[Result]:
    run.say("latency of topics")
    with PostgresServer.start() as server, _folder() as folder:
        latency.make_ticks(server.url)
        found, problem = attempt(lambda: _latencies_of_topic(run, server.url, broker, folder))
    return _percentiles(run, KAFKA_LATENCIES, found, problem)


def snapshot(run: Run) -> list[Result]:
    """The 2 million rows: read only, and copied into a sink."""
    rows = run.rows(2_000_000)
    with PostgresServer.start(settings=SETTINGS) as source, PostgresServer.start(settings=SETTINGS) as target:
        copying.make_rows(source, rows)
        contenders: dict[str, Contender] = {
            "copy": lambda: copying.copy_out(source),
            "binary_copy": lambda: copying.copy_out(source, binary=True),
            "null": lambda: ours.snapshot_to_null(source.url, TABLE, copying.CONNECTIONS),
            "executemany": lambda: copying.executemany(source),
            "sqlite": lambda: _snapshot_to_sqlite(source),
            "psql_copy": lambda: copying.copy_across(source, target),
            "subscription": lambda: copying.subscribe(source, target),
            "postgres": lambda: _snapshot_to_postgres(source, target),
        }
        return [each for pairs in SNAPSHOT_RACES for each in _compare(run, pairs, contenders, rows)]


def searching(run: Run) -> list[Result]:
    """20,000 documents of 44 rows each: all of them built, and kept right when rows change that are three hops away."""
    users = run.rows(20_000)
    with (
        PostgresServer.start(settings=SETTINGS) as source,
        OpenSearchServer.start(options=()) as search,
        _folder() as folder,
    ):
        documents.make_shop(source, users)
        results = _seeds(run, source, search, folder, users) if run.wanted & SEEDS else []
        if run.wanted & DOCUMENT_CHANGES:
            run.say("changes of documents")
            with documents.live(source.url, search, folder, "live-"):
                results += _document_changes(run, source, search, users)
        return results


def _seeds(run: Run, source: PostgresServer, search: OpenSearchServer, folder: Path, users: int) -> list[Result]:
    def seed() -> float:
        documents.forget(search, "seed-")
        return documents.seed(source.url, search, folder, "seed-")

    run.say("documents to be compared with")
    seed()
    plain = documents.recorded(search, "seed-")
    heats = race({"seed": seed, "bulk": lambda: documents.plain_bulk(search, plain)}, run.repeat, run.say)
    documents.forget(search, "seed-")
    details = run.details(**_describe(heats, "seed", "bulk", users))
    mine = heats["seed"].best
    return [
        result("documents_seed_per_second", None if mine is None else users / mine, details),
        result("documents_seed_vs_bulk", _ratio(heats["seed"], heats["bulk"]), details),
    ]


def _document_changes(run: Run, source: PostgresServer, search: OpenSearchServer, users: int) -> list[Result]:
    changes = users * 2
    seconds, problem = attempt(lambda: documents.change_all(source.url, search, "live-", users, changes))
    rate = None if seconds is None else changes / seconds
    details = run.details(tailrace={"problem": problem} if seconds is None else {"seconds": seconds}, changes=changes)
    run.say("latency of documents")
    length = 30 * run.scale
    found, trouble = attempt(lambda: documents.latency(source.url, search, "live-", users, seconds=length))
    waits = {"problem": trouble} if found is None else {"p95_seconds": round(found.percentile(95), 3)}
    return [
        result("documents_change_per_second", rate, details),
        result("documents_latency_p50_seconds", None if found is None else found.percentile(50), run.details(**waits)),
    ]


def decode(run: Run) -> list[Result]:
    """The backlog's messages into typed columns, on one core."""
    with PostgresServer.start(settings=SETTINGS) as server:
        backlog = make_backlog(server, run.scale)
        messages = streaming.record_messages(backlog)
    heat = race({"tailrace": lambda: in_own_process(_decode_on_one_core, messages)}, run.repeat, run.say)["tailrace"]
    rate = None if heat.best is None else backlog.changes / heat.best
    return [result("decode_changes_per_second", rate, run.details(tailrace=heat.describe(backlog.changes)))]


def mysql_source(run: Run) -> list[Result]:
    """MySQL's backlog: captured, all the way into a sink, and decoded on one core."""
    with my.make_mysql() as server:
        backlog = my.Backlog(server, run.scale)
        contenders = _binlog_contenders(backlog)
        results = [each for pairs in MYSQL_RACES for each in _compare(run, pairs, contenders, backlog.changes)]
        return results + (_binlog_decodes(run, backlog) if run.wanted & BINLOG_DECODES else [])


def mariadb_source(run: Run) -> list[Result]:
    """MariaDB's backlog, all the way into a sink."""
    with my.make_mariadb() as server:
        backlog = my.Backlog(server, run.scale)
        return _compare(run, MARIADB_RACE, _binlog_contenders(backlog), backlog.changes)


def _binlog_contenders(backlog: my.Backlog) -> dict[str, Contender]:
    return {
        "mysqlbinlog": lambda: _mysqlbinlog(backlog),
        "capture": lambda: _from_mysql(backlog),
        "debezium": lambda: my_debezium.stream(backlog.server, my.TABLE, backlog.changes),
        "sqlite": lambda: _binlog_to_sqlite(backlog),
    }


def _binlog_decodes(run: Run, backlog: my.Backlog) -> list[Result]:
    frames = my.record(backlog, backlog.start, backlog.end)
    single = my.record(backlog, backlog.end, backlog.go_on_one_by_one())
    results = []
    for name, each in zip(sorted(BINLOG_DECODES), (frames, single), strict=True):
        rates = [in_own_process(my.decode_on_one_core, each) for _ in range(run.repeat)]
        results.append(result(name, max(rates), run.details(changes_per_second=rates)))
    return results


def mysql_snapshot(run: Run) -> list[Result]:
    """The 2 million rows, read from MySQL."""
    rows = run.rows(2_000_000)
    with my.make_mysql() as server:
        my_copying.make_rows(server, rows)
        contenders: dict[str, Contender] = {
            "mysql_quick": lambda: my_copying.mysql_quick(server, rows),
            "mysqldump": lambda: my_copying.mysqldump(server, rows),
            "debezium": lambda: my_debezium.copy(server, my.TABLE, rows),
            "null": lambda: _snapshot_of_mysql(server),
        }
        return _compare(run, MYSQL_SNAPSHOT_RACE, contenders, rows)


def commit_to_readable(run: Run) -> list[Result]:
    """Latency at 500 changes a second, for 30 seconds after a warm-up."""
    run.say("latency")
    with PostgresServer.start() as server, tempfile.TemporaryDirectory() as folder:
        latency.make_ticks(server.url)
        measured, problem = attempt(lambda: _latencies(run, server.url, Path(folder)))
    return _percentiles(run, LATENCIES, measured, problem)


def _percentiles(
    run: Run, names: Mapping[str, int], measured: latency.Latencies | None, problem: str | None
) -> list[Result]:
    if measured is None:
        details = run.details(tailrace={"problem": problem})
        return [result(name, None, details) for name in names]
    details = run.details(
        changes=len(measured.seconds),
        changes_per_second=round(measured.rate, 1),
        max_seconds=round(max(measured.seconds), 3),
        slowest_commit_seconds=round(measured.slowest_commit, 3),
    )
    return [result(name, measured.percentile(percent), details) for name, percent in names.items()]


def starts(run: Run) -> list[Result]:
    """From `tailrace run` to the first row, and from `kill -9` to current again: the median of some turns."""
    run.say("starting")
    with PostgresServer.start() as server, tempfile.TemporaryDirectory() as folder:
        measured, problem = attempt(lambda: starting.measure(server.url, Path(folder), 2 * run.repeat))
    if measured is None:
        details = run.details(tailrace={"problem": problem})
        return [result(name, None, details) for name in ("start_seconds", "restart_seconds")]
    turns = {"start_seconds": measured.start, "restart_seconds": measured.restart}
    return [
        result(name, statistics.median(seconds), run.details(seconds=[round(each, 2) for each in seconds]))
        for name, seconds in turns.items()
    ]


def transforms(run: Run) -> list[Result]:
    """The changes of four tables, staged by the direct way and through Catalyst; the details have its variants."""
    with (
        PostgresServer.start(settings=SETTINGS) as server,
        transforming.captured_log(server, run.rows(500_000)) as staging,
    ):
        contenders: dict[str, Contender] = {
            "direct": staging.direct,
            "transforms": staging.through_catalyst,
            "every_column": staging.with_every_column,
            "job_a_table": staging.a_job_a_table,
            "rdds": staging.through_rdds,
        }
        heats = race(contenders, run.repeat, run.say)
        ratio = _ratio(heats["transforms"], heats["direct"])
        described = {name: heat.describe(staging.changes) for name, heat in heats.items()}
        return [result("transforms_vs_direct", ratio, run.details(**described, work=staging.changes))]


def large_transaction(run: Run) -> list[Result]:
    """The memory of the capture process through one transaction of 2 million rows."""
    run.say("memory")
    rows = run.rows(2_000_000)
    with PostgresServer.start(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as folder:
        peak, problem = attempt(lambda: _capture_peak(server, rows, Path(folder)))
    if peak is None:
        return [result("capture_peak_megabytes", None, run.details(tailrace={"problem": problem}))]
    return [result("capture_peak_megabytes", peak.megabytes, run.details(rows=rows, samples=peak.samples))]


def bulk_load(run: Run) -> list[Result]:
    """The 2 million rows, copied into MySQL and MariaDB."""
    rows = run.rows(2_000_000)
    with PostgresServer.start(settings=SETTINGS) as source:
        copying.make_rows(source, rows)
        families: dict[str, type[MySqlServer | MariaDbServer]] = {
            "mysql_vs_bulk_load": MySqlServer,
            "mariadb_vs_bulk_load": MariaDbServer,
        }
        wanted = {name: kind for name, kind in families.items() if name in run.wanted}
        return [each for name, kind in wanted.items() for each in _bulk(run, name, kind, source, rows)]


def _bulk(
    run: Run, name: str, kind: type[MySqlServer | MariaDbServer], source: PostgresServer, rows: int
) -> list[Result]:
    with kind.start(settings=loading.SETTINGS) as target:
        contenders: dict[str, Contender] = {
            "snapshot": lambda: _snapshot_to_mysql(source, target),
            "bulk_load": lambda: _plain_bulk_load(source, target),
        }
        return _compare(run, {name: ("snapshot", "bulk_load")}, contenders, rows)


GROUPS: dict[Callable[[Run], list[Result]], Sequence[str]] = {
    stream: [name for pairs in STREAM_RACES for name in pairs],
    embedded: [
        *(name for pairs in EMBEDDED_RACES for name in pairs),
        "embedded_arrow_changes_per_second",
        "embedded_events_per_second",
    ],
    decode: ["decode_changes_per_second"],
    snapshot: [name for pairs in SNAPSHOT_RACES for name in pairs],
    commit_to_readable: list(LATENCIES),
    topics: [*KAFKA_RACE, *KAFKA_LATENCIES],
    starts: ["start_seconds", "restart_seconds"],
    transforms: ["transforms_vs_direct"],
    large_transaction: ["capture_peak_megabytes"],
    mysql_source: [*(name for pairs in MYSQL_RACES for name in pairs), *BINLOG_DECODES],
    mariadb_source: list(MARIADB_RACE),
    mysql_snapshot: list(MYSQL_SNAPSHOT_RACE),
    bulk_load: ["mysql_vs_bulk_load", "mariadb_vs_bulk_load"],
    searching: [
        "documents_seed_per_second",
        "documents_seed_vs_bulk",
        "documents_change_per_second",
        "documents_latency_p50_seconds",
    ],
}


def measure(run: Run) -> list[Result]:
    """All groups that have something wanted. A group that can not be set up is a problem of its figures only."""
    results: list[Result] = []
    for group, names in GROUPS.items():
        if not run.wanted.isdisjoint(names):
            found, problem = attempt(functools.partial(group, run))
            details = run.details(set_up={"problem": problem})
            results += [result(name, None, details) for name in names] if found is None else found
    return [each for each in results if each.name in run.wanted]


def _compare(run: Run, pairs: Pairs, contenders: Mapping[str, Contender], work: int) -> list[Result]:
    """Race those whom a wanted ratio needs; a ratio is of the best turns, the peer's seconds by ours."""
    wanted = {name: pair for name, pair in pairs.items() if name in run.wanted}
    needed = {contender for pair in wanted.values() for contender in pair}
    heats = race({name: entry for name, entry in contenders.items() if name in needed}, run.repeat, run.say)
    return [
        result(name, _ratio(heats[mine], heats[peer]), run.details(**_describe(heats, mine, peer, work)))
        for name, (mine, peer) in wanted.items()
    ]


def _ratio(mine: Heat, peer: Heat) -> float | None:
    return None if mine.best is None or peer.best is None else peer.best / mine.best


def _describe(heats: Mapping[str, Heat], mine: str, peer: str, work: int) -> dict[str, object]:
    return {f"tailrace_{mine}": heats[mine].describe(work), peer: heats[peer].describe(work), "work": work}


def _capture(backlog: Backlog) -> float:
    with backlog.fresh_slot() as slot, _folder() as folder:
        return ours.capture(backlog, slot, folder)


def _mysqlbinlog(backlog: my.Backlog) -> float:
    with _folder() as folder:
        return my.mysqlbinlog(backlog, folder)


def _from_mysql(backlog: my.Backlog) -> float:
    with _folder() as folder:
        return my.capture(backlog, folder)


def _binlog_to_sqlite(backlog: my.Backlog) -> float:
    with _folder() as folder:
        seconds = my.stream_to_sqlite(backlog, folder, folder / "replica.db")
        _require(_sqlite_fingerprint(folder / "replica.db", my.REPLICA), backlog.fingerprint)
        return seconds


def _snapshot_of_mysql(server: LoggingMySql) -> float:
    with _folder() as folder:
        return my_copying.snapshot_to_null(server, folder)


def _stream_to_null(backlog: Backlog) -> float:
    with backlog.fresh_slot() as slot, _folder() as folder:
        return ours.stream_to_null(backlog, slot, folder)


def _stream_to_sqlite(backlog: Backlog) -> float:
    with backlog.fresh_slot() as slot, _folder() as folder:
        seconds = ours.stream_to_sqlite(backlog, slot, folder, folder / "replica.db")
        _require(_sqlite_fingerprint(folder / "replica.db"), backlog.fingerprint)
        return seconds


def _stream_to_postgres(backlog: Backlog, target: PostgresServer) -> float:
    with backlog.fresh_slot() as slot, _folder() as folder, _database(target) as url:
        seconds = ours.stream_to_postgres(backlog, slot, folder, url)
        _require(_postgres_fingerprint(url), backlog.fingerprint)
        return seconds


def _stream_to_kafka(backlog: Backlog, broker: KafkaCluster, recorded: Path) -> float:
    prefix = f"tailrace-{next(_numbers)}"
    topic = f"{prefix}.public.{TABLE}"
    with backlog.fresh_slot() as slot, _folder() as folder:
        seconds = ours.stream_to_kafka(backlog, slot, folder, broker.url, prefix)
    _require(kafka.fingerprint(broker.servers, topic, backlog), backlog.fingerprint)
    if not recorded.exists():
        kafka.record(broker.servers, topic, recorded)
    kafka.delete_topic(broker.servers, topic)
    return seconds


def _debezium_to_kafka(backlog: Backlog, broker: KafkaCluster) -> float:
    topic = f"debezium-{next(_numbers)}"
    seconds = kafka.debezium(backlog, broker.servers, topic)
    _require(kafka.fingerprint(broker.servers, topic, backlog), backlog.fingerprint)
    kafka.delete_topic(broker.servers, topic)
    return seconds


def _commit_to_kafka(broker: KafkaCluster, recorded: Path) -> float:
    topic = f"commit-{next(_numbers)}"
    with _folder() as folder:
        seconds = in_own_process(kafka.commit, broker.url, topic, recorded, folder)
    kafka.delete_topic(broker.servers, topic)
    return seconds


def _bare_producer(broker: KafkaCluster, recorded: Path) -> float:
    topic = f"bare-{next(_numbers)}"
    seconds = in_own_process(kafka.producer, broker.servers, topic, recorded)
    kafka.delete_topic(broker.servers, topic)
    return seconds


def _snapshot_to_sqlite(source: PostgresServer) -> float:
    with _folder() as folder:
        replica = folder / "replica.db"
        seconds = ours.snapshot_to_sqlite(source.url, TABLE, copying.CONNECTIONS, folder, replica)
        _require(_sqlite_fingerprint(replica), _postgres_fingerprint(source.url))
        return seconds


def _snapshot_to_postgres(source: PostgresServer, target: PostgresServer) -> float:
    with _folder() as folder, _database(target) as url:
        seconds = ours.snapshot_to(source.url, TABLE, copying.CONNECTIONS, folder, url)
        _require(_postgres_fingerprint(url), _postgres_fingerprint(source.url))
        return seconds


def _snapshot_to_mysql(source: PostgresServer, target: MySqlServer | MariaDbServer) -> float:
    with _folder() as folder, _mysql_database(target) as name:
        url = target.url_of(name)
        seconds = ours.snapshot_to(source.url, TABLE, copying.CONNECTIONS, folder, url)
        _require(loading.fingerprint(url), _postgres_fingerprint(source.url))
        return seconds


def _plain_bulk_load(source: PostgresServer, target: MySqlServer | MariaDbServer) -> float:
    with _mysql_database(target) as name:
        seconds = loading.bulk_load(source, target, name)
        _require(loading.fingerprint(target.url_of(name)), _postgres_fingerprint(source.url))
        return seconds


def _decode_on_one_core(messages: Sequence[bytes]) -> float:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # for this process only, which is about to end
    return ours.decode(messages)


def _latencies(run: Run, url: str, folder: Path) -> latency.Latencies:
    replica = folder / "replica.db"
    watch = functools.partial(latency.watch_replica, replica)
    with ours.live_pipeline(url, latency.TABLE, folder, f"sqlite:///{replica}"):
        return latency.measure(url, watch, seconds=30 * run.scale, warm_up=10 * run.scale)


def _latencies_of_topic(run: Run, url: str, broker: KafkaCluster, folder: Path) -> latency.Latencies:
    watch = functools.partial(kafka.watch, broker.servers, f"latency.public.{latency.TABLE}")
    with ours.live_pipeline(url, latency.TABLE, folder, broker.url, prefix="latency"):
        return latency.measure(url, watch, seconds=30 * run.scale, warm_up=10 * run.scale)


def _capture_peak(server: PostgresServer, rows: int, folder: Path) -> memory.Peak:
    with psycopg.connect(server.url, autocommit=True) as connection:
        make_published_table(connection)
        with (
            ours.capture_process(server.url, PUBLICATION, "backlog", folder) as (pid, wait_until_current),
            memory.peak_of(pid) as peak,
        ):
            connection.execute(f"INSERT INTO {TABLE} SELECT {NEW_ROW} FROM generate_series(1, %s::bigint) i", [rows])
            wait_until_current()
    return peak


def _require(found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise RuntimeError(f"the sink's content {found} is not the source's {wanted} (count, sum of id, sum of n)")


def _sqlite_fingerprint(replica: Path, table: str = TABLE) -> tuple[int, ...]:
    with contextlib.closing(sqlite3.connect(replica)) as connection:
        return tuple(map(int, connection.execute(FINGERPRINT.replace(TABLE, table)).fetchone()))


def _postgres_fingerprint(url: str) -> tuple[int, ...]:
    with psycopg.connect(url) as connection:
        return tuple(map(int, connection.execute(FINGERPRINT).fetchall()[0]))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _mysql_database(server: MySqlServer | MariaDbServer) -> Iterator[str]:
    try:
        server.create_database("replica")
        yield "replica"
    finally:
        server.drop_database("replica")


@contextlib.contextmanager
def _database(server: PostgresServer) -> Iterator[str]:
    try:
        yield server.create_database("replica")
    finally:
        server.drop_database("replica")
