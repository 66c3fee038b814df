"""Names in a SQLite sink. Our own tables lie beside the user's, their names beginning with `_tailrace_`."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Naming, Target
from tailrace.sinks.sql.dialect.naming import flat_name

OURS = "_tailrace_"


class SqliteNaming(Naming):
    longest_name = 1 << 30
    folds_names = True

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def length(self, name: str) -> int:
        return len(name)

    def target(self, schema: TableSchema, schemas: Mapping[str, str]) -> Target:
        return Target("", flat_name(schema.schema, schema.name, schemas))

    def own(self, name: str) -> Target:
        return Target("", OURS + name)

    def is_own(self, target: Target) -> bool:
        return target.name.lower().startswith(OURS)

    def qualified(self, target: Target) -> str:
        return self.quote(target.name)
