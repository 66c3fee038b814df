"""Checkpoint stores and connections as users open them; what other processes open too, so all of it pickles."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from tailrace.checkpoints import FileStore, SqlStore, open_store
from tailrace.errors import CheckpointTaken, Misuse
from tailrace.state import lease
from tailrace.testing.checkpoint_contract import at
from tailrace.testing.processes import wait_until


def connect(url: str) -> Any:
    """A connection with the driver's own defaults: none commits by itself."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60, check_same_thread=False)
        case "postgresql":
            return psycopg.connect(url)
        case _:
            host, port = parts.hostname or "", parts.port or 0
            return pymysql.connect(host=host, port=port, user=parts.username, database=parts.path[1:])


def store_over_connection(url: str) -> SqlStore:
    """The connection lives as long as the store does."""
    store = open_store(connect(url))
    assert isinstance(store, SqlStore)
    return store


def make_mine(url: str) -> None:
    with closing(connect(url)) as connection:
        connection.cursor().execute("CREATE TABLE mine (id INTEGER)")
        connection.commit()


def end_session(store: SqlStore, url: str) -> None:
    """What a network does that cuts a connection for good; the process lives."""
    connection = store._own if store._given is None else store._given
    session = int(store._database.session(connection))
    with closing(connect(url)) as other:
        cursor = other.cursor()
        if isinstance(other, psycopg.Connection):
            cursor.execute(f"SELECT pg_terminate_backend({session}, 60000)")
            return
        cursor.execute(f"KILL {session}")
        wait_until(lambda: not _lives(cursor, session), seconds=60, what="the session to end")


def _lives(cursor: Any, session: int) -> bool:
    cursor.execute(f"SELECT id FROM information_schema.processlist WHERE id = {session}")
    return bool(cursor.fetchall())


def claim_and_fork(folder: str) -> None:
    """What a parent does: its child says what the store answers it, and then outlives its parent."""
    store = FileStore(folder)
    store.claim("orders")
    if os.fork():
        signal.pause()
    try:
        store.load("orders")
    except Misuse as error:
        print(os.getpid(), error, flush=True)
    signal.pause()


def save_when_told(url: str, seconds: dict[str, float]) -> None:
    """A holder in an object store, whose lease has these times: it saves a checkpoint for each number that it hears."""
    vars(lease).update(seconds)
    store = open_store(url)
    store.claim("orders")
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            store.save("orders", at(int(line)))
            print("saved", flush=True)
        except CheckpointTaken as error:
            print(error, flush=True)


def fork_and_end(url: str) -> None:
    """A parent whose forked child comes to its ordinary end, with all that it has registered for that."""
    store = open_store(url)
    store.claim("orders")
    pid = os.fork()
    if not pid:
        sys.exit(0)
    os.waitpid(pid, 0)
    note = lease.read(store._storage, "orders.lock")
    print("released" if note is None or note.is_released else "held", flush=True)
