"""One database, as its parts."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.sinks.sql.dialect.catalog import Catalog
from tailrace.sinks.sql.dialect.encoding import Encoding
from tailrace.sinks.sql.dialect.naming import Naming
from tailrace.sinks.sql.dialect.reading import Reading
from tailrace.sinks.sql.dialect.server import Server
from tailrace.sinks.sql.dialect.staging import Staging
from tailrace.sinks.sql.dialect.statements import Statements
from tailrace.sinks.sql.dialect.types import Types


class Dialect(NamedTuple):
    """How one database does what a sink needs. Its parts are picklable, and none of them keeps a connection."""

    name: str
    server: Server
    naming: Naming
    types: Types
    encoding: Encoding
    reading: Reading
    catalog: Catalog
    staging: Staging
    statements: Statements
