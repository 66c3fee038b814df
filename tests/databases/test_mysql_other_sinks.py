"""A MySQL database as messages in Kafka, as documents in OpenSearch, and in a program of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tailrace
from support.kafka import KafkaCluster
from support.kafka_reading import Message, read
from support.mysql_sources import Logging
from support.opensearch import OpenSearchServer
from support.pipelines import run_until_current, write_pipeline
from tailrace.checkpoints.memory import MemoryStore
from tailrace.sources.mysql.connection import connect, database_of, rows

pytestmark = [pytest.mark.spark, pytest.mark.server]

TABLES = (
    "CREATE TABLE users (id bigint PRIMARY KEY, name varchar(40) COLLATE utf8mb4_general_ci, level enum('low','high'))",
    "CREATE TABLE orders (id int unsigned PRIMARY KEY, user_id bigint, total decimal(12,2), KEY (user_id))",
    "INSERT INTO users VALUES (1, 'Ada 😀', 'low'), (2, 'Bob', NULL)",
    "INSERT INTO orders VALUES (10, 1, 1.50), (11, 1, 2.25), (12, 2, 99)",
)
CHANGES = (
    "UPDATE users SET level = 'high', name = 'ada' WHERE id = 1",
    "INSERT INTO orders VALUES (13, 2, 0.01)",
    "DELETE FROM orders WHERE id = 10",
    "UPDATE orders SET user_id = 2 WHERE id = 11",
)
USERS = {1: ("ada", "high", []), 2: ("Bob", None, [(11, 2.25), (12, 99.0), (13, 0.01)])}


def run(url: str, *statements: str) -> None:
    with connect(url) as connection:
        for statement in statements:
            rows(connection, statement)


@pytest.mark.parametrize("logging", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)], indirect=True)
def test_messages_and_documents_of_a_mysql_database_have_its_content(
    logging: Logging,
    logged_url: str,
    kafka_broker: KafkaCluster,
    kafka_prefix: str,
    opensearch_server: OpenSearchServer,
    opensearch_prefix: str,
    tmp_path: Path,
) -> None:
    run(logged_url, *TABLES)
    database = database_of(logged_url)
    sinks: dict[str, Any] = {
        "topics": {"url": kafka_broker.url, "prefix": kafka_prefix},
        "search": {"url": opensearch_server.url, "prefix": opensearch_prefix},
    }
    orders = {"type": "has_many", "table": f"{database}.orders", "foreign_key": "user_id"}
    described = {
        "users": {
            "table": f"{database}.users",
            "fields": {
                "id": "long",
                "name": "text",
                "level": "keyword",
                "orders": {
                    **orders,
                    "order_by": {"column": "id", "direction": "asc"},
                    "fields": {"id": "long", "total": "double"},
                },
            },
        }
    }
    file = write_pipeline(tmp_path, logged_url, sinks, documents=described)
    run_until_current(file)
    run(logged_url, *CHANGES)
    run_until_current(file)
    opensearch_server.ask("POST", f"{opensearch_prefix}users/_refresh")
    hits = opensearch_server.ask("GET", f"{opensearch_prefix}users/_search?size=100")["hits"]["hits"]
    found = {hit["_source"]["id"]: hit["_source"] for hit in hits}
    assert {
        id_: (user["name"], user["level"], [(each["id"], each["total"]) for each in user["orders"]])
        for id_, user in found.items()
    } == USERS
    topics = [f"{kafka_prefix}.{database}.{name}" for name in ("users", "orders")]
    messages = read(kafka_broker.servers, topics)
    users, orders_left = last_of(messages, "users"), last_of(messages, "orders")
    assert {id_: (user["name"], user["level"]) for id_, user in users.items()} == {1: ("ada", "high"), 2: ("Bob", None)}
    assert {id_: order["user_id"] for id_, order in orders_left.items() if order} == {11: 2, 12: 2, 13: 2}
    for message in messages:
        if message.value is not None:
            check_source(payload(message.value)["source"], database, logging)


def payload(value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = value.get("payload", value)
    return found


def last_of(messages: list[Message], table: str) -> dict[int, Any]:
    """What the last message of each key left of a row."""
    found: dict[int, Any] = {}
    for message in messages:
        if message.topic.endswith(f".{table}") and message.value is not None:
            found[payload(message.key)["id"]] = payload(message.value)["after"]
    return found


def check_source(source: dict[str, Any], database: str, logging: Logging) -> None:
    """As Debezium's connector for MySQL names it."""
    assert source["connector"] == logging.flavor.scheme
    assert source["db"] == database
    assert {"server_id", "gtid", "file", "pos", "row", "thread", "query", "sequence", "ts_ms"} <= source.keys()
    assert source["gtid"]


def test_a_program_of_ones_own_has_the_content_of_a_database(logged_url: str) -> None:
    run(logged_url, *TABLES)
    found: dict[tuple[str, int], Any] = {}
    with tailrace.capture(logged_url, f"{database_of(logged_url)}.*", checkpoint=MemoryStore()) as stream:
        wanted = 5
        changed = False
        for batch in stream:
            for event in batch.events():
                assert event.key is not None
                found[event.table.rpartition(".")[2], event.key["id"]] = event.after
            batch.ack()
            if len(found) >= wanted and not changed:
                run(logged_url, *CHANGES)
                changed, wanted = True, 6
            if changed and (found.get(("orders", 11)) or {}).get("user_id") == 2:
                break
    assert found["users", 1] == {"id": 1, "name": "ada", "level": "high"}
    assert found["users", 2] == {"id": 2, "name": "Bob", "level": None}
    assert found["orders", 10] is None
    assert {key for table, key in found if table == "orders"} == {10, 11, 12, 13}
