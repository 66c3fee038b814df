"""A Spark session that comes up in a thread of its own, while the rest of a run gets ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import TailraceError
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
        self._is_abandoned = threading.Event()
        self._thread = threading.Thread(target=self._open, name="spark", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            session = self._session or open_session(self._pipeline)
            register(session)
            if self.is_ours and not self._is_abandoned.is_set():
                session.sparkContext.parallelize([0], 1).map(_nothing).collect()  # Python workers are up
            self._session = session
        except TailraceError as error:
            self._error = error
        if self._is_abandoned.is_set():
            self.stop()

    def wait(self, meanwhile: Callable[[], None]) -> SparkSession:
        """The session. `meanwhile` is called every moment, and may raise. Raises EngineLost."""
        while self._thread.is_alive():
            self._thread.join(LOOK_SECONDS)
            meanwhile()
        if self._session is None:
            assert self._error is not None
            raise self._error
        return self._session

    def stop(self) -> None:
        """End the session if it is ours, with the tasks that may still run in it; one that is not up yet, once it is.

        Chunks are loaded whole or not at all.
        """
        self._is_abandoned.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            return
        if self.is_ours and self._session is not None:
            with suppress(Exception):  # the JVM may be gone already
                self._session.sparkContext.cancelAllJobs()
                self._session.stop()


def _nothing(number: int) -> int:
    return number
