"""A Spark session that comes up in a thread of its own, while the rest of a run gets ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import EngineLost, TailraceError
from tailrace.spark.jobs import cancel_jobs, own_jobs
from tailrace.spark.masters import is_local, refuse_local_sinks
from tailrace.spark.registering import register
from tailrace.spark.session import guest_session, open_session
from tailrace.spark.shipping import ship
from tailrace.spark.workers import check_workers

LOOK_SECONDS = 0.02


class OpeningSession:
    """Begins at once. In a session that was there before we are guests: it is somebody else's to stop (`is_ours`)."""

    def __init__(self, pipeline: config.Pipeline, host: SparkSession | None = None) -> None:
        self._pipeline = pipeline
        self._host = host or SparkSession.getActiveSession()
        self._session: SparkSession | None = None
        self.is_ours = self._host is None
        self._doing = "starting Spark"
        self._error: TailraceError | None = None
        self._is_open, self._is_abandoned = threading.Event(), threading.Event()
        threading.Thread(target=self._open, name="spark", daemon=True).start()

    def _open(self) -> None:
        try:
            session = open_session(self._pipeline) if self._host is None else guest_session(self._host)
            own_jobs(session)
            if not self._has_our_workers(session):
                self._prepare_workers(session)
            register(session)
            self._session = session
        except Exception as error:
            self._error = error if isinstance(error, TailraceError) else EngineLost(f"Spark did not start: {error}")
        self._is_open.set()
        if self._is_abandoned.is_set():
            self.stop()
        elif self._error is None and self._has_our_workers(session):
            with suppress(Exception):  # its Python workers come up while the first query is planned
                session.sparkContext.parallelize([0], 1).map(_nothing).collect()

    def _has_our_workers(self, session: SparkSession) -> bool:
        """Its Python processes run on this machine, with the settings that we gave them."""
        return self.is_ours and is_local(str(session.sparkContext.master))

    def _prepare_workers(self, session: SparkSession) -> None:
        master = str(session.sparkContext.master)
        refuse_local_sinks(self._pipeline, master)
        if self._pipeline.spark.ship:
            ship(session.sparkContext)
        self._doing = f"waiting for a worker of {master}"
        check_workers(session, self._pipeline)

    def wait(self, meanwhile: Callable[[], None], say: Callable[[str], None]) -> SparkSession:
        """The session. `meanwhile` is called every moment, and may raise; `say` hears what it waits for.

        Raises EngineLost, or what keeps the workers from working.
        """
        said = ""
        while not self._is_open.wait(LOOK_SECONDS):
            if said != self._doing:
                said = self._doing
                say(said)
            meanwhile()
        if self._session is None:
            raise self._error or EngineLost("Spark did not start")
        return self._session

    def stop(self) -> None:
        """End the session if it is ours; of somebody's only what we do in it. What is not up yet ends once it is.

        Chunks are loaded whole or not at all.
        """
        self._is_abandoned.set()
        if self._is_open.is_set() and self._session is not None:
            with suppress(Exception):  # the JVM may be gone already
                cancel_jobs(self._session)
                if self.is_ours:
                    self._session.sparkContext.cancelAllJobs()
                    self._session.stop()
                else:
                    _stop_queries(self._session)


def _stop_queries(session: SparkSession) -> None:
    """Those that are still there: one that waits for a sink which does not answer is left to end when it does."""
    for query in session.streams.active:
        with suppress(Exception):  # not in time
            query.stop()


def _nothing(number: int) -> int:
    return number
