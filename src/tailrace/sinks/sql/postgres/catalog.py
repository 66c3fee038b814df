"""The tables of a PostgreSQL sink, as its catalog describes them."""

from __future__ import annotations

from tailrace.sinks.sql.dialect import Catalog, ExistingColumn, ExistingTable, Reference, Session, Target

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
    coalesce(obj_description(c.oid, 'pg_class'), ''),
    c.relpersistence = 'u' OR EXISTS (
        SELECT FROM pg_partition_tree(c.oid) k JOIN pg_class p ON p.oid = k.relid WHERE p.relpersistence = 'u')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1], i.indcollation[0:i.indnkeyatts - 1]) k (attnum, collation_id)
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
LEFT JOIN pg_collation folding ON folding.oid IN (k.collation_id, a.attcollation) AND NOT folding.collisdeterministic
WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
    AND i.indexprs IS NULL AND i.indimmediate
GROUP BY i.indexrelid HAVING count(folding.oid) = 0
"""
"""Not those that take different texts for equal, or whose columns do."""
_REFERENCES = """
SELECT r.conname::text, r.conrelid::regclass::text, r.confdeltype IN ('c', 'n', 'd')
FROM pg_constraint r JOIN pg_class c ON c.oid = r.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.contype = 'f' AND r.conrelid <> r.confrelid AND r.conparentid = 0 AND n.nspname = %s AND c.relname = %s
ORDER BY 3 DESC, 1
"""


class PostgresCatalog(Catalog):
    def existing(self, session: Session, target: Target) -> ExistingTable | None:
        found = session.execute(_COLUMNS, [target.schema, target.name])
        if not found:
            return None
        columns = [ExistingColumn(name, type_, required) for name, type_, required, *_ in found if name is not None]
        unique = session.execute(_UNIQUE, [target.schema, target.name])
        *_, note, is_unlogged = found[0]
        risk = "unlogged" if is_unlogged else ""
        return ExistingTable(
            tuple(columns), frozenset(frozenset(names) for (names,) in unique), note, risk, "SET LOGGED"
        )

    def references(self, session: Session, target: Target) -> list[Reference]:
        return [Reference(*found) for found in session.execute(_REFERENCES, [target.schema, target.name])]

    def has_schema(self, session: Session, name: str) -> bool:
        return bool(session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [name]))
