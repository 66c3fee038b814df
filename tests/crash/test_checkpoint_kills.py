"""A process that is killed in the middle of a save leaves the old checkpoint or the new one, and its name is free."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.stores import object_store
from tailrace import failpoints
from tailrace.checkpoints import CheckpointStore, open_store
from tailrace.testing.checkpoint_contract import at, child, claimed, save_always
from tailrace.testing.dying import Mortal
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.crash]

SERVER = pytest.mark.server
Opened = Callable[[], CheckpointStore]

LEAVES = {"checkpoint-written": 2, "checkpoint-synced": 2, "checkpoint-before-commit": 2, "checkpoint-saved": 3}
"""Which checkpoint is there after a death at each failpoint, when the third is saved."""


def dies_at(failpoint: str, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for variable, value in failpoints.environment(failpoint, nth=3).items():
            patch.setenv(variable, value)
        with child(partial(save_always, opened, "orders")) as (process, answers):
            assert [int(answer) for answer in answers] == [1, 2]
            assert process.wait() == -signal.SIGKILL


def goes_on(opened: Opened, left: int) -> None:
    """The next one finds what is left, and saves after it."""
    store = opened()
    wait_until(lambda: claimed(store, "orders"), seconds=120, what="the name to be free", every=0.1)
    assert store.load("orders") == at(left)
    store.save("orders", at(left + 1))
    assert store.load("orders") == at(left + 1)
    store.close()


@pytest.mark.parametrize("failpoint", ["checkpoint-written", "checkpoint-synced", "checkpoint-saved"])
def test_a_file_is_the_old_or_the_new_one(failpoint, tmp_path, monkeypatch):
    opened = partial(open_store, str(tmp_path))
    dies_at(failpoint, opened, monkeypatch)
    goes_on(opened, LEAVES[failpoint])
    assert os.listdir(tmp_path) == ["orders.json"]


@pytest.mark.parametrize("failpoint", ["checkpoint-before-commit", "checkpoint-saved"])
@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgres", marks=SERVER), pytest.param("mysql", marks=SERVER)]
)
def test_a_row_is_the_old_or_the_new_one(failpoint, kind, tmp_path, monkeypatch, request):
    url = f"sqlite:///{tmp_path}/mine.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    opened = partial(open_store, url)
    dies_at(failpoint, opened, monkeypatch)
    goes_on(opened, LEAVES[failpoint])


@pytest.mark.server
def test_an_object_is_the_new_one_once_it_was_answered(monkeypatch):
    with object_store() as address:
        opened = partial(open_store, address("kills"))
        dies_at("checkpoint-saved", opened, monkeypatch)
        goes_on(opened, LEAVES["checkpoint-saved"])


def test_a_file_is_the_old_or_the_new_one_whatever_its_writer_was_doing(tmp_path):
    """It dies before each of its system calls that write, rename or remove, in turn."""
    opened, died = partial(open_store, str(tmp_path)), 0
    with opened() as store:
        store.claim("orders")
        store.save("orders", at(1))
    with Mortal() as mortal:
        for step in range(1, 100):
            if not mortal.dies(partial(save_twice, str(tmp_path)), step):
                break
            died += 1
            with opened() as store:
                store.claim("orders")
                assert store.load("orders") in (at(1), at(2), at(3))
                store.delete("orders")
                store.save("orders", at(1))
    assert died >= 8  # lock, written beside, renamed, twice; let go


def save_twice(folder: str | Path) -> None:
    with open_store(folder) as store:
        store.claim("orders")
        store.save("orders", at(2))
        store.save("orders", at(3))
