"""The PostgreSQL server of a sink: who it is, and whether it serves."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.errors import SinkRejected
from tailrace.sinks.sql.dialect import Explanation, Naming, Server, Session
from tailrace.sinks.sql.postgres.naming import SCHEMA
from tailrace.sinks.sql.postgres.session import PostgresSession, explain, server_of

OLDEST_VERSION = 12

_IDENTITY = """
SELECT (SELECT system_identifier::text FROM pg_control_system()), concat(datname, ' (', oid, ')')
FROM pg_database WHERE datname = current_database()
"""
_SERVER = """
SELECT current_setting('server_version_num')::int, getdatabaseencoding(), pg_is_in_recovery(),
    has_database_privilege(current_database(), 'CREATE'), current_database()
"""
_MAY_USE = """
SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s
"""


class PostgresServer(Server):
    ddl_is_transactional = True
    update_lock = " FOR UPDATE"

    def __init__(self, url: str, naming: Naming) -> None:
        self._url, self._naming = url, naming

    @property
    def address(self) -> str:
        return server_of(self._url)

    def connect(self) -> Session:
        return PostgresSession(self._url)

    def identity(self, session: Session) -> tuple[str, str] | None:
        [(system, database)] = session.execute(_IDENTITY)
        return str(system), str(database)

    def check(self, session: Session, schemas: Iterable[str]) -> None:
        [(version, encoding, is_standby, may_create, database)] = session.execute(_SERVER)
        if version < OLDEST_VERSION * 10_000:
            raise SinkRejected(f"PostgreSQL {version // 10_000} is too old: {OLDEST_VERSION} is needed")
        if encoding != "UTF8":
            hint = f"CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, instead of {database}"
            raise SinkRejected(f"the database has the encoding {encoding}, which can not hold every text", hint=hint)
        if is_standby:
            raise SinkRejected("the server is a standby and takes no writes", hint="use the primary's address")
        for name in [SCHEMA, *schemas]:
            self._check_schema(session, name, may_create=may_create)

    def _check_schema(self, session: Session, name: str, *, may_create: bool) -> None:
        """It is there and takes tables, or can be made."""
        found = session.execute(_MAY_USE, [name])
        if found == [(True,)] or (may_create and not found):
            return
        [(user,)] = session.execute("SELECT current_user::text")
        schema, user = self._naming.quote(name), self._naming.quote(user)
        hint = f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {user}"
        raise SinkRejected(
            f"this user may not create tables in schema {name}",
            hint=hint if found else f"CREATE SCHEMA {schema} AUTHORIZATION {user}",
        )

    def explain(self, error: BaseException) -> Explanation | None:
        return explain(error)
