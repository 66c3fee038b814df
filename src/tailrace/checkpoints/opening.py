"""The store that a user means: one of his own, a folder, a URL, or a connection to his database."""

from __future__ import annotations

import os
from typing import Any

from tailrace.checkpoints.base import CheckpointStore
from tailrace.checkpoints.files import FileStore
from tailrace.checkpoints.memory import MemoryStore
from tailrace.errors import ConfigError
from tailrace.registry import scheme

KNOWN = "a folder"


def open_store(store: CheckpointStore | str | os.PathLike[str] | Any) -> CheckpointStore:
    """A store as it is; None: one in memory; a path: a folder."""
    match store:
        case None:
            return MemoryStore()
        case str() if "://" in store:
            return _of_url(store)
        case str() | os.PathLike():
            return FileStore(store)
        case _ if all(callable(getattr(store, name, None)) for name in ("claim", "load", "save")):
            return store
        case _:
            raise ConfigError(f"{type(store).__name__} is no checkpoint store", hint=f"known are {KNOWN}")


def _of_url(url: str) -> CheckpointStore:
    name = scheme(url)
    if name == "file":
        return FileStore(url.removeprefix("file://"))
    raise ConfigError(f"no checkpoint store is known for {name}:// URLs", hint=f"known are {KNOWN}")
