"""A state directory on an object store: one process at a time, and what a process that lost it can not do."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest

from support.messages import Feed, transaction
from support.stores import object_store
from tailrace.errors import LogCorrupt, StateError, StateUnavailable
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.pipeline.status import RunState, run_state
from tailrace.state import lease
from tailrace.state.lease import Note
from tailrace.state.objects import Objects, Version
from tailrace.state.storage import Storage
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.server]

QUICK = {"RENEW_SECONDS": 0.2, "DEAD_SECONDS": 2.0, "SETTLE_SECONDS": 0.2, "SAFE_SECONDS": 1.5}

WRITER = """
import json, sys
from tailrace.errors import StateError
from tailrace.state import lease
from tailrace.state.storage import Storage
from tailrace.log.writer import LogWriter
from support.messages import Feed, transaction
from support.stores import object_store
vars(lease).update(json.loads(sys.argv[2]))
storage = Storage(sys.argv[1])
feed = Feed(LogWriter.open(storage) or LogWriter.create(storage, None, "0/0"), {})
print("ready", flush=True)
for line in sys.stdin:
    try:
        feed.append(*transaction(b"O"))
        print("appended", flush=True)
    except StateError as error:
        print(error, flush=True)
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Callable[[str], str]]:
    with object_store() as address:
        yield address


