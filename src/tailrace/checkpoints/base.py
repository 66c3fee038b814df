"""The contract of a checkpoint store: where a consumer's place is kept. `testing.checkpoint_contract` holds it."""

from __future__ import annotations

from typing import Any, Protocol

from tailrace.model.checkpoint import Checkpoint


class CheckpointStore(Protocol):
    """Checkpoints by name, one a stream. Safe to be called by several threads.

    A name has one writer at a time, the one that called `claim` last where the one before is dead, or let go. Names are
    those of `names.check_name`; what may follow what, `succession.check_succession` knows.
    """

    def claim(self, name: str) -> None:
        """Before the first `save`. Raises CheckpointTaken while another has the name and lives, in any process."""

    def release(self, name: str) -> None:
        """Let others write. May be repeated."""

    def load(self, name: str) -> Checkpoint | None:
        """Raises CheckpointRefused for one that is damaged, or of a version to come."""

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Durable when it returns, the one before when it does not.

        Raises CheckpointRefused for one that is behind the present one, or of another source, CheckpointTaken for a
        writer that was replaced, Misuse without a claim. Saving the same again changes nothing.
        """

    def delete(self, name: str) -> bool:
        """Whether there was one, be it damaged. Raises CheckpointTaken while another has the name."""

    def list(self) -> list[str]: ...

    def age(self, name: str) -> float | None:
        """Seconds since the last `save`, by the store's clock where it has one. Never negative."""

    def close(self) -> None:
        """Let go of all names. May be repeated."""


class TransactionalStore(CheckpointStore, Protocol):
    """One in a database where the consumer has tables of its own: both are written, or neither.

    `load` sees what is committed, and nothing else: the source is told to forget by what it says.
    """

    def save_within(self, connection: Any, name: str, checkpoint: Checkpoint) -> None:
        """As `save`, in the transaction that `connection` has open; whoever opened it commits it.

        Raises Misuse for a connection that has none, and would commit the checkpoint alone.
        """

    def is_open(self, connection: Any) -> bool:
        """Whether a transaction is open on a connection, so that nobody can say yet what becomes of it."""
