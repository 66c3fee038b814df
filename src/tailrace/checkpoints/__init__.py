"""Where consumers of an embedded stream keep their place."""

from tailrace.checkpoints.base import CheckpointStore, TransactionalStore
from tailrace.checkpoints.files import FileStore
from tailrace.checkpoints.memory import MemoryStore
from tailrace.checkpoints.objects import ObjectStore
from tailrace.checkpoints.opening import open_store
from tailrace.checkpoints.sql import SqlStore

__all__ = ["CheckpointStore", "FileStore", "MemoryStore", "ObjectStore", "SqlStore", "TransactionalStore", "open_store"]
