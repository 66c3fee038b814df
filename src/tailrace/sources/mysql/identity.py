"""Which server a source reads, and whether another one has the same past.

Where transactions have names that all replicas share, a server that has executed all that was read is as good as the
one that it was read from: a pipeline goes on with a promoted replica. Elsewhere only the server itself will do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from tailrace.errors import SourceChanged
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.mysql.connection import (
    Server,
    connect,
    database_of,
    read_server,
    server_of,
    source_errors,
    variable,
)
from tailrace.sources.mysql.positions import current_position, is_global, reached


def relation_of(schema: str, name: str) -> int:
    """A number of a table that lasts as long as its name: a server's own is another each time the table is opened."""
    digest = hashlib.blake2b(f"{schema}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def identify(url: str) -> SourceIdentity:
    with source_errors(url, "asking who it is"), connect(url) as connection:
        return identity_of(connection, read_server(connection), url)


def identity_of(connection: Connection[Any], server: Server, url: str) -> SourceIdentity:
    """MySQL: its uuid. MariaDB has none: its server id and the domain that it writes to."""
    domain = variable(connection, "gtid_domain_id") if server.is_mariadb else ""
    system = f"server {server.id}" if server.is_mariadb else server.uuid
    return SourceIdentity(system=system, branch=domain, database=database_of(url), slot="")


def check_same(
    url: str, known: SourceIdentity, position: str, on_wait: Callable[[], None] = lambda: None
) -> SourceIdentity:
    on_wait()
    with source_errors(url, "asking who it is"), connect(url) as connection:
        return check_same_past(connection, read_server(connection), url, known, position)


def check_same_past(
    connection: Connection[Any], server: Server, url: str, known: SourceIdentity, position: str
) -> SourceIdentity:
    """The present identity, or SourceChanged if what was read up to `position` is not this server's past."""
    now = identity_of(connection, server, url)
    if not is_global(position) and now.system != known.system:
        raise SourceChanged(
            f"the server at {server_of(url)} is {now.system}, and {position} was read from {known.system}: a position"
            " in files means nothing on another server"
        )
    if not reached(current_position(connection, server), position):
        raise SourceChanged(f"the server at {server_of(url)} has not executed all of {position}, which was read before")
    if now.database != known.database:
        raise SourceChanged(f"the database is {now.database}, and was {known.database}")
    return now
