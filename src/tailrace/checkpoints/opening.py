"""The store that a user means: one of his own, a folder, a URL, or a connection to his database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from tailrace.checkpoints.base import CheckpointStore
from tailrace.checkpoints.files import FileStore
from tailrace.checkpoints.memory import MemoryStore
from tailrace.checkpoints.objects import ObjectStore
from tailrace.checkpoints.sql import SqlStore
from tailrace.checkpoints.sql.database import Database, driver_of
from tailrace.config.urls import resolve_url, sqlite_path
from tailrace.errors import ConfigError, MissingExtra
from tailrace.registry import scheme
from tailrace.state.objects import SCHEMES

KNOWN = (
    "a folder, sqlite://, postgresql://, mysql://, mariadb://, s3://, gs:// and abfss:// URLs, a connection of sqlite3,"
    " psycopg or pymysql, and what has the methods of a CheckpointStore"
)


def open_store(store: CheckpointStore | str | os.PathLike[str] | Any) -> CheckpointStore:
    """A store as it is; None: one in memory; a path: a folder; a URL; or the user's own connection to a database.

    What is not a store already is the caller's to close.
    """
    match store:
        case None:
            return MemoryStore()
        case str() if "://" in store:
            return _of_url(store)
        case str() | os.PathLike():
            return FileStore(store)
        case _ if all(callable(getattr(store, name, None)) for name in ("claim", "load", "save")):
            return cast(CheckpointStore, store)
        case _ if hasattr(store, "cursor"):
            return _of_connection(store)
        case _:
            raise ConfigError(f"{type(store).__name__} is no checkpoint store", hint=f"known are {KNOWN}")


def _of_url(url: str) -> CheckpointStore:
    match name := scheme(url):
        case "file":
            return FileStore(url.removeprefix("file://"))
        case "sqlite" | "postgresql" | "postgres" | "mysql" | "mariadb":
            return SqlStore(_database(name, resolve_url(url, Path.cwd())))
        case _ if name in SCHEMES:
            return ObjectStore(url)
        case _:
            raise ConfigError(f"no checkpoint store is known for {name}:// URLs", hint=f"known are {KNOWN}")


def _of_connection(connection: Any) -> SqlStore:
    names = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mysql"}
    driver = driver_of(connection)
    if driver not in names:
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise ConfigError(f"{kind} is no connection that a checkpoint store knows", hint=f"known are {KNOWN}")
    return SqlStore(_database(names[driver]), connection)


def _database(name: str, url: str | None = None) -> Database:
    """Its driver is imported here: only those need it who have it."""
    if name == "sqlite":
        from tailrace.checkpoints.sql.sqlite import Sqlite

        return Sqlite(None if url is None else sqlite_path(url))
    if name.startswith("postgres"):
        from tailrace.checkpoints.sql.postgres import Postgres

        return Postgres(url)
    try:
        from tailrace.checkpoints.sql.mysql import MySql
    except ModuleNotFoundError as error:
        raise MissingExtra("pip install 'tailrace[mysql]'", hint=f"checkpoints in {name} need {error.name}") from error
    return MySql(url)
