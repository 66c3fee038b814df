"""Checkpoints as rows of a table, which the first claim makes.

The fence is a row's `token`: a claim writes its own, and nobody saves whose token is not there any more, whatever he
believes. Whether a holder lives, its lock tells, which ends with its session. So a dead one is replaced at once, and
one whose connection was lost goes on if nobody came.

`save` has a connection of its own, or the user's while he has no transaction open: it commits. `save_within` is part
of the user's transaction: his rows and the checkpoint are there together, or neither is. In a transaction of his that
is open nothing is read: it would show what he may yet roll back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import msgspec

from tailrace import failpoints
from tailrace.checkpoints.holders import Holder, replaced, taken, this_process, told
from tailrace.checkpoints.record import decoded, encoded
from tailrace.checkpoints.sql.database import Connection, Database
from tailrace.checkpoints.store import Check, Store
from tailrace.checkpoints.succession import check_succession
from tailrace.errors import CheckpointRefused, ConfigError, Misuse, StateError, StateUnavailable
from tailrace.model.checkpoint import Checkpoint

TABLE = "tailrace_checkpoints"
T = TypeVar("T")


class Hold(msgspec.Struct):
    """A claim of ours, and the lock that shows that we live; None where it was lost with its connection.

    `known` are the records that may be there: what was read last, and what was written since. None before that.
    """

    holder: Holder
    lock: Any
    known: set[str | None] | None = None


class SqlStore(Store[Hold]):
    """A TransactionalStore at `database`; over the user's `connection` if he gives one, which stays his to close."""

    def __init__(self, database: Database, connection: Connection | None = None, table: str = TABLE) -> None:
        super().__init__()
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", table, re.ASCII):
            raise ConfigError(f"{table!r} can not be the table of checkpoints", hint="use letters, digits and `_`")
        self._database, self._given = database, connection
        self._own: Connection | None = None
        self._bare, self._table = table, ""
        if connection is not None:
            database.check_ours(connection)

    def __repr__(self) -> str:
        return f"SqlStore({self._database.where!r})"

    def save_within(self, connection: Connection, name: str, checkpoint: Checkpoint) -> None:
        """Raises Misuse where the connection would commit it alone."""
        with self._turn(name):
            hold = self._hold(name)
            self._database.check_ours(connection)
            with self._explained(connection):
                if not self._database.join_transaction(connection):
                    raise Misuse(
                        f"the connection has no transaction open, and would commit checkpoint {name} alone",
                        hint="begin a transaction, write your rows in it, acknowledge, commit",
                    )
                self._replace_within(connection, name, hold, checkpoint)

    def load(self, name: str) -> Checkpoint | None:
        with self._turn(name):
            data = self._read(name)
            if name in self._holds:
                self._holds[name].known = {data}
            return None if data is None else decoded(name, data)

    def is_open(self, connection: Connection) -> bool:
        """A connection that is closed has none: what was not committed is gone."""
        try:
            return self._database.has_transaction(connection)
        except Exception as error:
            if self._database.explain(error, connection) is None:
                raise
            return False

    def close(self) -> None:
        super().close()
        self._disconnect()

    # --- what a store does -------------------------------------------------------------------------------------------

    def _take(self, name: str) -> Hold:
        return self._run(lambda connection: self._claimed(connection, name))

    def _claimed(self, connection: Connection, name: str) -> Hold:
        self._make_table(connection)
        with self._database.transaction(connection, is_writing=False):
            lock = self._database.take(connection, self._key(name), name)
        if lock is None:
            raise taken(name, self._holder(connection, name), "it is let go when that session ends")
        try:
            holder = this_process(self._database.session(connection))
            with self._database.transaction(connection):
                self._sign(connection, name, holder)
        except BaseException:
            self._drop(connection, name, lock)
            raise
        return Hold(holder, lock)

    def _sign(self, connection: Connection, name: str, holder: Holder) -> None:
        signed = [holder.token, msgspec.json.encode(holder).decode(), name]
        statement = f"INSERT INTO {self._table} (token, holder, name) VALUES (%s, %s, %s)"
        if self._row(connection, name) is not None:
            statement = f"UPDATE {self._table} SET token = %s, holder = %s WHERE name = %s"
        self._database.execute(connection, statement, signed)

    def _let_go(self, name: str, hold: Hold) -> None:
        """Nothing of it is needed for the next one to come: a connection that is gone, or busy, is left alone."""
        connection = self._own if self._given is None else self._given
        if connection is None:
            return
        with suppress(Exception):
            if not self._database.has_transaction(connection):
                with self._database.transaction(connection):
                    self._unsign(connection, name, hold)
        self._drop(connection, name, hold.lock)

    def _unsign(self, connection: Connection, name: str, hold: Hold) -> None:
        ours = [name, hold.holder.token]
        where = "WHERE name = %s AND token = %s"
        self._database.execute(connection, f"DELETE FROM {self._table} {where} AND record IS NULL", ours)
        self._database.execute(connection, f"UPDATE {self._table} SET holder = '' {where}", ours)

    def _drop(self, connection: Connection, name: str, lock: Any) -> None:
        if lock is None:
            return
        is_busy = self._database.has_transaction(connection)
        briefly = nullcontext() if is_busy else self._database.transaction(connection, is_writing=False)
        with suppress(Exception), briefly:  # a lock ends with its session
            self._database.let_go(connection, self._key(name), lock)

    def _read(self, name: str) -> str | None:
        rows = self._select("record", "name = %s AND record IS NOT NULL", [name])
        return rows[0][0] if rows else None

    def age(self, name: str) -> float | None:
        with self._turn(name):
            rows = self._select(self._database.age, "name = %s AND record IS NOT NULL", [name])
            return max(float(rows[0][0]), 0.0) if rows else None

    def _names(self) -> Iterable[str]:
        return [name for (name,) in self._select("name", "record IS NOT NULL", [])]

    def _write(self, name: str, hold: Hold, checkpoint: Checkpoint, check: Check) -> None:
        def work(connection: Connection) -> None:
            with self._database.transaction(connection):
                written = self._replace(connection, name, hold, checkpoint, check)
                failpoints.reached("checkpoint-before-commit")
            hold.known = {written}
            failpoints.reached("checkpoint-saved")

        self._run(work)

    def _replace(self, connection: Connection, name: str, hold: Hold, checkpoint: Checkpoint, check: Check) -> str:
        """The record that is there then."""
        self._database.check(hold.lock)
        record = self._ours(connection, name, hold)
        check(None if record is None else decoded(name, record))
        statement = f"UPDATE {self._table} SET record = %s, saved_at = {self._database.now} WHERE name = %s"
        written = encoded(name, checkpoint).decode()
        self._database.execute(connection, statement, [written, name])
        return written

    def _replace_within(self, connection: Connection, name: str, hold: Hold, checkpoint: Checkpoint) -> None:
        """A commit whose answer was lost may be done long after: what it wrote would be there twice."""
        record = self._ours(connection, name, hold)
        if hold.known is not None and record not in hold.known:
            error = CheckpointRefused(
                f"checkpoint {name} is another than when it was read: a transaction that seemed lost was committed",
                hint="roll this one back, and poll again",
            )
            error.retry = True
            raise error
        written = self._replace(
            connection, name, hold, checkpoint, lambda present: check_succession(name, present, checkpoint)
        )
        hold.known = {*(hold.known or {record}), written}

    def _remove(self, name: str, hold: Hold) -> bool:
        def work(connection: Connection) -> bool:
            with self._database.transaction(connection):
                record = self._ours(connection, name, hold)
                self._database.execute(connection, f"UPDATE {self._table} SET record = NULL WHERE name = %s", [name])
            return record is not None

        return self._run(work)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _ours(self, connection: Connection, name: str, hold: Hold) -> str | None:
        """The present record, of a row that nobody else can have until the transaction ends."""
        row = self._row(connection, name)
        if row is None:
            raise Misuse(
                f"table {self._table} has no row of checkpoint {name}, which was claimed",
                hint="is the connection to the database that the store is in? was the row deleted by hand?",
            )
        record, token, holder = row
        if token != hold.holder.token:
            raise replaced(name, told(holder))
        return record

    def _row(self, connection: Connection, name: str) -> tuple[str | None, str, str] | None:
        statement = f"SELECT record, token, holder FROM {self._table} WHERE name = %s{self._database.for_update}"
        rows: list[Any] = self._database.execute(connection, statement, [name])
        return rows[0] if rows else None

    def _holder(self, connection: Connection, name: str) -> Holder | None:
        statement = f"SELECT holder FROM {self._table} WHERE name = %s"
        with self._database.transaction(connection, is_writing=False):
            rows = self._database.execute(connection, statement, [name])
        return told(rows[0][0]) if rows else None

    def _select(self, what: str, where: str, parameters: list[str]) -> list[tuple[Any, ...]]:
        """What is committed. Nothing is made: a table that is not there is empty."""

        def work(connection: Connection) -> list[tuple[Any, ...]]:
            with self._database.transaction(connection, is_writing=False):
                table, is_there = self._database.found(connection, self._bare)
                statement = f"SELECT {what} FROM {table} WHERE {where}"
                return self._database.execute(connection, statement, parameters) if is_there else []

        return self._run(work)

    def _make_table(self, connection: Connection) -> None:
        with self._database.transaction(connection, is_writing=False):
            self._table, is_there = self._database.found(connection, self._bare)
        if not is_there:
            statement = f"CREATE TABLE {self._table} ({self._database.columns}){self._database.suffix}"
            try:
                with self._database.transaction(connection):
                    self._database.execute(connection, statement)
            except Exception:
                with self._database.transaction(connection, is_writing=False):
                    _, is_there = self._database.found(connection, self._bare)
                if not is_there:  # or somebody else has just made it
                    raise

    def _key(self, name: str) -> str:
        return f"{self._table}/{name}"

    # --- connections -------------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[Connection], T]) -> T:
        """Do what may be done twice: a connection of ours may have been cut since it was last used."""
        if self._given is not None:
            self._check_idle(self._given)
            with self._explained(self._given):
                return work(self._given)
        if self._own is not None:
            try:
                with self._explained(self._own):
                    return work(self._own)
            except StateUnavailable as error:
                if not self._is_gone(error.__cause__):
                    raise
                self._abandon()
        connection = self._connected()
        with self._explained(connection):
            return work(connection)

    def _connected(self) -> Connection:
        """With the locks of what we hold, as far as they can be had: the token decides."""
        with self._explained(None):
            self._own = self._database.connect()
        for name, hold in self._holds.items():
            if hold.lock is None:
                with suppress(Exception):
                    hold.lock = self._database.take(self._own, self._key(name), name)
        return self._own

    def _abandon(self) -> None:
        self._disconnect()
        for hold in self._holds.values():
            hold.lock = None

    def _disconnect(self) -> None:
        if self._own is not None:
            with suppress(Exception):
                self._own.close()
            self._own = None

    def _is_gone(self, error: BaseException | None) -> bool:
        found = self._database.explain(error, self._own) if error is not None else None
        return found is not None and found.is_gone

    def _check_idle(self, connection: Connection) -> None:
        if self._database.has_transaction(connection):
            raise Misuse(
                "the connection of the checkpoint store has a transaction open, which is not ours to end",
                hint="commit it or roll it back first; or open the store by its URL, with a connection of its own",
            )

    @contextmanager
    def _explained(self, connection: Connection | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = self._database.explain(error, connection)
            if found is None:
                raise
            kind = StateUnavailable if found.may_pass else StateError
            raise kind(f"cannot use the checkpoints in {self._database.where}: {found.words}") from error
