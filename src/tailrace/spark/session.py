"""The Spark session a pipeline runs in."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from pyspark import accumulators
from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import EngineLost
from tailrace.log.storage import private
from tailrace.spark.installed import START

LOG_NAME = "spark.log"
TASK_TRIES = 4  # a worker that is killed is no reason to stop: chunks and parts can be done again
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",
    "spark.python.daemon.module": "tailrace.spark.daemon",
    "spark.python.worker.reuse": "true",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop gives its files a mode of its own
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
}


def open_session(pipeline: config.Pipeline) -> SparkSession:
    """The active session, or a new one as the pipeline file says. Workers run this very interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"tailrace {pipeline.name}")
    if pipeline.spark.master is not None:
        builder = builder.master(pipeline.spark.master)
    elif "SPARK_ENV_LOADED" not in os.environ:
        cores = os.cpu_count() or 2  # a copy takes a slot a core; one more is left to what is live meanwhile
        builder = builder.master(f"local[{cores + 1},{TASK_TRIES}]").config("spark.default.parallelism", str(cores))
    for key, value in (_DEFAULTS | _logging(pipeline) | pipeline.spark.settings()).items():
        builder = builder.config(key, value)
    if SparkSession.getActiveSession() is None:
        _quiet_pyspark()
    try:
        with _quiet_jvm(pipeline.state), _kept_interrupt(), _private_files(), _quick_workers():
            return builder.getOrCreate()
    except Exception as error:
        raise EngineLost(f"Spark did not start: {str(error).splitlines()[0]}") from error


@contextmanager
def _private_files() -> Iterator[None]:
    """A JVM that is started in here, and its workers, make files for their owner alone: plans, spills, checkpoints."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _quick_workers() -> Iterator[None]:
    """A JVM that is started in here starts Python processes that need not compile pyspark (`spark/installed.py`)."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(START) if before is None else f"{START}{os.pathsep}{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _kept_interrupt() -> Iterator[None]:
    """Ctrl-C stays whose it was: a new session takes it, to cancel the jobs under way and raise KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _quiet_pyspark() -> None:
    """That the JVM is gone is for us to say, once: threads of pyspark and py4j would print a traceback each."""
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)  # some of it logs as nobody in particular


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _quiet_jvm(state: str) -> Iterator[None]:
    """A JVM that is started in here writes its standard error beside Spark's log: the terminal is ours."""
    if "://" in state:
        yield
        return
    kept = os.dup(2)
    with open(Path(state) / LOG_NAME, "ab", opener=private) as target:
        os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _logging(pipeline: config.Pipeline) -> dict[str, str]:
    """Spark's own words go to a file in the state directory."""
    if "://" in pipeline.state:
        return {}
    settings = resources.files("tailrace.spark") / "log4j2.properties"
    target = Path(pipeline.state) / LOG_NAME
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings} -Dtailrace.log={target} -Xss8m",
    }
