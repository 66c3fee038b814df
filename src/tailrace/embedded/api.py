"""`tailrace.capture`: a stream of a database's changes in five lines, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from tailrace import config, registry
from tailrace.checkpoints.base import CheckpointStore
from tailrace.checkpoints.opening import open_store
from tailrace.config.pipeline import NAME
from tailrace.config.urls import resolve_url
from tailrace.embedded.options import MIB, Options, SnapshotMode, Transactions
from tailrace.embedded.remembering import open_history
from tailrace.embedded.stream import Stream
from tailrace.errors import ConfigError
from tailrace.history.schema_history import HistoryStore
from tailrace.model.positions import kind_of


def capture(
    url: str,
    tables: str | Iterable[str] = ("*.*",),
    *,
    checkpoint: CheckpointStore | str | PathLike[str] | None = None,
    snapshot: str = SnapshotMode.INITIAL,
    name: str = "embedded",
    transactions: str = Transactions.WHOLE,
    max_bytes: int = 64 * MIB,
    chunk_bytes: int = 16 * MIB,
    messages: bool = False,
    history: HistoryStore | str | PathLike[str] | None = None,
    heartbeat_ms: int = 1000,
    stall_seconds: float = 30.0,
    **own: Any,
) -> Stream:
    """The changes of a database's tables, for one consumer that acknowledges what it is done with.

    - `tables`: patterns on schema.table, as in a pipeline file: `public.*`, `!public.audit_*`.
    - `checkpoint`: a store, or a folder for files; without one only the source remembers the place.
    - `snapshot`: `initial` (the rows that are there, then the changes), `never`, or `only`.
    - `name`: of the checkpoint, and of what is made in the source. Two streams have two names.
    - `transactions`: `whole`, or `split` where a large one may come in parts.
    - `max_bytes`: what is held in memory before the source has to wait.
    - `messages`: what applications write into the source's log comes as well (`pg_logical_emit_message`).
    - `history`: a store, or a file's path: each version of a table is durable there before it is handed out.
    - what the source has of its own: for PostgreSQL `slot`, `publication`, `create`, `binary`.

    Nothing is opened before it is started: by `with`, `async with` or `start()`.
    """
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"{name!r} is not a name", hint="lower case letters, digits and _, at most 40")
    patterns = (tables,) if isinstance(tables, str) else tuple(tables)
    section = config.Source(resolve_url(url, Path.cwd()), patterns, heartbeat_ms=heartbeat_ms, own=own)
    _ = section.patterns  # refuses what is none
    source = registry.make_source(config.Pipeline(name, section, {}))
    options = Options(
        name=name,
        tables=patterns,
        snapshot=_one_of(SnapshotMode, snapshot, "snapshot"),
        transactions=_one_of(Transactions, transactions, "transactions"),
        max_bytes=max_bytes,
        chunk_bytes=chunk_bytes,
        messages=messages,
        stall_seconds=stall_seconds,
    )
    kind, store = kind_of(registry.scheme(url)), open_store(checkpoint)
    return Stream(source, store, kind, options, history=open_history(history), owns_store=store is not checkpoint)


def _one_of(kind: Any, value: str, option: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{option}={value!r}", hint=f"one of {', '.join(kind)}") from None
