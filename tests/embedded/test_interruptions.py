"""What breaks off a call of the consumer's, a signal or an error, loses nothing: the batch comes with the next poll."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace
from support.streams import PATIENCE
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.content import Stretch
from tailrace.embedded.stream import Stream
from tailrace.errors import DecodeError, Misuse
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server


@pytest.fixture
def stream(url: str, store: MemoryStore) -> Iterator[Stream]:
    with tailrace.capture(url, checkpoint=store, snapshot="never", max_bytes=1 << 16) as stream:
        yield stream


def insert(url: str, first: int, last: int, each: int = 1) -> None:
    """Transactions of so many rows."""
    execute(
        url,
        *(
            f"INSERT INTO items SELECT i, repeat('x', 50) FROM generate_series({low}, {min(low + each - 1, last)}) i"
            for low in range(first, last + 1, each)
        ),
    )


def ids(batch: tailrace.Batch | None) -> list[int]:
    assert batch is not None
    return [event.after["id"] for event in batch.events() if event.after]


def once(error: BaseException, work: Any) -> Any:
    """Raises the first time that something comes of the work, which is lost then."""
    left = [error]

    def broken(*args: Any, **named: Any) -> Any:
        found = work(*args, **named)
        if left and found is not None:
            raise left.pop()
        return found

    return broken


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DecodeError("for a moment")])
@pytest.mark.parametrize("place", ["_stretch", "_cut", "next"])
def test_a_batch_whose_poll_was_broken_off_comes_with_the_next(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    feed = stream._feed
    insert(url, 1, 2, each=2)
    stream.poll(0)
    assert ids(stream.poll(PATIENCE)) == [1, 2]
    batch = stream.poll(PATIENCE)
    assert batch is not None
    batch.ack()
    insert(url, 3, 3)
    with monkeypatch.context() as broken:
        broken.setattr(feed, place, once(error, getattr(feed, place)))
        with pytest.raises(type(error)):
            stream.poll(PATIENCE)
    insert(url, 4, 4)
    found: list[int] = []
    while len(found) < 2:
        batch = stream.poll(PATIENCE)
        found += ids(batch)
        assert batch is not None
        batch.ack()
    assert found == [3, 4]


def test_a_batch_that_could_not_be_decoded_for_a_moment_comes_with_the_next_poll(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(url, 1, 1)
    with monkeypatch.context() as broken:
        broken.setattr(Stretch, "is_empty", once(DecodeError("for a moment"), Stretch.is_empty))
        with pytest.raises(DecodeError):
            stream.poll(PATIENCE)
    insert(url, 2, 2)
    first = stream.poll(PATIENCE)
    assert ids(first)[0] == 1


class Interrupted(BaseException):
    """As Ctrl-C in a notebook."""


def interrupted_after(work: Any) -> Any:
    def broken(*args: Any, **named: Any) -> Any:
        work(*args, **named)
        raise Interrupted

    return broken


BEHIND_THE_SAVE = {
    "store": lambda stream: (stream._ledger.store, "save"),
    "ledger": lambda stream: (stream._ledger, "save"),
    "buffer": lambda stream: (stream._feed.live.buffer, "release"),
    "feed": lambda stream: (stream._feed, "accepted"),
}


@pytest.mark.parametrize("place", BEHIND_THE_SAVE)
@pytest.mark.parametrize("prefix", [5, None])
def test_an_acknowledgement_that_is_broken_off_behind_its_save_counts_once(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch, place: str, prefix: int | None
) -> None:
    insert(url, 1, 10, each=10)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    with monkeypatch.context() as broken:
        owner, name = BEHIND_THE_SAVE[place](stream)
        broken.setattr(owner, name, interrupted_after(getattr(owner, name)))
        with pytest.raises(Interrupted):
            batch.ack(prefix=prefix)
    insert(url, 11, 11)
    rest = stream.poll(PATIENCE)
    assert ids(rest)[0] == (prefix or 10) + 1
    assert rest is not None
    rest.ack(prefix=1)
    assert stream.checkpoint.events == (prefix or 10) + 1
    assert stream._feed.live.buffer.memory == sum(piece.bytes for piece in stream._feed.live.buffer._pieces)


def test_an_acknowledgement_that_was_broken_off_may_be_given_again(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(url, 1, 10, each=10)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    with monkeypatch.context() as broken:
        broken.setattr(stream._ledger, "save", interrupted_after(stream._ledger.save))
        with pytest.raises(Interrupted):
            batch.ack()
    batch.ack()
    with pytest.raises(Misuse):
        batch.ack()


def interrupt(*_: Any) -> None:
    raise Interrupted


# Python swallows a signal that meets a destructor or a callback of the garbage collector, such as hypothesis's
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("transactions", ["whole", "split"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_signals_at_any_moment_lose_nothing_and_bring_nothing_twice(
    url: str, store: MemoryStore, seed: int, transactions: str
) -> None:
    """What was acknowledged does not come again; of an acknowledgement that was broken off nobody can say."""
    random_, count = random.Random(seed), 6000
    before = signal.signal(signal.SIGALRM, interrupt)
    options: dict[str, Any] = {"snapshot": "never", "max_bytes": 1 << 16, "transactions": transactions}
    acknowledged: list[int] = []
    doubtful: set[int] = set()
    interruptions, took = 0, 0.01  # a turn, in seconds: signals come within it, however quick the machine is
    try:
        with tailrace.capture(url, checkpoint=store, **options) as stream:
            insert(url, 1, count, each=701)
            while len(acknowledged) + len(doubtful - {*acknowledged}) < count:
                asked: list[int] = []
                began = time.monotonic()
                try:
                    signal.setitimer(signal.ITIMER_REAL, random_.uniform(0.0001, 2 * took))
                    batch = stream.poll(PATIENCE)
                    some = ids(batch)
                    assert batch is not None
                    asked = some[: random_.randint(1, min(len(some), 200))]
                    batch.ack(prefix=len(asked))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interruptions += 1
                    doubtful |= {*asked}
                    continue
                took = (3 * took + min(time.monotonic() - began, 0.02)) / 4
                assert not {*asked} & {*acknowledged}
                acknowledged += asked
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interruptions > 5, "it was too quick to be interrupted"
    assert acknowledged == sorted(acknowledged)
    assert {*acknowledged} | doubtful == {*range(1, count + 1)}
