"""The file store: what is its own beyond the contract of all stores."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from functools import partial
from pathlib import Path

import pytest

from support.checkpoints import claim_and_fork
from tailrace.checkpoints import FileStore, MemoryStore, open_store
from tailrace.errors import CheckpointRefused, CheckpointTaken, ConfigError, StateError
from tailrace.testing.checkpoint_contract import at, child


@pytest.fixture
def store(tmp_path: Path):
    with FileStore(tmp_path / "places") as store:
        store.claim("orders")
        store.save("orders", at(7))
        yield store


@pytest.fixture
def file(store: FileStore) -> Path:
    return store.folder / "orders.json"


def written(file: Path, **changes: object) -> None:
    """The record with other fields; None takes one away."""
    fields = json.loads(file.read_bytes()) | changes
    file.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


def test_a_checkpoint_is_for_its_owner_alone(store, file):
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o601])
def test_one_that_others_may_use_is_refused(store, file, mode):
    file.chmod(mode)
    for call in (lambda: store.load("orders"), lambda: store.save("orders", at(8))):
        with pytest.raises(CheckpointRefused, match=f"mode {mode:04o}") as caught:
            call()
        assert caught.value.hint.endswith(f"chmod 600 {file}")
    file.chmod(0o600)
    assert store.load("orders") == at(7)


def test_a_record_says_its_format(file):
    assert json.loads(file.read_bytes())["format"] == 1


def test_one_of_a_version_to_come_is_refused(store, file):
    written(file, format=2, more="than we know")
    with pytest.raises(CheckpointRefused, match="has format 2, and this version of tailrace knows format 1") as caught:
        store.load("orders")
    assert "later one" in caught.value.hint


def test_one_that_was_cut_off_anywhere_is_refused(store, file):
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointRefused, match="checkpoint orders is damaged"):
            store.load("orders")


def test_no_byte_of_it_can_be_another_unnoticed(store, file):
    """What JSON does not tell apart, such as a blank in the place of a blank, there is not: it is written without."""
    whole = bytearray(file.read_bytes())
    for place in range(len(whole)):
        damaged = whole.copy()
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(CheckpointRefused):
            store.load("orders")


@pytest.mark.parametrize(
    "changes", [{"checksum": None}, {"format": None}, {"saved_us": 1}, {"checksum": ""}, {"more": 1}]
)
def test_one_that_was_edited_is_refused(store, file, changes):
    written(file, **changes)
    with pytest.raises(CheckpointRefused, match="damaged") as caught:
        store.load("orders")
    assert "tailrace checkpoint seed" in caught.value.hint


def test_one_that_was_copied_to_another_name_is_refused(store, file):
    copy = file.with_name("invoices.json")
    copy.write_bytes(file.read_bytes())
    copy.chmod(0o600)
    with pytest.raises(CheckpointRefused, match="what is kept as checkpoint invoices is the checkpoint orders"):
        store.load("invoices")


def test_a_damaged_one_is_not_written_over_but_can_be_deleted(store, file):
    file.write_bytes(b"{")
    with pytest.raises(CheckpointRefused, match="damaged"):
        store.save("orders", at(8))
    assert file.read_bytes() == b"{"
    assert store.delete("orders")
    store.save("orders", at(1))


def test_a_claim_clears_away_what_a_dead_writer_of_the_name_left(tmp_path):
    for name in ("orders.json.part", "invoices.json.part", "mine.part"):
        (tmp_path / name).write_bytes(b"{")
    with FileStore(tmp_path) as store:
        store.claim("orders")
        assert sorted(os.listdir(tmp_path)) == ["invoices.json.part", "mine.part", "orders.lock"]


def test_nothing_but_the_checkpoint_is_left_behind(store):
    store.release("orders")
    assert os.listdir(store.folder) == ["orders.json"]


def test_files_of_others_are_no_checkpoints(store):
    for name in (".json", ".hidden.json", "my file.json", "orders.json.part", "orders.txt"):
        (store.folder / name).write_bytes(b"")
    assert store.list() == ["orders"]


def test_reading_makes_nothing(tmp_path):
    with FileStore(tmp_path / "none") as store:
        assert (store.list(), store.load("orders"), store.age("orders")) == ([], None, None)
    assert not os.listdir(tmp_path)


def test_a_lock_that_was_removed_is_noticed_before_the_next_write(store, file):
    before = file.read_bytes()
    os.unlink(store.folder / "orders.lock")
    for call in (lambda: store.save("orders", at(8)), lambda: store.delete("orders")):
        with pytest.raises(CheckpointTaken, match="taken over by whoever removed"):
            call()
    assert file.read_bytes() == before


def test_what_a_lock_file_says_holds_nobody_up(tmp_path):
    (tmp_path / "orders.lock").write_text('{"token":"a","host":"here","pid":1,"since":0}')
    with FileStore(tmp_path) as store:
        store.claim("orders")
        with FileStore(tmp_path) as other, pytest.raises(CheckpointTaken, match=f"held by pid {os.getpid()} on"):
            other.claim("orders")


def test_a_folder_that_can_not_be_is_refused_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with FileStore(tmp_path / "file") as store, pytest.raises(StateError, match=f"checkpoint folder {tmp_path}/file"):
        store.claim("orders")


@pytest.mark.crash
def test_a_forked_child_can_neither_use_the_store_nor_keep_the_hold_of_its_dead_parent(tmp_path):
    with child(partial(claim_and_fork, str(tmp_path))) as (parent, answers):
        pid, _, said = next(answers).decode().strip().partition(" ")
        try:
            assert said == f"this checkpoint store belongs to process {parent.pid}, which was forked"
            with FileStore(tmp_path) as store:
                with pytest.raises(CheckpointTaken, match=f"held by pid {parent.pid} on"):
                    store.claim("orders")
                parent.kill()
                parent.wait()
                store.claim("orders")
        finally:
            os.kill(int(pid), signal.SIGKILL)


def test_a_store_is_opened_by_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    memory = MemoryStore()
    assert open_store(memory) is memory
    assert isinstance(open_store(None), MemoryStore)
    assert [open_store(place).folder for place in ("here", Path("here"), f"file://{tmp_path}/here")] == [
        tmp_path / "here"
    ] * 3


@pytest.mark.parametrize("wrong", ["ftp://there/x", 7, sys])
def test_what_is_no_store_is_refused_with_what_would_be(wrong):
    with pytest.raises(ConfigError, match="checkpoint store") as caught:
        open_store(wrong)
    assert "a folder" in caught.value.hint
