"""A broker that dies under a commit and comes back: the commit waits for it, or is found afterwards, and is there once.

The same under a whole pipeline, with brokers that move leaders and break transactions off: tests/crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import kafka_reading
from support.kafka import KafkaCluster
from tailrace import config
from tailrace.errors import SinkUnavailable
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import apply, inserts, nobody, staged
from tailrace.testing.plugin import requires
from tailrace.testing.sink_changes import ITEMS, watermark

pytestmark = [pytest.mark.server, pytest.mark.crash]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaCluster]:
    with requires(KafkaCluster.start) as cluster:
        yield cluster


def test_a_commit_under_which_the_broker_dies_is_there_once(broker: KafkaCluster, tmp_path: Path) -> None:
    source = config.Source("postgresql://localhost/shop", ("*.*",))
    sinks = {"out": config.Sink(broker.url)}
    sink = KafkaSink(config.Pipeline("restarted", source, sinks, state=str(tmp_path)), "out")
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    batch = staged(sink, [[inserts(ITEMS, 11, (2, "b", None), (3, "c", None))]], 20)
    broker.kill()
    with pytest.raises(SinkUnavailable, match="Connection refused"):
        sink.commit(batch, nobody)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(sink.commit, batch, nobody)
        broker.restart()
        try:
            answer.result()
        except SinkUnavailable:  # what became of it is asked by the next
            sink.commit(batch, nobody)
    found = kafka_reading.read(broker.servers, [sink.held_as(ITEMS)])
    assert [each.value["after"]["id"] for each in found] == [1, 2, 3]
    assert sink.read_state().watermark == watermark(20)
    sink.close()
