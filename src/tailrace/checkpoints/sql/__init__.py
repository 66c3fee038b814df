"""Checkpoints in a SQL database, so that a consumer's own tables and its place are committed together."""

from tailrace.checkpoints.sql.store import SqlStore

__all__ = ["SqlStore"]
