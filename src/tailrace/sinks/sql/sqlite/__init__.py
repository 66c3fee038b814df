"""SQLite as a sink."""

from tailrace.sinks.sql.sqlite.dialect import SqliteSink as SqliteSink
