"""rivven-cdc's tests of its checkpoint stores (crates/rivven-cdc/src/common/checkpoint.rs, ff11bcd), answered by name.

Where it has a store in memory and one in a folder, ours are tried in every kind, on real servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.seeds import answered, answers
from support.stores import object_store
from tailrace.checkpoints import CheckpointStore, MemoryStore, open_store
from tailrace.errors import CheckpointRefused, ConfigError
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.positions import Binlog, GtidSet, Lsn, parse

THEIRS = {
    "test_postgres_lsn_checkpoint",
    "test_mysql_binlog_checkpoint",
    "test_gtid_checkpoint",
    "test_checkpoint_metadata",
    "test_parse_postgres_lsn",
    "test_memory_checkpoint_store",
    "test_persistent_checkpoint_store",
    "test_checkpoint_store_invalid_key",
    "test_checkpoint_age",
    "test_checkpoint_backend_trait",
}

POSTGRES = Checkpoint("postgresql", "0/1234", 1)
MYSQL = Checkpoint("mysql", "mysql-bin.000001:1234", 1)
SERVER = pytest.mark.server
KINDS = [
    "folder",
    "sqlite",
    *(pytest.param(kind, marks=SERVER) for kind in ("postgres", "mysql", "mariadb", "objects")),
]

Opened = Callable[[], CheckpointStore]


@pytest.fixture(scope="module")
def address() -> Iterator[Callable[[str], str]]:
    with object_store() as address:
        yield address


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens a store that lasts, each time anew."""
    match request.param:
        case "folder":
            place = str(tmp_path / "places")
        case "sqlite":
            place = f"sqlite:///{tmp_path}/mine.db"
        case "objects":
            place = request.getfixturevalue("address")(request.node.name)
        case kind:
            place = request.getfixturevalue(f"{kind}_url")
    return lambda: open_store(place)


def test_every_test_of_theirs_is_answered():
    assert sorted(answered(globals())) == sorted(THEIRS)


@answers("test_postgres_lsn_checkpoint")
def test_a_log_sequence_number_is_a_position_of_postgresql():
    assert str(Lsn(0x0000000112345678)) == "1/12345678"
    assert parse("postgres", "1/12345678") == Lsn(0x0000000112345678)


@answers("test_mysql_binlog_checkpoint")
def test_a_binlog_file_and_position_is_one_of_mysql():
    assert str(Binlog("mysql-bin", "000003", 12345)) == "mysql-bin.000003:12345"
    assert parse("mysql", "mysql-bin.000003:12345") == Binlog("mysql-bin", "000003", 12345)


@answers("test_gtid_checkpoint")
def test_a_gtid_set_is_one_of_mysql():
    found = parse("mysql", "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5")
    assert found == GtidSet({"3e11fa47-71ca-11e1-9e33-c80aa9429562": ((1, 5),)})


@answers("test_checkpoint_metadata")
def test_a_checkpoint_keeps_its_transaction_and_what_the_user_says(opened):
    mine = Checkpoint("postgresql", "0/1234", 5, skip=2, transaction="txn-123", metadata={"table": "users"})
    with opened() as store:
        store.claim("test")
        store.save("test", mine)
    with opened() as store:
        found = store.load("test")
    assert (found.transaction, found.metadata) == ("txn-123", {"table": "users"})


@answers("test_parse_postgres_lsn")
def test_what_is_no_log_sequence_number_is_refused():
    assert parse("postgresql", "0/12345678") == Lsn(0x12345678)
    assert parse("postgresql", "1/0") == Lsn(0x100000000)
    with pytest.raises(ConfigError, match="'invalid' is no position of a postgresql source"):
        parse("postgresql", "invalid")


@answers("test_memory_checkpoint_store")
def test_a_store_in_memory_saves_loads_lists_and_deletes():
    store = MemoryStore()
    store.claim("test-key")
    store.save("test-key", POSTGRES)
    assert (store.load("test-key"), store.list()) == (POSTGRES, ["test-key"])
    assert store.delete("test-key")
    assert store.load("test-key") is None


@answers("test_persistent_checkpoint_store")
def test_a_store_that_was_opened_again_has_what_was_saved(opened):
    with opened() as store:
        store.claim("mysql-test")
        store.save("mysql-test", MYSQL)
    with opened() as again:
        assert again.load("mysql-test") == MYSQL


@answers("test_checkpoint_store_invalid_key")
@pytest.mark.parametrize("name", ["", "foo/bar", "foo\\bar"])
def test_a_name_that_could_lead_elsewhere_is_refused(opened, name):
    with opened() as store:
        for call in (lambda: store.claim(name), lambda: store.save(name, POSTGRES), lambda: store.load(name)):
            with pytest.raises(ConfigError, match="can not be the name of a checkpoint"):
                call()
        assert store.list() == []


@answers("test_checkpoint_age")
def test_the_age_of_a_checkpoint_is_the_time_since_it_was_saved(opened):
    """Theirs sets a time stamp back by an hour; ours waits until the store has seen a part of a second pass."""
    with opened() as store:
        store.claim("test")
        before = time.monotonic()
        store.save("test", POSTGRES)
        first = store.age("test")
        assert 0 <= first <= time.monotonic() - before + 1  # a second, for clocks that are two
        while store.age("test") < first + 0.2:
            time.sleep(0.01)
        store.save("test", POSTGRES)
        assert store.age("test") <= time.monotonic() - before + 1


@answers("test_checkpoint_backend_trait")
def test_every_kind_of_store_is_used_through_one_protocol(opened):
    def consumer(store: CheckpointStore) -> Checkpoint | None:
        store.claim("trait-test")
        store.save("trait-test", Checkpoint("postgresql", "0/5678", 1))
        return store.load("trait-test")

    for store in (MemoryStore(), opened()):
        assert consumer(store) == Checkpoint("postgresql", "0/5678", 1)
        store.close()


def test_what_theirs_takes_and_resumes_from_is_refused_here(opened):
    """A position that goes back, or is of another database, would be resumed from in silence."""
    with opened() as store:
        store.claim("test")
        store.save("test", POSTGRES)
        for wrong in (Checkpoint("postgresql", "0/1000", 2), MYSQL, Checkpoint("postgresql", "invalid", 2)):
            with pytest.raises(CheckpointRefused):
                store.save("test", wrong)
        assert store.load("test") == POSTGRES
