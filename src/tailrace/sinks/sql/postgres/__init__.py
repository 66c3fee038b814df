"""PostgreSQL as a sink."""

from tailrace.sinks.sql.postgres.dialect import PostgresSink as PostgresSink
