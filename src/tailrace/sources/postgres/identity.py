"""Which database this is: the server, its line of history, and the database on it, as the server itself says.

Protocol page: "Streaming Replication Protocol", IDENTIFY_SYSTEM and TIMELINE_HISTORY. Asked on the very connection that
streams, so that no other server can be behind the same name a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from psycopg import pq

from tailrace.errors import SourceChanged, SourceRefused
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.postgres.connection import connect
from tailrace.sources.postgres.positions import parse_lsn

_DATABASE = """
SELECT oid, (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint
FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
"""

_COMMITTED = """
SELECT pg_xact_status('{xid}'::xid8),
    CASE WHEN current_setting('track_commit_timestamp') = 'on'
        THEN (extract(epoch FROM pg_xact_commit_timestamp('{short}'::xid)) * 1000000)::bigint END
"""

History = Callable[[str], list[tuple[str, str]]]
"""Of a timeline: the ones that it came from, each with the position where it was left."""


class Newest(NamedTuple):
    """The last transaction that was read. `commit` is the place of its commit; 0 was written by an older version."""

    xid: int
    time_us: int
    commit: int

    @property
    def text(self) -> str:
        """As an identity has it."""
        return " ".join(map(str, self))


def newest_of(known: SourceIdentity) -> Newest | None:
    return Newest(*map(int, f"{known.newest} 0".split()[:3])) if known.newest else None


def identify(url: str, slot: str) -> SourceIdentity:
    with connect(url, replication=True) as connection:
        return identity_of(connection.pgconn, slot)


def identity_of(connection: Any, slot: str) -> SourceIdentity:
    """On a replication connection."""
    [(system, timeline, _, name)] = rows(connection, "IDENTIFY_SYSTEM")
    [(oid, life)] = rows(connection, _DATABASE)
    return SourceIdentity(system, timeline, f"{name} ({oid})", slot, life=life)


def check_same(connection: Any, known: SourceIdentity, position: str) -> SourceIdentity:
    """The present identity, if what was read up to `position` may be this database's own past; or SourceChanged.

    A copy that has gone on past that by itself, as far and with as many transactions, is for `witness` to tell.
    """
    now = identity_of(connection, known.slot)
    [(_, _, end, _)] = rows(connection, "IDENTIFY_SYSTEM")
    reason = difference(known, now, position, end, lambda timeline: _history(connection, timeline))
    reason = reason or _stranger(connection, newest_of(known))
    if reason is not None:
        raise SourceChanged(f"the source is not the database that was read before: {reason}")
    return msgspec.structs.replace(now, newest=known.newest)


def _stranger(connection: Any, last: Newest | None) -> str | None:
    """Why the server can not be the one that committed the transaction `last`; None if it can.

    Without `track_commit_timestamp` another transaction may have got the same number: then it can not be told here.
    """
    if last is None:
        return None
    xid, time_us, _ = last
    [(next_,)] = rows(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())")
    age = (int(next_) - xid) % (1 << 32)
    is_future = age == 0 or age >= 1 << 31
    status, at = ("", "") if is_future else rows(connection, _COMMITTED.format(xid=int(next_) - age, short=xid))[0]
    if is_future or status == "aborted" or (at and abs(int(at) - time_us) > 1):
        return f"transaction {xid}, which was read already, was not committed there: it was restored from a backup"
    return None


def difference(known: SourceIdentity, now: SourceIdentity, position: str, end: str, history: History) -> str | None:
    """Why `position` of the database `known` is not in the past of `now`, whose log ends at `end`; None if it is."""
    if known.system != now.system:
        return f"its server has the system identifier {now.system}, and that was {known.system}"
    if known.database != now.database:
        return f"its database is {now.database}, and that was {known.database}"
    if known.branch == now.branch:
        if position and parse_lsn(end) < parse_lsn(position):
            return f"its log ends at {end}, before {position}, which was read already: it was restored from a backup"
        return None
    left = dict(history(now.branch)).get(known.branch)
    if left is None:
        return f"its timeline {now.branch} does not come from timeline {known.branch}: it was restored from a backup"
    if position and parse_lsn(left) < parse_lsn(position):
        return (
            f"its timeline {now.branch} left timeline {known.branch} at {left}, before {position}, which was read"
            " already: a failover or a restored backup has lost changes that the sinks have"
        )
    return None


def _history(connection: Any, timeline: str) -> list[tuple[str, str]]:
    if timeline == "1":
        return []
    [(_, content)] = rows(connection, f"TIMELINE_HISTORY {int(timeline)}")
    lines = [line.split() for line in content.splitlines() if line.strip() and not line.startswith("#")]
    return [(parent, left) for parent, left, *_ in lines]


def rows(connection: Any, command: str) -> list[tuple[str, ...]]:
    """What a command of the replication protocol, or a query, answers."""
    result = connection.exec_(command.encode())
    if result.status != pq.ExecStatus.TUPLES_OK:
        reason = result.error_message.decode(errors="replace").strip()
        raise SourceRefused(f"PostgreSQL does not say who it is: {reason}")
    return [
        tuple((result.get_value(row, column) or b"").decode() for column in range(result.nfields))
        for row in range(result.ntuples)
    ]
