"""One document among many that can not be built, from the first copy to its return: a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.opensearch import OpenSearchServer
from support.pipelines import run_until_current, states, tailrace, write_pipeline
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.long]

FIELDS = {"price": "decimal", "parts": {"type": "sum", "table": "parts", "foreign_key": "thing_id", "column": "cost"}}


def found(server: OpenSearchServer, alias: str) -> dict[str, Any]:
    server.ask("POST", f"{alias}/_refresh")
    return {hit["_id"]: hit["_source"] for hit in server.ask("GET", f"{alias}/_search?size=100")["hits"]["hits"]}


def test_a_document_that_can_not_be_built_is_set_aside_alone_and_comes_back(
    postgres_url: str, opensearch_server: OpenSearchServer, opensearch_prefix: str, tmp_path: Path
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE things (id int PRIMARY KEY, price numeric)",
        "CREATE TABLE parts (id int PRIMARY KEY, thing_id int, cost numeric)",
        "INSERT INTO things VALUES (1, 1), (2, 'NaN'), (3, 3)",
    )
    sink = {"url": opensearch_server.url, "prefix": opensearch_prefix, "flat": [], "on_error": "quarantine"}
    documents = {"things": {"table": "things", "fields": FIELDS}}
    file = write_pipeline(tmp_path, postgres_url, {"search": sink}, documents=documents)
    alias = f"{opensearch_prefix}things"

    run_until_current(file)
    assert states(file) == {("search", "document.things"): ("live", "")}
    assert found(opensearch_server, alias) == {"1": {"price": 1, "parts": None}, "3": {"price": 3, "parts": None}}

    execute(
        postgres_url,
        "INSERT INTO parts VALUES (1, 1, 'NaN'), (2, 3, 5)",
        "UPDATE things SET price = 10 WHERE id = 1",
        "UPDATE things SET price = 2 WHERE id = 2",
    )
    run_until_current(file)
    listed = [json.loads(line) for line in tailrace("quarantine", "list", file, "--json").stdout.splitlines()]
    assert any("1" in str(entry["key"]) for entry in listed)
    assert all("NaN" in entry["reason"] and "public." in entry["reason"] for entry in listed)
    assert found(opensearch_server, alias) == {
        "1": {"price": 1, "parts": None},
        "2": {"price": 2, "parts": None},
        "3": {"price": 3, "parts": 5},
    }
    assert tailrace("verify", file).returncode == 1  # it does not hide what was set aside

    execute(postgres_url, "DELETE FROM parts WHERE id = 1")
    run_until_current(file)
    assert "2 written" in tailrace("quarantine", "replay", file).stdout
    assert found(opensearch_server, alias)["1"] == {"price": 10, "parts": None}
    assert tailrace("quarantine", "list", file).stdout == "no rows are set aside\n"
    assert tailrace("verify", file).returncode == 0
