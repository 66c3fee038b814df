"""What every checkpoint store has to do, and a consumer may trust. Ours are held to it; so can be anybody else's.

Subclass it with a fixture `opened`: a function that opens the store, each time anew, always at the same place, which is
empty when a test begins. It pickles (`functools.partial`), because some tests open the store in another process.

    class TestMine(CheckpointContract):
        @pytest.fixture
        def opened(self, tmp_path):
            return functools.partial(MyStore, tmp_path)

A store in a database is held to `TransactionalContract`.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import IO, Any, cast

import msgspec
import pytest

from tailrace.checkpoints.base import CheckpointStore, TransactionalStore
from tailrace.errors import CheckpointRefused, CheckpointTaken, ConfigError, Misuse
from tailrace.model.checkpoint import Checkpoint, TableCopy
from tailrace.model.chunk import Chunk
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import SourceIdentity
from tailrace.testing.processes import wait_until

Opened = Callable[[], CheckpointStore]

SERVER = SourceIdentity("7301", "1", "shop (5)", "tailrace_shop", newest="741 9 88", life="1")
ORDERS = TableSchema(
    schema="public",
    name="orders",
    relation=16384,
    columns=(Column("id", ColumnType(Kind.INT64)), Column('odd "näme\\', ColumnType(Kind.TEXT))),
    key=("id",),
)
GOOD_NAMES = ["orders", "Orders", "_", "0", "a.b-c_d", "x.json", "x.lock", "n" * 100]
BAD_NAMES = ["", ".", "..", ".hidden", "-x", "a/b", "a\\b", "a b", "a\n", "ä", "a:b", "a\x00", "n" * 101]


def at(number: int, *, events: int | None = None, **other: object) -> Checkpoint:
    """The checkpoint of a PostgreSQL stream behind its byte of this number."""
    fields = {"kind": "postgresql", "position": f"0/{number:X}", "source": SERVER, **other}
    return Checkpoint(events=number if events is None else events, **fields)  # type: ignore[arg-type]  # kept short


class CheckpointContract:
    """`is_shared` is False for a store that other processes do not see."""

    is_shared = True

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError("a contract needs its own fixture `opened`")

    @pytest.fixture
    def forget_holder(self) -> Callable[[CheckpointStore, str], None]:
        """Makes the place of a store believe that the holder of a name is dead, while it lives."""
        pytest.skip("its holder can not be forgotten")

    @pytest.fixture
    def store(self, opened: Opened) -> Iterator[CheckpointStore]:
        store = opened()
        yield store
        store.close()

    # --- what is kept ------------------------------------------------------------------------------------------------

    def test_an_empty_store_has_nothing(self, store: CheckpointStore) -> None:
        assert (store.list(), store.load("orders"), store.age("orders"), store.delete("orders")) == (
            [],
            None,
            None,
            False,
        )

    def test_a_claim_alone_leaves_no_checkpoint(self, store: CheckpointStore) -> None:
        store.claim("orders")
        assert (store.list(), store.load("orders"), store.age("orders"), store.delete("orders")) == (
            [],
            None,
            None,
            False,
        )
        store.release("orders")
        assert store.list() == []

    def test_what_is_saved_is_loaded_exactly(self, store: CheckpointStore, opened: Opened) -> None:
        chunks = tuple(Chunk("public.orders", number, 9, place="(1, 'ä')") for number in range(3))
        copies = (TableCopy(ORDERS, chunks, "740:744:741", "id > 3", 2, is_paused=True, rows=17),)
        tables = {"public.items": "0a1b"}
        whole = at(
            7, skip=3, transaction="744", copies=copies, tables=tables, metadata={"é'\"\\": "%s ? \x00 \U0001f9a6"}
        )
        store.claim("orders")
        store.save("orders", whole)
        assert store.load("orders") == whole
        store.close()
        again = opened()
        assert again.load("orders") == whole
        again.close()

    def test_a_large_checkpoint_is_kept_whole(self, store: CheckpointStore) -> None:
        chunks = tuple(Chunk("public.orders", number, 1 << 24, "16384", "x" * 60) for number in range(20_000))
        large = at(7, copies=(TableCopy(ORDERS, chunks),))
        store.claim("orders")
        store.save("orders", large)
        assert store.load("orders") == large

    @pytest.mark.parametrize("name", GOOD_NAMES)
    def test_a_name_has_letters_digits_and_a_few_marks(self, store: CheckpointStore, name: str) -> None:
        store.claim(name)
        store.save(name, at(7))
        assert (store.load(name), store.list()) == (at(7), [name])

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_any_other_name_is_refused(self, store: CheckpointStore, name: str) -> None:
        for call in (store.claim, store.load, store.delete, store.age, partial(store.save, checkpoint=at(7))):
            with pytest.raises(ConfigError, match="can not be the name of a checkpoint"):
                call(name)
        assert store.list() == []

    def test_names_do_not_disturb_each_other(self, store: CheckpointStore) -> None:
        for number, name in enumerate(["b", "a", "A", "a.b"], 1):
            store.claim(name)
            store.save(name, at(number))
        assert store.list() == ["A", "a", "a.b", "b"]
        assert store.delete("a")
        assert store.list() == ["A", "a.b", "b"]
        assert [store.load(name) for name in ("b", "a", "A", "a.b")] == [at(1), None, at(3), at(4)]

    def test_the_age_counts_from_the_last_save(self, store: CheckpointStore) -> None:
        store.claim("orders")
        store.save("orders", at(1))
        before = time.monotonic()
        store.save("orders", at(2))
        age = store.age("orders")
        assert age is not None
        assert 0 <= age <= time.monotonic() - before + 1  # a second, for clocks that are two

    def test_what_is_deleted_is_gone_and_may_begin_anew(self, store: CheckpointStore) -> None:
        store.claim("orders")
        store.save("orders", at(9))
        assert (store.delete("orders"), store.delete("orders"), store.load("orders")) == (True, False, None)
        store.save("orders", at(1))
        assert store.load("orders") == at(1)

    def test_threads_save_beside_each_other(self, store: CheckpointStore) -> None:
        def work(name: str) -> None:
            store.claim(name)
            for number in range(1, 6):
                store.save(name, at(number))

        threads = [threading.Thread(target=work, args=[f"stream-{number}"]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.load(name) for name in store.list()] == [at(5)] * 4

    # --- what may follow what ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("present", "new"),
        [
            (at(7), at(7)),
            (at(7), at(9)),
            (at(7, events=3), at(9, events=3)),  # others wrote, and none of it was ours
            (at(7, skip=2, transaction="744"), at(7, events=9, skip=4, transaction="744")),
            (at(7, skip=2, transaction="744"), at(9)),
            (at(7, source=None), at(9)),  # seeded by hand
            (at(7), at(9, source=msgspec.structs.replace(SERVER, branch="2", newest="900 1 1", life="2"))),
            (at(7), at(9, kind="postgres")),
            (
                Checkpoint("mysql", "binlog.999999:900", 3),
                Checkpoint("mysql", "binlog.1000000:4", 4),
            ),
            (
                Checkpoint("mariadb", "0-1-100", 3, SERVER),
                Checkpoint("mariadb", "0-2-101", 4, msgspec.structs.replace(SERVER, system="7302")),
            ),
            (Checkpoint("mine", "what", 3), Checkpoint("mine", "ever", 3)),
        ],
    )
    def test_a_later_place_takes_over(self, store: CheckpointStore, present: Checkpoint, new: Checkpoint) -> None:
        store.claim("orders")
        store.save("orders", present)
        store.save("orders", new)
        assert store.load("orders") == new

    @pytest.mark.parametrize(
        ("present", "new", "why"),
        [
            (at(9), at(7, events=20), "would go back to 0/7"),
            (at(9), at(9, events=8), "counts 9 events, and would count 8"),
            (at(9, skip=4, transaction="744"), at(9, skip=3, transaction="744"), "would go back to 0/9 and 3 events"),
            (at(9, skip=4, transaction="744"), at(9, skip=5, transaction="745"), "745 is another one"),
            (at(9), at(10, source=msgspec.structs.replace(SERVER, system="7302")), "of server 7301.* and this is"),
            (at(9), at(10, source=msgspec.structs.replace(SERVER, database="crm (6)")), "database shop"),
            (at(9), at(10, source=msgspec.structs.replace(SERVER, slot="other")), "slot tailrace_shop"),
            (at(9), at(10, source=None), "it is not known which source"),
            (at(9), Checkpoint("mysql", "binlog.000001:4", 10), "belongs to a postgresql source"),
            (
                Checkpoint("mysql", "binlog.000001:4", 3),
                Checkpoint("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9", 4),
                "neither before nor after",
            ),
            (Checkpoint("mariadb", "0-1-9,1-1-4", 3), Checkpoint("mariadb", "0-1-8,1-1-5", 4), "neither before nor"),
        ],
    )
    def test_what_is_behind_or_of_another_source_is_refused(
        self, store: CheckpointStore, present: Checkpoint, new: Checkpoint, why: str
    ) -> None:
        store.claim("orders")
        store.save("orders", present)
        with pytest.raises(CheckpointRefused, match=why) as caught:
            store.save("orders", new)
        assert caught.value.hint
        assert store.load("orders") == present

    @pytest.mark.parametrize(
        "wrong", [at(0), at(7, position="seven"), at(7, position=""), at(7, events=-1), at(7, skip=1), at(7, skip=-1)]
    )
    def test_what_nobody_can_have_reached_is_refused(self, store: CheckpointStore, wrong: Checkpoint) -> None:
        store.claim("orders")
        with pytest.raises(CheckpointRefused, match="checkpoint orders"):
            store.save("orders", wrong)
        assert store.load("orders") is None

    # --- one writer --------------------------------------------------------------------------------------------------

    def test_nothing_is_saved_without_a_claim(self, store: CheckpointStore) -> None:
        with pytest.raises(Misuse, match="orders"):
            store.save("orders", at(7))
        assert store.list() == []

    def test_a_name_has_one_holder_and_the_other_is_told_who(self, store: CheckpointStore, opened: Opened) -> None:
        store.claim("orders")
        store.save("orders", at(7))
        other = opened()
        for call in (other.claim, other.delete) if other is not store else (other.claim,):
            with pytest.raises(CheckpointTaken, match=r"checkpoint orders is held by .*(pid|process)"):
                call("orders")
        assert other.load("orders") == at(7), "readers are not kept out"
        other.claim("invoices")
        store.save("orders", at(9))
        store.release("orders")
        store.release("orders")
        other.claim("orders")
        other.save("orders", at(10))
        other.close()

    def test_closing_lets_go_of_all_names(self, store: CheckpointStore, opened: Opened) -> None:
        for name in ("a", "b"):
            store.claim(name)
            store.save(name, at(7))
        store.close()
        store.close()
        other = opened()
        for name in ("a", "b"):
            other.claim(name)
        other.close()

    def test_of_several_who_come_at_once_one_gets_it(self, opened: Opened) -> None:
        stores = [opened() for _ in range(4)]
        together, got, refused = threading.Barrier(4), [], []

        def claim(store: CheckpointStore) -> None:
            together.wait()
            try:
                store.claim("orders")
                got.append(store)
            except CheckpointTaken as error:
                refused.append(error)

        threads = [threading.Thread(target=claim, args=[store]) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(refused)) == (1, 3)
        got[0].save("orders", at(7))
        for store in stores:
            store.close()

    def test_a_holder_that_was_replaced_writes_no_more(
        self, store: CheckpointStore, opened: Opened, forget_holder: Callable[[CheckpointStore, str], None]
    ) -> None:
        store.claim("orders")
        store.save("orders", at(7))
        forget_holder(store, "orders")
        other = opened()
        other.claim("orders")
        for new in (at(8), at(9)):
            with pytest.raises(CheckpointTaken, match=r"checkpoint orders was taken over by .*pid"):
                store.save("orders", new)
        assert other.load("orders") == at(7)
        store.release("orders")
        other.save("orders", at(10))
        other.close()

    def test_a_holder_that_was_replaced_before_its_first_save_writes_nothing(
        self, store: CheckpointStore, opened: Opened, forget_holder: Callable[[CheckpointStore, str], None]
    ) -> None:
        store.claim("orders")
        forget_holder(store, "orders")
        other = opened()
        other.claim("orders")
        with pytest.raises(CheckpointTaken, match="taken over"):
            store.save("orders", at(8))
        assert other.load("orders") is None
        other.close()

    # --- processes that die ------------------------------------------------------------------------------------------

    @pytest.mark.crash
    @pytest.mark.parametrize("saves", [1, 40])
    def test_a_killed_holder_leaves_its_last_checkpoint_to_the_next(self, opened: Opened, saves: int) -> None:
        """It is killed at any moment of a save: what it was told is there, and at most the one under way."""
        if not self.is_shared:
            pytest.skip("no other process sees it")
        with child(partial(save_always, opened, "orders")) as (process, answers):
            last = [int(next(answers)) for _ in range(saves)][-1]
            assert isinstance(said_by(opened, "orders"), CheckpointTaken)
            process.kill()
            process.wait()
            last = max([last, *map(int, answers)])
        store = opened()
        wait_until(lambda: claimed(store, "orders"), seconds=120, what="the name to be free", every=0.1)
        found = store.load("orders")
        assert found is not None
        assert found in (at(last), at(last + 1))
        store.save("orders", at(last + 2))
        assert store.load("orders") == at(last + 2)
        store.close()


class TransactionalContract(CheckpointContract):
    """Also of stores that write in the user's own transaction, whose `mine (id INTEGER)` is in the same database."""

    @pytest.fixture
    def connected(self) -> Callable[[], Any]:
        """A function that opens a connection of the user's, of any number, that does not commit by itself."""
        raise NotImplementedError("a contract needs its own fixture `connected`")

    @pytest.fixture
    def connection(self, connected: Callable[[], Any]) -> Iterator[Any]:
        connection = connected()
        yield connection
        connection.close()

    @pytest.fixture
    def held(self, opened: Opened) -> Iterator[TransactionalStore]:
        """Has `orders`, at 7."""
        store = cast(TransactionalStore, opened())
        store.claim("orders")
        store.save("orders", at(7))
        yield store
        store.close()

    def test_rows_and_checkpoint_are_committed_together(
        self, held: TransactionalStore, connection: Any, opened: Opened
    ) -> None:
        wrote(connection, 1)
        held.save_within(connection, "orders", at(8))
        watching = opened()
        assert watching.load("orders") == at(7), "nothing is there yet"
        connection.commit()
        assert (watching.load("orders"), rows_of(connection)) == (at(8), [1])
        watching.close()
        assert held.load("orders") == at(8)
        held.save("orders", at(9))

    def test_rows_and_checkpoint_are_rolled_back_together(self, held: TransactionalStore, connection: Any) -> None:
        wrote(connection, 1)
        held.save_within(connection, "orders", at(8))
        connection.rollback()
        assert (held.load("orders"), rows_of(connection)) == (at(7), [])
        wrote(connection, 2)
        held.save_within(connection, "orders", at(8))
        connection.commit()
        assert (held.load("orders"), rows_of(connection)) == (at(8), [2])

    def test_a_transaction_may_hold_several_saves_and_begin_with_one(
        self, held: TransactionalStore, connection: Any
    ) -> None:
        held.save_within(connection, "orders", at(8))
        wrote(connection, 1)
        held.save_within(connection, "orders", at(9))
        connection.commit()
        assert (held.load("orders"), rows_of(connection)) == (at(9), [1])

    def test_what_may_not_follow_is_refused_and_the_rest_can_still_be_rolled_back(
        self, held: TransactionalStore, connection: Any
    ) -> None:
        wrote(connection, 1)
        with pytest.raises(CheckpointRefused, match="would go back"):
            held.save_within(connection, "orders", at(6, events=9))
        connection.rollback()
        assert (held.load("orders"), rows_of(connection)) == (at(7), [])

    def test_nothing_is_saved_within_without_a_claim(self, held: TransactionalStore, connection: Any) -> None:
        with pytest.raises(Misuse, match="invoices"):
            held.save_within(connection, "invoices", at(8))

    def test_a_holder_that_was_replaced_writes_no_more_within_either(
        self,
        held: TransactionalStore,
        connection: Any,
        opened: Opened,
        forget_holder: Callable[[CheckpointStore, str], None],
    ) -> None:
        forget_holder(held, "orders")
        other = opened()
        other.claim("orders")
        wrote(connection, 1)
        with pytest.raises(CheckpointTaken, match="taken over"):
            held.save_within(connection, "orders", at(8))
        connection.rollback()
        assert (other.load("orders"), rows_of(connection)) == (at(7), [])
        other.close()

    @pytest.mark.crash
    def test_a_killed_consumer_has_written_each_number_once(
        self, opened: Opened, connected: Callable[[], Any], connection: Any
    ) -> None:
        """Three are killed, one after the other, each at some moment: every number is there, none is twice."""
        told = 0
        for _ in range(3):
            with child(partial(count_within, opened, connected)) as (process, answers):
                told = [int(next(answers)) for _ in range(7)][-1]
                process.kill()
                process.wait()
                told = max([told, *map(int, answers)])
        store = cast(TransactionalStore, opened())
        wait_until(lambda: claimed(store, "orders"), seconds=120, what="the name to be free", every=0.1)
        found = store.load("orders")
        assert found is not None
        assert found.events in (told, told + 1)
        assert rows_of(connection) == list(range(1, found.events + 1))
        store.close()


