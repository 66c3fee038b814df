"""One moment of a server, which many sessions see: a consistent snapshot that begins in all between two commits.

No session can be given another's snapshot. So they begin theirs at the same time, and the log is looked at before and
after: if nothing was written to it in between, and nothing was on its way into the tables before, all of them see the
same, and it is known what. A commit takes longer than that, so a moment is found on a busy server as well, after a few
attempts. On one that never rests the snapshots differ by a few transactions. Rows that have a key become equal all the
same, by the changes since the earliest of them.

- MySQL: what is in the log but not yet in the tables has its GTID in `gtid_owned`. Without GTIDs no moment is exact.
- MariaDB: each snapshot knows its own place in the log, `binlog_snapshot_file` and `binlog_snapshot_position`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import msgspec
from pymysql.connections import Connection
from pymysql.constants import COMMAND
from pymysql.err import MySQLError

from tailrace.errors import SourceUnavailable
from tailrace.sources.mysql.connection import (
    Server,
    code_of,
    connect,
    global_value,
    read_server,
    rows,
    source_errors,
)
from tailrace.sources.mysql.positions import current_position, file_position
from tailrace.sources.mysql.settings import Moment

PATIENCE_SECONDS = 5.0
LOCK_PATIENCE_SECONDS = 30.0
SETTLE_SECONDS = 2.0
"""Without GTIDs nobody tells which commits are on their way from the log into the tables: how long one may take. One
that waits for a semi-synchronous replica takes longer: such a server is read with `moment: lock`.
"""
_LOCK_TIMEOUT = 1205
IDLE_SECONDS = 86_400.0
_BEGIN = b"START TRANSACTION WITH CONSISTENT SNAPSHOT"
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_PLACE = "SHOW STATUS WHERE Variable_name IN ('binlog_snapshot_file', 'binlog_snapshot_position')"


class Seen(msgspec.Struct, frozen=True):
    """What the sessions see: all of `visibility`, and nothing past `position`; `is_exact` if that is the same."""

    visibility: str
    position: str
    is_exact: bool


@contextmanager
def sessions_at_one_moment(url: str, count: int, moment: Moment) -> Iterator[tuple[list[Connection[Any]], Seen]]:
    """Sessions whose transactions read the same, for as long as the context lasts."""
    with ExitStack() as held:
        with source_errors(url, "beginning a snapshot"):
            control = held.enter_context(closing(connect(url)))
            opened = [held.enter_context(closing(_session(url))) for _ in range(count)]
            server = read_server(control)
            find = _locked if moment is Moment.LOCK else _between_commits
            seen = find(control, server, opened)
        yield opened, seen


def _session(url: str) -> Connection[Any]:
    connection = connect(url, read_seconds=IDLE_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute(_ISOLATION)
    return connection


def _between_commits(control: Connection[Any], server: Server, sessions: Sequence[Connection[Any]]) -> Seen:
    if not server.is_mariadb and not server.has_gtids:
        return _without_gtids(control, sessions)
    deadline = time.monotonic() + PATIENCE_SECONDS
    attempt = _attempt_mariadb if server.is_mariadb else _attempt_mysql
    while True:
        seen = attempt(control, server, sessions)
        if seen.is_exact:
            return seen
        if time.monotonic() > deadline:
            return seen if server.is_mariadb else _behind_all(control, server, seen)


def _attempt_mysql(control: Connection[Any], server: Server, sessions: Sequence[Connection[Any]]) -> Seen:
    before = file_position(control)
    is_settled = not _owned(control)
    low = current_position(control, server)
    _begin(sessions)
    return Seen(low, low, is_exact=is_settled and before == file_position(control))


def _behind_all(control: Connection[Any], server: Server, seen: Seen) -> Seen:
    """With a place behind all that may be seen: what is on its way into the tables is waited for."""
    awaited, deadline = _owned(control), time.monotonic() + PATIENCE_SECONDS
    while awaited & _owned(control):
        if time.monotonic() > deadline:
            raise SourceUnavailable("transactions are in the log, and wait to be in the tables: for a replica, maybe")
        time.sleep(0.005)
    return Seen(seen.visibility, current_position(control, server), is_exact=False)


def _without_gtids(control: Connection[Any], sessions: Sequence[Connection[Any]]) -> Seen:
    """Never exact: nobody tells which transactions are in the log, and not yet in the tables."""
    low = file_position(control)
    time.sleep(SETTLE_SECONDS)
    _begin(sessions)
    return Seen(low, file_position(control), is_exact=False)


def _owned(control: Connection[Any]) -> set[str]:
    """The transactions that are being committed, one by one: `uuid:5#14:6#15` are two, with the threads' numbers."""
    found = set()
    for each in filter(None, global_value(control, "gtid_owned").split(",")):
        server, *numbers = each.strip().split(":")
        found |= {f"{server}:{number}" for number in numbers}
    return found


def _attempt_mariadb(control: Connection[Any], server: Server, sessions: Sequence[Connection[Any]]) -> Seen:
    _begin(sessions)
    places = sorted({_place(session) for session in sessions}, key=lambda place: (place[0].rpartition(".")[2], place))
    low, high = (_position(control, server, place) for place in (places[0], places[-1]))
    return Seen(low, high, is_exact=len(places) == 1)


def _place(session: Connection[Any]) -> tuple[str, int]:
    found = {str(name).lower(): value for name, value in rows(session, _PLACE)}
    return str(found["binlog_snapshot_file"]), int(found["binlog_snapshot_position"])


def _position(control: Connection[Any], server: Server, place: tuple[str, int]) -> str:
    if not server.has_gtids:
        return f"{place[0]}:{place[1]}"
    return str(rows(control, "SELECT BINLOG_GTID_POS(%s, %s)", place)[0][0])


def _locked(control: Connection[Any], server: Server, sessions: Sequence[Connection[Any]]) -> Seen:
    with control.cursor() as cursor:
        _lock(cursor)
        try:
            _begin(sessions)
            position = current_position(control, server)
        finally:
            cursor.execute("UNLOCK TABLES")
    return Seen(position, position, is_exact=True)


def _lock(cursor: Any) -> None:
    """Gives up soon and tries again: while it waits for a long query, all writers wait for it."""
    cursor.execute("SET SESSION lock_wait_timeout = 1")
    deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            return
        except MySQLError as error:
            if code_of(error) != _LOCK_TIMEOUT or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def _begin(sessions: Sequence[Connection[Any]]) -> None:
    """All of them are asked before any is listened to."""
    asked: list[Any] = list(sessions)  # the stubs know nothing of its insides
    for session in asked:
        session._execute_command(COMMAND.COM_QUERY, _BEGIN)
    for session in asked:
        session._read_query_result()
