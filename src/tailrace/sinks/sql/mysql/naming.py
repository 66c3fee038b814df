"""Names in a MySQL or MariaDB sink. Our own tables lie beside the user's, their names beginning with `_tailrace_`."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Naming, Target
from tailrace.sinks.sql.dialect.naming import flat_name

OURS = "_tailrace_"


class MySqlNaming(Naming):
    longest_name = 64
    folds_names = True

    def __init__(self, database: str) -> None:
        self._database = database

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def length(self, name: str) -> int:
        return len(name)

    def target(self, schema: TableSchema, schemas: Mapping[str, str]) -> Target:
        """A schema with a name under `schemas` is that database; others share the URL's, `public` without a prefix."""
        if schema.schema in schemas:
            return Target(schemas[schema.schema], schema.name)
        return Target(self._database, flat_name(schema.schema, schema.name, {}))

    def own(self, name: str) -> Target:
        return Target(self._database, OURS + name)

    def is_own(self, target: Target) -> bool:
        return target.name.lower().startswith(OURS)