def count_within(opened: Opened, connected: Callable[[], Any]) -> None:
    """A consumer whose rows are the numbers of its checkpoints."""
    store, connection = cast(TransactionalStore, opened()), connected()
    wait_until(lambda: claimed(store, "orders"), seconds=120, what="the name to be free", every=0.1)
    present = store.load("orders")
    for number in count(present.events + 1 if present else 1):
        wrote(connection, number)
        store.save_within(connection, "orders", at(number))
        connection.commit()
        print(number, flush=True)  # noqa: T201 - this is how it is heard


def wrote(connection: Any, number: int) -> None:
    connection.cursor().execute(f"INSERT INTO mine VALUES ({number})")


def rows_of(connection: Any) -> list[int]:
    cursor = connection.cursor()
    cursor.execute("SELECT id FROM mine ORDER BY id")
    found = [row[0] for row in cursor.fetchall()]
    connection.rollback()
    return found


def save_always(opened: Opened, name: str) -> None:
    """What a child does: it says the number of each checkpoint once it is durable."""
    store = opened()
    store.claim(name)
    for number in count(1):
        store.save(name, at(number))
        print(number, flush=True)  # noqa: T201 - this is how it is heard


@contextmanager
def child(work: Callable[[], None]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process that does `work`, and what it says. It is killed at the end."""
    program = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); pickle.load(sys.stdin.buffer)()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(work))
        process.stdin.flush()
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def said_by(opened: Opened, name: str) -> Exception | None:
    """What a claim is answered."""
    store = opened()
    try:
        store.claim(name)
    except CheckpointTaken as error:
        return error
    finally:
        store.close()
    return None


def claimed(store: CheckpointStore, name: str) -> bool:
    try:
        store.claim(name)
    except CheckpointTaken:
        return False
    return True
