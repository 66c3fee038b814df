"""A pipeline from Python: what the command line does, as methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, environ
from typing import TYPE_CHECKING, Any

from tailrace import config
from tailrace.sources.base import Finding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pipeline:
    """One source, its tables, its sinks. Nothing is opened before a method needs it."""

    def __init__(self, settings: config.Pipeline) -> None:
        self.settings = settings

    @classmethod
    def load(cls, path: str | PathLike[str], environment: Mapping[str, str] = environ) -> Pipeline:
        """The pipeline of a pipeline file."""
        return cls(config.load(path, environment))

    @classmethod
    def from_urls(
        cls, source: str, sink: str, *, tables: Iterable[str] | None = None, state: str | None = None
    ) -> Pipeline:
        """A pipeline without a file."""
        return cls(config.from_urls(source, sink, tables=tables, state=state))

    def check(self) -> list[Finding]:
        """What `tailrace check` prints."""
        from tailrace.pipeline import preflight

        return preflight.check(self.settings)

    def run(self, spark: SparkSession | None = None, *, until_current: bool = False) -> None:
        """Run until stopped, or until the sinks have all that is committed now. Raises a TailraceError.

        In `spark`, the active session, or one of its own. A session that it did not make goes on afterwards as it was:
        nothing of its settings is changed, and it is not stopped.
        """
        from tailrace.pipeline import preflight

        preflight.refuse_other_spark()

        from tailrace.pipeline.runner import Runner
        from tailrace.views.view import open_view

        with open_view() as view:
            Runner(self.settings, view, spark).run(until_current=until_current)

    def verify(self) -> list[Any]:
        """A comparison for every table in every sink; each has `is_equal`."""
        from tailrace.pipeline import verify

        return list(verify.verify(self.settings))

    def status(self) -> list[Any]:
        """A line for every table in every sink."""
        from tailrace.pipeline import status

        return list(status.read(self.settings))

    def drop(self) -> list[str]:
        """Remove slot, publication, state directory and what the sinks remember; the sinks' tables stay."""
        from tailrace.pipeline import drop

        return drop.drop(self.settings)
