"""MySQL and MariaDB as sinks."""

from tailrace.sinks.sql.mysql.dialect import MariaDbSink as MariaDbSink
from tailrace.sinks.sql.mysql.dialect import MySqlSink as MySqlSink
