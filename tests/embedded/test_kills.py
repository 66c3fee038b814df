"""SIGKILL of a consumer at every step: what was acknowledged never comes again, what was not always does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from support.streams import Consumer
from tailrace import failpoints
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.server, pytest.mark.crash]

ROWS, CHANGES = 600, 40
ACKNOWLEDGING = (
    "embedded-before-checkpoint",
    "embedded-checkpoint-saved",
    "embedded-before-source-told",
    "embedded-source-told",
)
SAVING = ("checkpoint-written", "checkpoint-synced", "checkpoint-saved")
"""Steps of the file store, inside of an acknowledgement."""
STARTING = ("embedded-prepared", "embedded-planned", "embedded-chunk-read")
ON_DEMAND = "embedded-chunk-waits"


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY, name text)")
    return postgres_url


def fill(url: str, first: int, last: int) -> None:
    execute(url, f"INSERT INTO items SELECT i, 'name ' || i FROM generate_series({first}, {last}) i")


def change(url: str, first: int, last: int) -> None:
    """A transaction for each two rows."""
    execute(url, *(f"INSERT INTO items VALUES ({i}, 'x'), ({-i}, 'y')" for i in range(first, last + 1)))


def ids(batches: list[list[list[Any]]]) -> list[int]:
    return [event[2]["id"] for batch in batches for event in batch]


def consumed(consumer: Consumer, began: int = 0) -> list[int]:
    """What those who died have consumed, by the checkpoint: it counts `began` events of before.

    All that they had acknowledged is among it, and nothing that was not delivered.
    """
    delivered, acknowledged = ids(consumer.delivered()), ids(consumer.acknowledged())
    durable = consumer.durable() - began
    assert len(acknowledged) <= durable <= len(delivered)
    return delivered[:durable]


def test_every_failpoint_of_a_stream_is_died_at() -> None:
    streams = {name for name in failpoints.ALL if name.startswith("embedded-")}
    assert streams == {*ACKNOWLEDGING, *STARTING, ON_DEMAND}
    assert {*SAVING} <= {*failpoints.ALL}


@pytest.mark.parametrize(
    ("failpoint", "nth"), [*itertools.product(ACKNOWLEDGING, [1, 4]), *itertools.product(SAVING, [2, 5])]
)
def test_a_consumer_that_dies_while_it_acknowledges_goes_on_exactly(
    url: str, tmp_path: Path, failpoint: str, nth: int
) -> None:
    """Some places are inside of a transaction."""
    consumer = Consumer(url, tmp_path, snapshot="never")
    consumer.ends(events=0)
    change(url, 1, CHANGES)
    consumer.dies(failpoints.environment(failpoint, nth=nth), step=5)
    before, delivered = consumed(consumer), len(consumer.delivered())
    if failpoint in ACKNOWLEDGING:
        assert bool(before) is ((failpoint, nth) != ("embedded-before-checkpoint", 1))
    consumer.ends(step=7)
    after = ids(consumer.delivered()[delivered:])
    assert before + after == [id_ for i in range(1, CHANGES + 1) for id_ in (i, -i)]


@pytest.mark.parametrize("failpoint", [*STARTING, *ACKNOWLEDGING[:2]])
def test_a_consumer_that_dies_in_its_snapshot_has_every_row_once(url: str, tmp_path: Path, failpoint: str) -> None:
    fill(url, 1, ROWS)
    consumer = Consumer(url, tmp_path, chunk_bytes=8192)
    is_under_way = failpoint not in ("embedded-prepared", "embedded-planned")
    consumer.dies(failpoints.environment(failpoint, nth=2 if is_under_way else 1))
    before, delivered = consumed(consumer), len(consumer.delivered())
    assert bool(before) is is_under_way
    change(url, ROWS + 1, ROWS + 2)
    consumer.ends()
    found = before + ids(consumer.delivered()[delivered:])
    assert sorted(id_ for id_ in found if 0 < id_ <= ROWS) == list(range(1, ROWS + 1))
    changed = [ROWS + 1, -ROWS - 1, ROWS + 2, -ROWS - 2]
    if is_under_way:  # what is left was read with them, and they come all the same
        assert found[-4:] == changed
    assert set(found) == {*range(1, ROWS + 1), *changed}


@pytest.mark.parametrize("failpoint", [ON_DEMAND, *ACKNOWLEDGING[:2]])
def test_a_consumer_that_dies_in_a_snapshot_on_demand_has_every_row_once(
    url: str, tmp_path: Path, failpoint: str
) -> None:
    consumer = Consumer(url, tmp_path, snapshot="never", chunk_bytes=8192, heartbeat_ms=50)
    consumer.ends(events=0)
    fill(url, 1, ROWS)
    consumer.ends(events=ROWS)
    consumer.notes.unlink()
    consumer.dies(failpoints.environment(failpoint, nth=2), snapshot_of="public.items")
    before, delivered = consumed(consumer, ROWS), len(consumer.delivered())
    assert before
    consumer.ends()
    assert sorted(before + ids(consumer.delivered()[delivered:])) == list(range(1, ROWS + 1))
