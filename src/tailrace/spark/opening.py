"""A Spark session that comes up in a thread of its own, while the rest of a run gets ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import EngineLost, TailraceError
from tailrace.spark.datasource import register
from tailrace.spark.session import open_session

LOOK_SECONDS = 0.02


class OpeningSession:
    """Begins at once. A session that was there before is somebody else's to stop (`is_ours`)."""

    def __init__(self, pipeline: config.Pipeline) -> None:
        self._pipeline = pipeline
        self._session = SparkSession.getActiveSession()
        self.is_ours = self._session is None
        self._error: TailraceError | None = None
        self._is_open, self._is_abandoned = threading.Event(), threading.Event()
        threading.Thread(target=self._open, name="spark", daemon=True).start()

    def _open(self) -> None:
        try:
            session = self._session or open_session(self._pipeline)
            register(session)
            self._session = session
        except Exception as error:
            self._error = error if isinstance(error, TailraceError) else EngineLost(f"Spark did not start: {error}")
        self._is_open.set()
        if self._is_abandoned.is_set():
            self.stop()
        elif self.is_ours and self._error is None:
            with suppress(Exception):  # its Python workers come up while the first query is planned
                session.sparkContext.parallelize([0], 1).map(_nothing).collect()

    def wait(self, meanwhile: Callable[[], None]) -> SparkSession:
        """The session. `meanwhile` is called every moment, and may raise. Raises EngineLost."""
        while not self._is_open.wait(LOOK_SECONDS):
            meanwhile()
        if self._session is None:
            raise self._error or EngineLost("Spark did not start")
        return self._session

    def stop(self) -> None:
        """End the session if it is ours, with the tasks that may still run in it; one that is not up yet, once it is.

        Chunks are loaded whole or not at all.
        """
        self._is_abandoned.set()
        if self.is_ours and self._is_open.is_set() and self._session is not None:
            with suppress(Exception):  # the JVM may be gone already
                self._session.sparkContext.cancelAllJobs()
                self._session.stop()


def _nothing(number: int) -> int:
    return number
