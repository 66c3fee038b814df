"""Places in a server's binary log: asked for, compared, and written for each transaction of a stretch.

A place is a set of GTIDs where transactions have names (MySQL: `uuid:1-5`; MariaDB: the last of each domain, `0-1-5`),
else a file and a byte in it. `model.positions` reads and compares them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pymysql.connections import Connection

from tailrace.errors import PositionLost, SourceChanged, SourceRefused
from tailrace.model.positions import Binlog, GtidSet, MariaDbGtids
from tailrace.sources.mysql.connection import Server, code_of, global_value, rows

Place = GtidSet | MariaDbGtids | Binlog
_SYNTAX_ERROR = 1064


def parse(text: str) -> Place:
    """No text is of two forms."""
    for form in (Binlog, GtidSet, MariaDbGtids):
        if (found := form.parse(text)) is not None:
            return found
    raise PositionLost(f"{text!r} is no place of a binary log")


def is_global(text: str) -> bool:
    """Whether it means the same on all replicas of a server."""
    return parse(text).is_global


def reached(position: str, target: str) -> bool:
    """Raises SourceChanged for places of two forms, of which none is ever behind the other."""
    if position == target:
        return True
    one, other = parse(position), parse(target)
    if type(one) is not type(other):
        raise SourceChanged(
            f"{position} and {target} are places of two kinds: GTIDs were switched on or off at the server, or it is"
            " another one",
            hint="switch them back, or begin anew; all tables are copied then",
        )
    return one.contains(other)  # type: ignore[arg-type]  # of one type, as was just seen


def distance(position: str, target: str) -> int:
    """Bytes between two places of one file, else something like it: transactions, or files of their usual size."""
    one, other = parse(position), parse(target)
    if isinstance(one, Binlog) and isinstance(other, Binlog):
        files = int(other.digits) - int(one.digits)
        return max((files << 30) + other.offset - one.offset, 0)
    return max(_count(other) - _count(one), 0)


def _count(place: Place) -> int:
    match place:
        case GtidSet():
            return sum(last - first + 1 for each in place.intervals.values() for first, last in each)
        case MariaDbGtids():
            return sum(number for _, number in place.domains.values())
        case _:
            return place.offset


def current_position(connection: Connection[Any], server: Server) -> str:
    """All that anybody sees now ends there or before."""
    if not server.has_gtids:
        return file_position(connection)
    name = "gtid_binlog_pos" if server.is_mariadb else "gtid_executed"
    text = global_value(connection, name)
    if not text:
        raise SourceRefused(
            f"{server.product} has GTIDs, and not one transaction that has one ({name} is empty)",
            hint="let any transaction run, such as CREATE DATABASE tailrace",
        )
    return str(parse(text))


def oldest(connection: Connection[Any], server: Server) -> str:
    """What follows it is still in the binary log. Where nothing was ever purged, behind the very first transaction."""
    files = binlog_files(connection)
    if not server.has_gtids:
        return f"{files[0]}:{Binlog.FIRST}"
    if server.is_mariadb:
        [(gone,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (files[0], Binlog.FIRST))
    else:
        gone = global_value(connection, "gtid_purged")
    text = str(gone or "").replace("\n", "")
    return str(parse(text)) if text else _first(parse(current_position(connection, server)))


def _first(place: Place) -> str:
    if isinstance(place, GtidSet):
        server, intervals = next(iter(place.intervals.items()))
        return f"{server}:{intervals[0][0]}"
    assert isinstance(place, MariaDbGtids)
    domain, (server_id, _) = next(iter(place.domains.items()))
    return f"{domain}-{server_id}-1"


def binlog_files(connection: Connection[Any]) -> list[str]:
    found = [str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")]
    if not found:
        raise SourceRefused("the server writes no binary log", hint="start it with --log-bin")
    return found


def file_position(connection: Connection[Any]) -> str:
    """MySQL 8.4 has another statement for it than all others."""
    try:
        found = rows(connection, "SHOW BINARY LOG STATUS")
    except Exception as error:
        if code_of(error) != _SYNTAX_ERROR:
            raise
        found = rows(connection, "SHOW MASTER STATUS")
    if not found:
        raise SourceRefused("the server writes no binary log", hint="start it with --log-bin")
    return f"{found[0][0]}:{found[0][1]}"


def within(servers: pa.Array, numbers: pa.Array, visibility: str) -> npt.NDArray[np.bool_]:
    """Which transactions a place has behind it, each by its server and its number (as in `decode.TRANSACTIONS`)."""
    place, counted = parse(visibility), np.asarray(numbers)
    found = np.zeros(len(counted), np.bool_)
    coded = servers.dictionary_encode()
    codes = np.asarray(coded.indices)
    for code, name in enumerate(coded.dictionary.to_pylist()):
        mask = codes == code
        found[mask] = _within(place, name, counted[mask])
    return found


def _within(place: Place, server: str, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(numbers), np.bool_)
    match place:
        case GtidSet():
            for first, last in place.intervals.get(server, ()):
                found |= (numbers >= first) & (numbers <= last)
        case MariaDbGtids():
            domain = int(server.partition("-")[0] or -1)
            found |= numbers <= place.domains.get(domain, (0, 0))[1]
        case _:
            digits = int(server.rpartition(".")[2] or 0)
            found |= np.full(len(numbers), digits < int(place.digits)) | (
                (digits == int(place.digits)) & (numbers <= place.offset)
            )
    return found


def require_available(connection: Connection[Any], position: str) -> None:
    """Raise PositionLost if the server no longer has all that follows a position, and name what is gone."""
    place = parse(position)
    if isinstance(place, Binlog):
        _require_file(connection, place)
    elif isinstance(place, GtidSet) and (purged := global_value(connection, "gtid_purged")):
        gone = GtidSet.parse(purged)
        if gone is not None and not place.contains(gone):
            [(lacking,)] = rows(connection, "SELECT GTID_SUBTRACT(%s, %s)", (str(gone), position))
            raise PositionLost(
                f"the server has purged {str(lacking).replace(chr(10), '')} from its binary log, and we need it"
            )


def _require_file(connection: Connection[Any], place: Binlog) -> None:
    files = binlog_files(connection)
    wanted = f"{place.name}.{place.digits}"
    if wanted not in files:
        raise PositionLost(f"the server's binary log begins with {files[0]}, and what follows {place} is needed")
