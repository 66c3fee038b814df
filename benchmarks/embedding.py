"""Streams inside of the program that consumes them: ours as columns and as events, and psycopg's own loop."""

import time
from collections.abc import Callable

from psycopg import pq

import tailrace
from benchmarks.backlog import Backlog
from benchmarks.race import in_own_process
from tailrace.embedded.stream import Stream


def arrow(backlog: Backlog) -> float:
    """Seconds in which the whole backlog is delivered as typed record batches, each batch acknowledged."""
    return _consumed(backlog, lambda batch: sum(rows.num_rows for _, rows in batch.arrow()))


def events(backlog: Backlog) -> float:
    """The same as plain Python events, with every value."""
    return _consumed(backlog, lambda batch: sum(1 for _ in batch.events()))


def psycopg_loop(backlog: Backlog) -> float:
    """Seconds in which a plain loop over the replication stream has seen every message, and looked at none."""
    with backlog.fresh_slot() as slot:
        return in_own_process(_loop, backlog.server.url, slot, backlog.publication, backlog.end_lsn)


def _consumed(backlog: Backlog, count: Callable[[tailrace.Batch], int]) -> float:
    with backlog.fresh_slot() as slot:
        stream = _stream(backlog, slot)
        stream.start()
        began, seen = time.perf_counter(), 0
        while seen < backlog.changes:
            batch = stream.poll(600)
            if batch is None:
                raise RuntimeError(f"{seen} of {backlog.changes} changes came")
            seen += count(batch)
            batch.ack()
        seconds = time.perf_counter() - began
        stream.stop()
    if seen != backlog.changes:
        raise RuntimeError(f"{seen} changes came, and there are {backlog.changes}")
    return seconds


def _stream(backlog: Backlog, slot: str) -> Stream:
    return tailrace.capture(
        backlog.server.url,
        f"public.{backlog.table}",
        snapshot="never",
        name="bench",
        slot=slot,
        publication=backlog.publication,
        create=False,
    )


def _loop(url: str, slot: str, publication: str, end_lsn: str) -> float:
    high, low = end_lsn.split("/")
    end = int(high, 16) << 32 | int(low, 16)
    began = time.perf_counter()
    connection = pq.PGconn.connect(f"{url}?replication=database".encode())
    options = f"proto_version '1', binary 'true', publication_names '{publication}'"
    connection.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
    while True:
        _, data = connection.get_copy_data(0)
        if data[0] == ord("k") and int.from_bytes(data[1:9], "big") >= end:
            return time.perf_counter() - began