@pytest.fixture
def state(store, request) -> Storage:
    return Storage(store(f"{request.node.name}/state"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in QUICK.items():
        monkeypatch.setattr(lease, name, seconds)


class Child:
    """A log's writer in a process of its own."""

    def __init__(self, storage: Storage, seconds: dict[str, float]) -> None:
        command = [sys.executable, "-c", WRITER, storage._url, json.dumps(seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.heard()

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def append(self) -> str:
        """What it says of it."""
        assert self.process.stdin is not None
        print("append", file=self.process.stdin, flush=True)
        return self.heard()


@contextmanager
def writing(storage: Storage, seconds: dict[str, float] = QUICK) -> Iterator[Child]:
    child = Child(storage, seconds)
    try:
        yield child
    finally:
        child.process.kill()
        child.process.wait(10)


def taken_over(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> LogWriter:
    """Another writer of a log whose own is taken for dead, though it lives, and may renew its lease meanwhile."""
    found: list[LogWriter | None] = []

    def is_taken() -> bool:
        with suppress(StateError):
            found.append(LogWriter.open(storage))
        return bool(found)

    with monkeypatch.context() as patch:
        patch.setattr(Note, "is_over", True)
        wait_until(is_taken, seconds=30, what="the lock")
    [writer] = found
    assert writer is not None
    return writer


def lose_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write with a condition is done, and nobody is told."""
    swap = Storage.swap

    def lost(*arguments: Any) -> None:
        monkeypatch.setattr(Storage, "swap", swap)
        swap(*arguments)
        raise StateUnavailable("the connection broke")

    monkeypatch.setattr(Storage, "swap", lost)


def renewed(storage: Storage, name: str = "writer.lock") -> float:
    note = lease.read(storage, name)
    assert note is not None
    return note.renewed


def test_a_log_on_an_object_store_is_written_read_and_shortened(state):
    folder = state.folder("log")
    assert folder.path == f"{state.path}/log"
    feed = Feed(LogWriter.create(folder, None, "0/0"), {})
    for _ in range(3):
        feed.append(*transaction(b"O"))
    feed.writer.forget(3)
    feed.writer.close()
    writer = LogWriter.open(folder)
    assert writer is not None
    assert (writer.end, writer.count, LogReader(folder).begin()) == (9, 2, 3)
    assert all(abs(facts.written_at - time.time()) < 600 for facts in writer.segments.values())
    writer.close()


def test_a_second_writer_is_refused_and_told_who_the_first_is(state):
    with writing(state) as child:
        assert child.append() == "appended"
        with pytest.raises(StateError, match=rf"another tailrace process is using .*: pid {child.process.pid} on"):
            LogWriter.open(state)
        began = renewed(state)
        wait_until(lambda: renewed(state) > began + QUICK["DEAD_SECONDS"], seconds=60, what="renewals", every=0.1)
        with pytest.raises(StateError, match="another tailrace process is using"):
            LogWriter.open(state)
        assert child.append() == "appended"


def test_a_writer_that_was_killed_here_locks_nobody_out_for_a_moment(state, monkeypatch):
    monkeypatch.setattr(lease, "DEAD_SECONDS", 3600.0)
    with writing(state, {}) as child:
        child.append()
    writer = LogWriter.open(state)
    assert writer is not None
    assert writer.end == 3
    writer.close()


def test_a_writer_that_died_elsewhere_is_let_go_when_it_was_not_heard_of_for_long(state):
    state.create()
    elsewhere = Note("somebody", "elsewhere", 1, "another boot", time.time(), time.time())
    state.publish("run.lock", msgspec.json.encode(elsewhere))
    assert run_state(state._url) is RunState.RUNNING
    with pytest.raises(StateError, match="pid 1 on elsewhere"):
        state.lock("run.lock")
    wait_until(lambda: not elsewhere.is_fresh, seconds=30, what="it to be dead", every=0.1)
    assert run_state(state._url) is RunState.STOPPED
    lock = state.lock("run.lock")
    assert lock is not None
    assert run_state(state._url) is RunState.RUNNING
    lock.close()
    assert run_state(state._url) is RunState.STOPPED


def test_a_holder_whose_clock_is_wrong_is_alive_as_long_as_it_renews(state, monkeypatch):
    lock = state.lock("run.lock")
    assert lock is not None
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(lease.time, "time", lambda: real() - 86_400)
        note = lease.read(state, "run.lock")
        assert note is not None
        assert not note.is_fresh
        with pytest.raises(StateError, match="another tailrace process is using"):
            state.lock("run.lock")
    lock.check()
    lock.close()


def test_a_writer_that_was_stopped_and_wakes_after_another_took_over_writes_nothing(state):
    with writing(state) as zombie:
        assert zombie.append() == "appended"
        os.kill(zombie.process.pid, signal.SIGSTOP)
        held = lease.read(state, "writer.lock")
        assert held is not None
        wait_until(lambda: not held.is_fresh, seconds=30, what="it to look dead", every=0.1)
        writer = LogWriter.open(state)
        assert writer is not None
        Feed(writer, {}).append(*transaction(b"O", b"O", b"O"))
        os.kill(zombie.process.pid, signal.SIGCONT)
        assert "took over the state directory" in zombie.append()
        writer.close()
    assert LogReader(state).end() == 8


def test_a_segment_that_a_writer_uploads_after_it_was_replaced_is_read_by_nobody(state, monkeypatch):
    """A look at the lock leaves a gap: the writer may be stopped behind it, for as long as it takes."""
    late = Feed(LogWriter.create(state, None, "0/0"), {})
    late.append(*transaction(b"O"))
    writer = taken_over(state, monkeypatch)
    with pytest.raises(StateError, match="took over the state directory"):
        late.append(*transaction(b"O", b"O", b"O"))
    assert len(state.sizes(".segment")) == 2, "the segment itself can be uploaded"
    assert LogReader(state).end() == 3

    Feed(writer, {}).append(*transaction(b"O"))
    Feed(writer, {}).append(*transaction(b"O"))
    assert [(name.first, name.last) for name in LogReader(state).names()] == [(1, 3), (4, 6), (7, 9)]
    writer.close()
    again = LogWriter.open(state)
    assert again is not None
    assert len(state.sizes(".segment")) == 3, "what was left behind is cleaned away"
    again.close()


def test_a_writer_that_was_replaced_does_not_change_what_is_known_of_tables(state, monkeypatch):
    late = Feed(LogWriter.create(state, None, "0/0"), {})
    late.append(*transaction(b"O"))
    writer = taken_over(state, monkeypatch)
    writer._write_tables(b"{}")
    with pytest.raises(StateError, match="took over the state directory"):
        late.writer._write_tables(b'{"public.a": null}')
    writer.close()


def test_an_answer_that_was_lost_is_no_reason_to_give_up(state, monkeypatch):
    writer = LogWriter.create(state, None, "0/0")
    feed = Feed(writer, {})
    lose_an_answer(monkeypatch)
    with pytest.raises(StateUnavailable):
        writer._lock.publish(0, 0)
    feed.append(*transaction(b"O"))
    assert LogReader(state).end() == 3
    writer.close()


def test_an_end_whose_answer_was_lost_is_not_taken_back_by_the_writer_that_lets_go(state, monkeypatch):
    """Readers have seen it, and sinks may have applied it: its offsets can not be given out anew."""
    writer = LogWriter.create(state, None, "0/0")
    lose_an_answer(monkeypatch)
    with pytest.raises(StateUnavailable):
        Feed(writer, {}).append(*transaction(b"O"))
    assert LogReader(state).end() == 3
    writer.close()
    assert LogReader(state).end() == 3
    again = LogWriter.open(state)
    assert again is not None
    assert (again.end, LogReader(state).end()) == (3, 3)
    again.close()


def test_what_is_known_of_tables_is_written_though_an_answer_was_lost(state, monkeypatch):
    writer, swap = LogWriter.create(state, None, "0/0"), Objects.swap

    def answered_late(*arguments: Any) -> None:
        monkeypatch.setattr(Objects, "swap", swap)
        swap(*arguments)  # done; and what the client sends again is refused

    monkeypatch.setattr(Objects, "swap", answered_late)
    writer._write_tables(b"{}")
    writer._write_tables(b'{"public.a": null}')
    assert state.read("tables.json") == b'{"public.a": null}'
    writer.close()


def test_a_log_that_was_made_anew_is_not_spoilt_by_the_writer_of_the_one_before(state, monkeypatch):
    """The state was deleted while a capture ran: that one notices when it has uploaded its next segment."""
    old = Feed(LogWriter.create(state, None, "0/0"), {})
    old.append(*transaction(b"O"))
    old = Feed(taken_over(state, monkeypatch), {})  # of a later epoch than the first
    state.remove()
    new = Feed(LogWriter.create(state, None, "0/0"), {})
    with pytest.raises(StateError, match="took over the state directory"):
        old.append(*transaction(b"O", b"O", b"O"))
    for _ in range(4):
        new.append(*transaction(b"O"))
    reader = LogReader(state)
    assert [(name.first, name.last) for name in reader.names()] == [(1, 3), (4, 6), (7, 9), (10, 12)]
    assert {reader.header(name).log_id for name in reader.names()} == {new.writer.identity.id}
    new.writer.close()


def test_a_new_log_does_not_begin_with_what_another_left_behind(state):
    old = Feed(LogWriter.create(state, None, "0/0"), {})
    old.append(*transaction(b"O"))
    old.writer.close()
    state.delete("log.json")
    new = LogWriter.create(state, None, "0/0")
    assert (new.end, LogReader(state).end(), LogReader(state).names()) == (0, 0, [])
    new.close()


def test_what_a_replaced_writer_left_behind_does_not_come_back_when_the_next_forgets_its_own(state, monkeypatch):
    late = Feed(LogWriter.create(state, None, "0/0"), {})
    late.append(*transaction(b"O"))
    writer = taken_over(state, monkeypatch)
    with pytest.raises(StateError, match="took over the state directory"):
        late.append(*transaction(*[b"O"] * 4))
    feed, reader = Feed(writer, {}), LogReader(state)
    for _ in range(3):
        feed.append(*transaction(b"O"))
    writer.forget(6)
    assert (reader.begin(), [(name.first, name.last) for name in reader.names()]) == (6, [(7, 9), (10, 12)])
    assert [(piece.first, piece.last) for piece in reader.slices(None, None)] == [(7, 9), (10, 12)]
    writer.close()
    again = LogWriter.open(state)
    assert again is not None
    assert (again.count, len(state.sizes(".segment"))) == (2, 2)
    again.close()


def test_a_writer_that_was_replaced_forgets_nothing(state, monkeypatch):
    late = Feed(LogWriter.create(state, None, "0/0"), {})
    for _ in range(2):
        late.append(*transaction(b"O"))
    writer = taken_over(state, monkeypatch)
    with pytest.raises(StateError, match="took over the state directory"):
        late.writer.forget(3)
    assert LogReader(state).begin() == 0
    writer.close()


def test_a_lock_that_was_deleted_by_hand_does_not_let_an_old_writer_come_before_the_next(state, monkeypatch):
    late = Feed(LogWriter.create(state, None, "0/0"), {})
    late.append(*transaction(b"O"))
    late = Feed(taken_over(state, monkeypatch), {})
    state.delete("writer.lock")
    writer = LogWriter.open(state)
    assert writer is not None
    seen_first = r"took over the state directory|writer\.lock was deleted"
    with pytest.raises(StateError, match=seen_first):
        late.append(*transaction(b"O", b"O", b"O"))
    Feed(writer, {}).append(*transaction(b"O"))
    Feed(writer, {}).append(*transaction(b"O"))
    expected = [(1, 3), (4, 6), (7, 9)]
    assert [(name.first, name.last) for name in LogReader(state).names()] == expected
    state.delete("writer.lock")
    assert [(name.first, name.last) for name in LogReader(state).names()] == expected


def test_a_log_that_lacks_what_was_published_is_damaged(state):
    feed = Feed(LogWriter.create(state, None, "0/0"), {})
    for _ in range(2):
        feed.append(*transaction(b"O"))
    feed.writer.close()
    state.delete(str(LogReader(state).names()[-1]))
    with pytest.raises(LogCorrupt, match="ends at 3, and was published up to 6"):
        LogWriter.open(state)


def test_a_writer_that_has_nothing_to_write_notices_that_it_was_replaced(state):
    writer = LogWriter.create(state, None, "0/0")
    state.delete("writer.lock")

    def is_noticed() -> bool:
        try:
            writer.touch()
        except StateError as error:
            return "writer.lock was deleted from the state directory" in str(error)
        return False

    wait_until(is_noticed, seconds=30, what="it to notice", every=0.05)
    writer.close()


def test_a_writer_that_was_replaced_deletes_nothing_of_the_next(state, monkeypatch):
    """It was stopped right behind its look at the lock."""
    late = Feed(LogWriter.create(state, None, "0/0"), {})
    late.append(*transaction(b"O"))
    writer = taken_over(state, monkeypatch)
    Feed(writer, {}).append(*transaction(b"O"))
    monkeypatch.setattr(late.writer._lock, "check", lambda: None)
    with pytest.raises(StateError, match="took over the state directory"):
        late.writer._drop_unfinished(4)
    assert [(name.first, name.last) for name in LogReader(state).names()] == [(1, 3), (4, 6)]
    writer.close()


@pytest.mark.parametrize("ignores_all", [True, False], ids=["both", "If-Match"])
def test_a_store_that_ignores_conditions_is_refused(state, monkeypatch, ignores_all):
    swap = Objects.swap

    def careless(objects: Objects, name: str, data: bytes, version: Version | None) -> Version | None:
        if version is None and not ignores_all:
            return swap(objects, name, data, version)
        objects.put(name, io.BytesIO(data), len(data))
        return objects.read(name)[1]

    monkeypatch.setattr(Objects, "swap", careless)
    with pytest.raises(StateError, match="overwrites what it was asked to leave alone"):
        state.lock("run.lock")


def test_of_two_that_come_at_once_one_gets_it(state):
    state.create()
    both, got, refused = threading.Barrier(2), [], []

    def take() -> None:
        both.wait()
        try:
            got.append(state.lock("run.lock"))
        except StateError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 1)
    got[0].check()
    got[0].close()


def test_a_lease_that_could_not_be_renewed_for_long_is_not_trusted_where_nothing_can_be_refused(monkeypatch):
    storage = Storage("mock:///state")
    storage.create()
    lock = storage.lock("run.lock")
    assert isinstance(lock, lease.Lease)

    def broken(*_: object) -> None:
        raise StateError("cannot write")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "publish", broken)
        lock._trusted_until = time.monotonic() - 1
        with pytest.raises(StateError, match="could not be renewed") as caught:
            lock.check()
    assert caught.value.retry
    with pytest.raises(StateError, match="could not be renewed"):
        lock.check()
    lock.close()
