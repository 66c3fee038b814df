"""What a stream is told when it is made."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

MIB = 1 << 20


class SnapshotMode(StrEnum):
    INITIAL = "initial"  # tables that were not delivered before are read first, then the stream
    NEVER = "never"  # the stream only, from the moment that it was first started
    ONLY = "only"  # the tables as they are now, and no stream: nothing is made in the source


class Transactions(StrEnum):
    WHOLE = "whole"  # never in two batches; what does not fit into memory is spooled to a temporary file
    SPLIT = "split"  # a large one comes in parts


class Options(msgspec.Struct, frozen=True):
    """`max_bytes` bounds what is held in memory of what was read and not acknowledged, as the source sent it."""

    name: str = "embedded"
    tables: tuple[str, ...] = ()
    snapshot: SnapshotMode = SnapshotMode.INITIAL
    transactions: Transactions = Transactions.WHOLE
    max_bytes: int = 64 * MIB
    chunk_bytes: int = 16 * MIB
    messages: bool = False
    stall_seconds: float = 30.0
    """How long a consumer, or the source, may do nothing that it should do before `status` calls the stream stalled."""

    @property
    def asked(self) -> str:
        """What decides which events of a transaction there are, in a few characters."""
        told = msgspec.json.encode([self.tables, self.messages])
        return hashlib.blake2b(told, digest_size=8).hexdigest()

    @property
    def batch_bytes(self) -> int:
        """A batch has about so much, or one transaction."""
        return max(self.max_bytes // 8, 1)
