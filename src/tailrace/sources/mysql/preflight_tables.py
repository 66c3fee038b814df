"""The tables of a MySQL source, as `tailrace check` sees them: are there any, can they be read, and what is odd."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection
from pymysql.err import MySQLError

from tailrace.model.names import table_name
from tailrace.sources.base import Finding
from tailrace.sources.findings import fail, number_of, ok, some_of, warn
from tailrace.sources.mysql.catalog import SourceTable, described, is_transactional, list_tables, quoted
from tailrace.sources.mysql.connection import rows
from tailrace.sources.mysql.settings import MysqlSettings
from tailrace.sources.mysql.wanted import Wanted

_CASCADES = """
SELECT constraint_schema, table_name FROM information_schema.referential_constraints
WHERE delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
"""


def listed(connection: Connection[Any], wanted: Wanted) -> list[SourceTable]:
    return list_tables(connection, wanted)


def check(
    connection: Connection[Any], wanted: Wanted, settings: MysqlSettings, variables: dict[str, str]
) -> list[Finding]:
    tables = listed(connection, wanted)
    names = [(table.schema, table.name) for table in tables]
    if not tables:
        text = f"no table matches {', '.join(wanted.all.patterns)}"
        return [fail("tables", text, "create one, grant SELECT on it, or correct source.tables")]
    findings = [ok("tables", number_of(len(tables), "table"))]
    if lost := wanted.unmatched(names):
        findings.append(warn("tables", f"no table matches {', '.join(lost)}", "correct source.tables"))
    findings += _unreadable(connection, tables)
    found = described(connection, names, settings.zero_dates)
    if found.troubles:
        odd = some_of([table_name(*name) for name in found.troubles])
        text = f"types that nobody knows in {odd}: {next(iter(found.troubles.values()))}"
        findings.append(fail("types", text, "exclude them with source.tables", is_of_some_tables=True))
    if keyless := [schema.table for schema in found.schemas.values() if not schema.key]:
        text = (
            f"without a key: {some_of(keyless)}; each of their changes looks for a whole row, and a copy is one chunk"
        )
        findings.append(warn("keys", text, "give them a primary key"))
    if odd_engines := [table.table for table in tables if not is_transactional(table)]:
        text = f"not transactional: {some_of(odd_engines)}; half of a statement that failed stays"
        findings.append(warn("engines", text, "ALTER TABLE … ENGINE = InnoDB;"))
    return findings + _cascades(connection, set(names), variables)


def _unreadable(connection: Connection[Any], tables: list[SourceTable]) -> list[Finding]:
    refused = []
    for table in tables:
        try:
            rows(connection, f"SELECT 1 FROM {quoted(table.schema, table.name)} LIMIT 0")
        except MySQLError:
            refused.append(table)
    if not refused:
        return []
    user, _, host = str(rows(connection, "SELECT CURRENT_USER()")[0][0]).rpartition("@")
    grants = " ".join(
        f"GRANT SELECT ON {quoted(schema)}.* TO '{user}'@'{host}';" for schema in sorted({t.schema for t in refused})
    )
    text = f"SELECT is not granted on {some_of([table.table for table in refused])}"
    return [fail("tables", text, grants, is_of_some_tables=len(refused) < len(tables))]


def _cascades(connection: Connection[Any], names: set[tuple[str, str]], variables: dict[str, str]) -> list[Finding]:
    """What InnoDB itself changes by a foreign key is in no log, unless the server does it (MySQL 9.6 and later)."""
    if variables.get("innodb_native_foreign_keys", "ON").upper() in ("OFF", "0"):
        return []
    found = {table_name(*row) for row in rows(connection, _CASCADES) if tuple(row) in names}
    if not found:
        return []
    text = (
        f"foreign keys change rows of {some_of(found)} without a row event (ON DELETE or ON UPDATE CASCADE, SET NULL)"
    )
    return [
        warn("foreign keys", text, "change these rows by statements of your own; `tailrace verify` finds what differs")
    ]
