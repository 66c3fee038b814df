"""What the demo's story needs of a database: a server of its own, a shop in it, and answers about both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tailrace.demo.workload import LiveWorkload
from tailrace.testing.content import Difference


class Side(Protocol):
    """`name` is what people call the server; `open` starts it, and `stack` ends it."""

    name: str
    schema: str
    """Where the shop's tables are."""
    errors: tuple[type[Exception], ...]
    """What its driver raises when something is wrong with the server."""

    def open(self, folder: Path, stack: ExitStack) -> None: ...

    @property
    def url(self) -> str: ...

    def load(self, rows: int) -> int:
        """Make the shop and fill it with about so many rows; how many they are."""

    def workload(self, rate: float) -> LiveWorkload: ...

    def count(self, table: str) -> int: ...

    def orders_after(self, id_: int) -> int:
        """How many orders there are with a larger number."""

    def catching_up(self, pipeline: Path) -> Callable[[], bool]:
        """Whether the sink has durably what is committed at the moment of this call."""

    def differences(self, file: Path, table: str) -> list[Difference]:
        """Every row of both sides, compared by a way that the pipeline has no part in."""

    def how_to_look(self) -> str:
        """Commands that start the server again, look into it, and end it."""
