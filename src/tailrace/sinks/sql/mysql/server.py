"""The MySQL or MariaDB server of a sink: which of the two it is, and whether it serves."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tailrace.errors import SinkRejected
from tailrace.sinks.sql.dialect import Explanation, Server, Session
from tailrace.sinks.sql.mysql.flavor import MARIADB, MYSQL, Flavor
from tailrace.sinks.sql.mysql.session import MySqlSession, explain, server_of


class MySqlServer(Server):
    ddl_is_transactional = False
    share_lock = " LOCK IN SHARE MODE"
    update_lock = " FOR UPDATE"

    def __init__(self, url: str, flavor: Flavor) -> None:
        self._url, self._flavor = url, flavor

    @property
    def address(self) -> str:
        return server_of(self._url)

    def connect(self) -> Session:
        return MySqlSession(self._url, self._flavor)

    def check(self, session: Session, schemas: Iterable[str]) -> None:
        query = "SELECT VERSION(), @@local_infile, @@read_only, @@innodb_page_size"
        [(version, local_infile, is_read_only, _)] = session.execute(query)
        found = MARIADB if "mariadb" in version.lower() else MYSQL
        if found.name != self._flavor.name:
            hint = f"begin its URL with {found.name.lower()}://"
            raise SinkRejected(f"the server is {version}, not {self._flavor.name}", hint=hint)
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        if numbers < self._flavor.oldest:
            needed = ".".join(map(str, self._flavor.oldest))
            raise SinkRejected(f"{self._flavor.name} {version} is too old: {needed} is needed")
        if not int(local_infile):
            raise SinkRejected("the server does not take LOAD DATA LOCAL", hint="SET GLOBAL local_infile = 1")
        if str(is_read_only).upper() in ("1", "ON"):
            raise SinkRejected("the server is read-only", hint="use the primary's address")

    def explain(self, error: BaseException) -> Explanation | None:
        return explain(error)
