"""What we write for changes of a real PostgreSQL is what Debezium 3.6.3 wrote for the same ones, but for a known list.

Debezium's records are in `tests/support/debezium/recorded`; `record.py` there makes them anew.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from support.capturing import Captured
from support.debezium.record import HERE, statements
from tailrace.codecs.base import Facts
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.log.reader import LogReader
from tailrace.model.changes import Changes
from tailrace.testing.codec_events import events_of, facts_of

pytestmark = pytest.mark.server

SETTINGS = {
    "default": DebeziumSettings("shop", "db"),
    "strings": DebeziumSettings(
        "shop", "db", decimals=Decimals.STRING, binary=Binary.BASE64, intervals=Intervals.STRING
    ),
    "doubles": DebeziumSettings("shop", "db", decimals=Decimals.DOUBLE, binary=Binary.HEX),
}
UNKNOWN = {"iva", "bx", "reg", "p", "lsn", "mr"}
"""Columns of `types` that Debezium leaves out; we have them."""
OTHERWISE = {"nm", "nneg", "mny"}
"""It sends null for a `name` and a wrong scale for numeric(5,-2); our money is as the source prints it."""
MOMENTS = {"ts_ms", "ts_us", "ts_ns", "txId", "lsn", "sequence", "version", "db"}

Records = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def changes(postgres_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Changes]]:
    """All that `changes.sql` does, captured once."""
    url = postgres_server.create_database("test_debezium_envelope")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((HERE / "tables.sql").read_bytes())
        captured = Captured(url, tmp_path_factory.mktemp("captured"))
        with captured.follow():
            for statement in statements():
                connection.execute(statement.encode())
    yield list(_decoded(captured))
    postgres_server.drop_database("test_debezium_envelope")


def _decoded(captured: Captured) -> Iterator[Changes]:
    log = LogReader(captured.storage)
    for piece in log.slices(log.begin(), log.end()):
        name = next(name for name in log.names() if str(name) == piece.name)
        yield from captured.source.decode(log.read(name)[1], piece.first, piece.last)


def recorded(name: str) -> Records:
    """What Debezium wrote after its snapshot, by topic, with every schema in its place."""
    found: Records = defaultdict(list)
    schemas: dict[tuple[str, str], Any] = {}
    for line in (Path(HERE) / "recorded" / f"{name}.jsonl").read_text().splitlines():
        record = json.loads(line)
        for part in ("key", "value"):
            place = (record["topic"], part)
            schemas[place] = record.pop(f"{part}_schema", schemas.get(place))
            if record[part] is not None:
                record[part] = {"schema": schemas[place], "payload": record[part]}
        if record["value"] is None or record["value"]["payload"].get("op") not in ("r", "m"):
            found[record["topic"]].append(record)
    return found


def ours(changes: list[Changes], settings: DebeziumSettings) -> Records:
    codec, found = DebeziumCodec(settings), defaultdict(list)
    for each in changes:
        topic = f"shop.{each.schema.schema}.{each.schema.name}"
        for event in events_of(each, facts_of(each)):
            for key, value, headers in codec.encode(event):
                record = {"key": key and json.loads(key), "value": value and json.loads(value)}
                found[topic].append(record | {"headers": {n: json.loads(v)["payload"] for n, v in headers}})
    return found


def comparable(record: dict[str, Any], topic: str) -> dict[str, Any]:
    """Without what is of its moment, and without the differences that docs/codecs.md lists."""
    if record["value"] is None:
        return {"key": record["key"], "value": None, "headers": record["headers"]}
    schema, payload = record["value"]["schema"], record["value"]["payload"]
    rows = {name: _row(payload[name], topic, payload["op"]) for name in ("before", "after")}
    source = {name: value for name, value in payload["source"].items() if name not in MOMENTS}
    assert payload["ts_us"] // 1000 == payload["ts_ms"]
    value = {"schema": _schema(schema), "op": payload["op"], "source": source, "tx": payload["transaction"]} | rows
    return {"key": record["key"], "value": value, "headers": record["headers"], "fields": list(payload)}


def _row(row: dict[str, Any] | None, topic: str, op: str) -> dict[str, Any] | None:
    if row is None:
        return None
    left_out = UNKNOWN | OTHERWISE if topic.endswith("types") else set()
    if topic.endswith("edges") and row["id"] in (1, 2):
        left_out = {"da"}  # infinite: Debezium's number has overflowed
    if topic.endswith("orders"):  # it fills what a key-only old row lacks, and null where there is a default
        left_out = {"customer", "total", "at", "flag"} if op == "d" else set()
    return {name: value for name, value in row.items() if name not in left_out}


def _schema(schema: Any) -> Any:
    """Without nullability and defaults, which we are not told, and the columns that are left out."""
    if isinstance(schema, list):
        return [_schema(each) for each in schema if not _is_other(each)]
    if isinstance(schema, dict):
        is_row = str(schema.get("name", "")).endswith(".Value")
        fields = [{k: v for k, v in f.items() if k not in ("optional", "default")} for f in schema.get("fields", ())]
        own = {"fields": fields} if is_row else {}
        items = {"items": schema["items"] | {"optional": True}} if "items" in schema else {}
        return {name: _schema(value) for name, value in (schema | own | items).items()}
    return schema


def _is_other(field: Any) -> bool:
    if not isinstance(field, dict) or field.get("field") not in UNKNOWN | {"nneg", "mny"}:
        return False
    return field["field"] != "lsn" or field["type"] == "string"  # the source has one, too


@pytest.mark.parametrize("name", SETTINGS)
def test_every_record_is_what_debezium_writes(name: str, changes: list[Changes]) -> None:
    expected, found = recorded(name), ours(changes, SETTINGS[name])
    assert expected.keys() <= found.keys()
    for topic, records in expected.items():
        theirs = [comparable(record, topic) for record in records]
        assert [comparable(record, topic) for record in found[topic]] == theirs, topic


def test_the_order_within_a_transaction_is_debeziums(changes: list[Changes]) -> None:
    """But for a changed key, whose delete and create are two there and one here."""
    codec, found = DebeziumCodec(DebeziumSettings("shop", "db", transactions=True)), {}
    for each, facts in counted(changes):
        for event in events_of(each, facts):
            for record in codec.encode(event):
                if record.value is not None and not record.headers:
                    told = json.loads(record.value)["payload"]
                    found[_place(told)] = (
                        told["transaction"]["total_order"],
                        told["transaction"]["data_collection_order"],
                    )
    expected = {}
    for topic, records in recorded("transactions").items():
        for record in records if topic != "shop.transaction" else ():
            if record["value"] is not None and not record["headers"]:
                told = record["value"]["payload"]
                order = told["transaction"]
                expected[_place(told)] = order["total_order"], order["data_collection_order"]
    assert len(expected) > 20
    assert {place: found[place] for place in expected} == expected


def _place(told: dict[str, Any]) -> str:
    """A change by its table, operation and row."""
    row = told["after"] or told["before"] or {}
    return json.dumps([told["source"]["table"], told["op"], row.get("id"), row.get("a"), row.get("v"), row.get("note")])


def counted(changes: list[Changes]) -> Iterator[tuple[Changes, Facts]]:
    """With the numbers of each change among all of its transaction, and among those of its table."""
    places = sorted(
        (int(offset), each.schema.table, facts_of(each).ids[int(of)])
        for each in changes
        for offset, of in zip(each.offset, each.transaction, strict=True)
    )
    numbers: dict[tuple[int, str], tuple[int, int]] = {}
    count: Counter[tuple[str, ...]] = Counter()
    for offset, table, xid in places:
        count.update([(xid,), (xid, table)])
        numbers[offset, table] = count[xid,], count[xid, table]
    for each in changes:
        own = np.array([numbers[int(offset), each.schema.table] for offset in each.offset])
        facts = facts_of(each)
        yield each, Facts(facts.ids, facts.positions, own[:, 0], own[:, 1])
