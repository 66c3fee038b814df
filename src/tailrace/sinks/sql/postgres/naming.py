"""Names in a PostgreSQL sink. Everything of ours lives in the schema `_tailrace`."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Naming, Target

SCHEMA = "_tailrace"


class PostgresNaming(Naming):
    longest_name = 63
    folds_names = False

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def length(self, name: str) -> int:
        return len(name.encode())

    def target(self, schema: TableSchema, schemas: Mapping[str, str]) -> Target:
        return Target(schemas.get(schema.schema, schema.schema), schema.name)

    def own(self, name: str) -> Target:
        return Target(SCHEMA, name)

    def is_own(self, target: Target) -> bool:
        return target.schema == SCHEMA
