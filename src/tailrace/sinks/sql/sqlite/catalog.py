"""The tables of a SQLite sink, as its schema table and its pragmas describe them.

A table has no comment here: one that we made says so in the text of its CREATE TABLE, which goes with it, and for whom
is a row of `_tailrace_made`.
"""

from __future__ import annotations

from tailrace.sinks.sql.dialect import Catalog, ExistingColumn, ExistingTable, Session, Target
from tailrace.sinks.sql.sqlite.session import SqliteSession

MADE = "_tailrace_made"
MARK = "/* made by tailrace */"


_TABLE = "SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = %s COLLATE NOCASE"
COLUMNS = 'SELECT name, type, "notnull" AND dflt_value IS NULL, pk FROM pragma_table_info(%s, %s)'
_UNIQUE = """
SELECT l.name, l.origin, x.name, x.coll FROM pragma_index_list(%s, 'main') l, pragma_index_xinfo(l.name, 'main') x
WHERE l."unique" AND NOT l.partial AND x.key
"""


class SqliteCatalog(Catalog):
    def existing(self, session: Session, target: Target) -> ExistingTable | None:
        table = session.execute(_TABLE, [target.name])
        if not table:
            return None
        found = session.execute(COLUMNS, [target.name, "main"])
        unique = _unique(session, target, frozenset(name for name, _, _, place in found if place))
        columns = [ExistingColumn(name, type_, bool(required)) for name, type_, required, _ in found]
        note = self._note(session, target) if MARK in table[0][0] else ""
        return ExistingTable(tuple(columns), unique, note)

    def _note(self, session: Session, target: Target) -> str:
        if not session.execute(_TABLE, [MADE]):
            return ""
        found = session.execute(f"SELECT note FROM {MADE} WHERE name = %s", [target.name])
        return str(found[0][0]) if found else ""

    def has_schema(self, session: Session, name: str) -> bool:
        return True

    def count(self, session: Session, table: str, seconds: float) -> int | None:
        assert isinstance(session, SqliteSession)
        return session.count(table, seconds)


def _unique(session: Session, target: Target, primary: frozenset[str]) -> frozenset[frozenset[str]]:
    """Unique indexes that tell all values apart, and the key that is the row id, which has no index.

    Not those beside which the same columns are unique by another collation: an upsert would take either for the key.
    """
    found: dict[str, set[str]] = {}
    folding, origins = set(), set()
    for index, origin, column, collation in session.execute(_UNIQUE, [target.name]):
        found.setdefault(index, set()).add(column)
        origins.add(origin)
        if collation != "BINARY" or column is None:
            folding.add(index)
    exact = {frozenset(names) for index, names in found.items() if index not in folding}
    exact -= {frozenset(found[index]) for index in folding}
    return frozenset(exact if "pk" in origins or not primary else exact | {primary})
