"""The tables of a MySQL or MariaDB sink, as its catalog describes them."""

from __future__ import annotations

from tailrace.sinks.sql.dialect import Catalog, ExistingColumn, ExistingTable, Reference, Session, Target

_COLUMNS = """
SELECT c.column_name, c.column_type, c.character_set_name, c.collation_name,
    c.is_nullable = 'NO' AND c.column_default IS NULL AND c.extra NOT LIKE '%%auto_increment%%'
        AND c.extra NOT LIKE '%%GENERATED%%',
    t.table_comment, t.engine, e.transactions = 'YES'
FROM information_schema.tables t
LEFT JOIN information_schema.engines e ON e.engine = t.engine
JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
WHERE t.table_schema = %s AND t.table_name = %s AND t.table_type = 'BASE TABLE' ORDER BY c.ordinal_position
"""
_UNIQUE = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
"""
_REFERENCES = """
SELECT constraint_name, table_name, delete_rule NOT IN ('NO ACTION', 'RESTRICT')
FROM information_schema.referential_constraints
WHERE unique_constraint_schema = %s AND referenced_table_name = %s
    AND (constraint_schema <> unique_constraint_schema OR table_name <> referenced_table_name)
ORDER BY 3 DESC, 1
"""


class MySqlCatalog(Catalog):
    def existing(self, session: Session, target: Target) -> ExistingTable | None:
        found = session.execute(_COLUMNS, [target.schema, target.name])
        if not found:
            return None
        columns = [
            ExistingColumn(name, _with_collation(type_, charset, collation), bool(required))
            for name, type_, charset, collation, required, *_ in found
        ]
        unique: dict[str, set[str]] = {}
        for index, column, part in session.execute(_UNIQUE, [target.schema, target.name]):
            unique.setdefault(index, set()).add(column if part is None and column else f"{column}\0{part}")
        *_, note, engine, is_transactional = found[0]
        risk = "" if is_transactional else f"of the engine {engine}, which has no transactions"
        # what is unique and no column, a part of one or an expression, has a NUL in its name
        names = frozenset(frozenset(names) for names in unique.values())
        return ExistingTable(tuple(columns), names, note, risk, "ENGINE = InnoDB")

    def references(self, session: Session, target: Target) -> list[Reference]:
        found = session.execute(_REFERENCES, [target.schema, target.name])
        return [Reference(name, table, bool(has_action)) for name, table, has_action in found]

    def has_schema(self, session: Session, name: str) -> bool:
        return bool(session.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", [name]))


def _with_collation(type_: str, charset: str | None, collation: str | None) -> str:
    return type_ if collation is None else f"{type_} CHARACTER SET {charset} COLLATE {collation}"
