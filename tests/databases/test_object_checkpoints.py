"""Checkpoints in an object store: one writer, also of those that slept, and what the store may do to its clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from support.checkpoints import fork_and_end, save_when_told
from support.stores import object_store, requests_in
from tailrace.checkpoints import ObjectStore, open_store
from tailrace.errors import CheckpointRefused, CheckpointTaken, StateError, StateUnavailable
from tailrace.state import lease
from tailrace.state.objects import Objects
from tailrace.state.storage import Storage
from tailrace.testing.checkpoint_contract import at, child, claimed
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.server]

QUICK = {"RENEW_SECONDS": 0.2, "DEAD_SECONDS": 2.0, "SAFE_SECONDS": 1.5}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "requests"


@pytest.fixture(scope="module")
def address(log) -> Iterator[Callable[[str], str]]:
    with object_store(log) as address:
        yield address


@pytest.fixture
def url(address: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    return address(request.node.name)


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    with open_store(url) as store:
        store.claim("orders")
        store.save("orders", at(7))
        yield store


@pytest.mark.crash
def test_a_holder_that_slept_until_another_took_over_writes_no_more(url, monkeypatch):
    for name, seconds in QUICK.items():
        monkeypatch.setattr(lease, name, seconds)
    with child(partial(save_when_told, url, QUICK)) as (process, answers), open_store(url) as store:
        assert next(answers) == b"ready\n"
        tell(process, 1)
        assert next(answers) == b"saved\n"
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: claimed(store, "orders"), seconds=60, what="the lease to be let go", every=0.1)
        assert store.load("orders") == at(1)
        process.send_signal(signal.SIGCONT)
        tell(process, 2)
        assert next(answers).decode().startswith(f"checkpoint orders was taken over by pid {os.getpid()} on")
        store.save("orders", at(3))
        tell(process, 4)
        assert b"taken over" in next(answers)
        assert store.load("orders") == at(3)


def tell(process: Any, number: int) -> None:
    process.stdin.write(f"{number}\n".encode())
    process.stdin.flush()


@pytest.mark.crash
def test_a_forked_child_that_ends_does_not_let_go_for_its_parent(url):
    with child(partial(fork_and_end, url)) as (_, answers):
        assert next(answers) == b"held\n"


def test_who_holds_a_checkpoint_is_told(url, store):
    with (
        open_store(url) as other,
        pytest.raises(CheckpointTaken, match=f"held by pid {os.getpid()} on .* last heard of") as caught,
    ):
        other.claim("orders")
    assert "30 s after it was last heard of" in caught.value.hint


def test_a_save_is_one_request(store, log):
    before = len(put(log))
    for number in range(8, 13):
        store.save("orders", at(number))
    assert len(put(log)) - before == 5


def put(log) -> list[str]:
    """Those to checkpoints: leases are renewed meanwhile."""
    return [each for each in requests_in(log) if each.endswith("/orders.json")]


def test_a_save_counts_though_its_answer_was_lost(store, monkeypatch):
    swap = Objects.swap

    def answered_late(*arguments: Any) -> None:
        monkeypatch.setattr(Objects, "swap", swap)
        swap(*arguments)  # done; and what the client sends again is refused

    monkeypatch.setattr(Objects, "swap", answered_late)
    store.save("orders", at(8))
    store.save("orders", at(9))
    assert store.load("orders") == at(9)


def test_a_save_that_failed_can_be_made_again(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "swap", failing)
        with pytest.raises(StateUnavailable, match="cannot write to the checkpoint folder") as caught:
            store.save("orders", at(8))
    assert caught.value.retry
    assert store.load("orders") == at(7)
    store.save("orders", at(8))
    assert store.load("orders") == at(8)


def failing(*_: object) -> None:
    raise OSError("the store does not answer")


def test_a_store_that_ignores_conditions_is_refused(url, monkeypatch):
    def careless(objects: Objects, name: str, data: bytes, _: object) -> Any:
        import io

        objects.put(name, io.BytesIO(data), len(data))
        return objects.read(name)[1]

    monkeypatch.setattr(Objects, "swap", careless)
    with open_store(url) as store, pytest.raises(StateError, match="overwrites what it was asked to leave alone"):
        store.claim("orders")


def test_a_store_that_is_not_there_is_tried_again():
    url = "s3://key:secret@bucket/there?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    with open_store(url) as store, pytest.raises(StateUnavailable) as caught:
        store.load("orders")
    assert caught.value.retry
    assert "secret" not in f"{caught.value} {store!r}"


@pytest.mark.parametrize("damage", [b"{", b'{"holder": 1}', b""])
def test_an_object_that_was_damaged_is_refused_left_alone_and_can_be_deleted(url, store, damage):
    store.close()
    Storage(url).publish("orders.json", damage)
    with open_store(url) as again:
        with pytest.raises(CheckpointRefused, match="checkpoint orders is damaged"):
            again.load("orders")
        again.claim("orders")
        with pytest.raises(CheckpointRefused, match="damaged"):
            again.save("orders", at(8))
        assert Storage(url).read("orders.json") == damage
        assert again.delete("orders")
        assert (again.load("orders"), again.list()) == (None, [])
        again.save("orders", at(1))
        assert again.load("orders") == at(1)


def test_an_object_whose_record_was_changed_is_refused(url, store):
    data = Storage(url).read("orders.json")
    Storage(url).publish("orders.json", data.replace(b'"0/7"', b'"0/9"'))
    with pytest.raises(CheckpointRefused, match="does not match its checksum"):
        store.load("orders")
    with pytest.raises(CheckpointTaken, match="taken over"):
        store.save("orders", at(10))  # somebody has written there
