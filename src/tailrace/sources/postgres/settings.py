"""What a PostgreSQL source has of its own in the pipeline file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tailrace import config


class PostgresSettings(config.Settings, frozen=True):
    """The database read from: PostgreSQL."""

    slot: (
        Annotated[str, Meta(pattern="^[a-z0-9_]{1,63}$", description="replication slot; default: tailrace_<name>")]
        | None
    ) = None
    publication: Annotated[str, Meta(min_length=1, max_length=63, description="default: tailrace_<name>")] | None = None
    create: Annotated[bool, Meta(description="create slot and publication when they are missing")] = True
    binary: Annotated[bool, Meta(description="ask for binary values: faster, the same content")] = True

    def slot_of(self, pipeline: str) -> str:
        """The slot of the pipeline that has this name."""
        return self.slot or f"tailrace_{pipeline}"

    def publication_of(self, pipeline: str) -> str:
        return self.publication or f"tailrace_{pipeline}"
