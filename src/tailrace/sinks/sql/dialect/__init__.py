"""In what the databases differ, by subject: what somebody who adds a database has to write.

Each subject is a small class here, and a file of the same name in every database's folder (`sqlite/`, `postgres/`,
`mysql/`):

    session     one connection; what its errors mean
    server      who connects, to what, and whether it can serve as a sink
    naming      how names are quoted, and where tables go
    types       what columns are declared as, and which ones that are there already take the same values
    encoding    rows as bytes for a bulk load
    reading     values as they are read back, and keys as text
    catalog     the tables that are there
    staging     where rows wait for their commit
    statements  the SQL that makes tables and merges rows

`dialect` puts the parts of one database together, and has its sink. All work is done outside, by `SqlSink`.
"""

from tailrace.sinks.sql.dialect.catalog import Catalog as Catalog
from tailrace.sinks.sql.dialect.catalog import ExistingColumn as ExistingColumn
from tailrace.sinks.sql.dialect.catalog import ExistingTable as ExistingTable
from tailrace.sinks.sql.dialect.catalog import Reference as Reference
from tailrace.sinks.sql.dialect.dialect import Dialect as Dialect
from tailrace.sinks.sql.dialect.encoding import Encoded as Encoded
from tailrace.sinks.sql.dialect.encoding import Encoding as Encoding
from tailrace.sinks.sql.dialect.encoding import Field as Field
from tailrace.sinks.sql.dialect.naming import Naming as Naming
from tailrace.sinks.sql.dialect.naming import Target as Target
from tailrace.sinks.sql.dialect.reading import Reading as Reading
from tailrace.sinks.sql.dialect.server import Server as Server
from tailrace.sinks.sql.dialect.session import Explanation as Explanation
from tailrace.sinks.sql.dialect.session import Session as Session
from tailrace.sinks.sql.dialect.staging import Staging as Staging
from tailrace.sinks.sql.dialect.staging import StagingFile as StagingFile
from tailrace.sinks.sql.dialect.statements import Statements as Statements
from tailrace.sinks.sql.dialect.types import Types as Types
