"""The Spark session a pipeline runs in."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, accumulators
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import ConfigError, EngineLost
from tailrace.spark.classes import archive_options
from tailrace.spark.installed import START
from tailrace.spark.masters import is_local
from tailrace.state.storage import private

LOG_NAME = "spark.log"
ANY_LOCAL = "local[*]"  # what spark-submit takes where nobody names a master
_DEEP = "-Xss8m"
_PATIENT = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""The best compiler is for code that is hot for long, ten times as long as usual: a start is full of what is not."""
_QUICK_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""In the environment of what `spark-submit` runs, in every deploy mode: its JVM was there first."""
WORKER_PYTHON = "spark.pyspark.python"
WORKER_PATH = "spark.executorEnv.PYTHONPATH"
TASK_TRIES = 4  # a worker that is killed is no reason to stop: chunks and parts can be done again
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
}
"""May be set in a session of a context that others have made."""
_PATIENCE = {"spark.sql.streaming.stopTimeout": "10s"}  # with a query that is to end, and does not
_NO_BARS = ("spark.ui.showConsoleProgress", "false")  # or spark-submit takes it for a shell, and shows them
_DEFAULTS = {
    "spark.log.level": "ERROR",
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop gives its files a mode of its own
    **_SQL,
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_INSTALLED = {"spark.python.daemon.module": "tailrace.spark.daemon"}
"""Where the workers' Python finds this package before it has been told anything."""


def open_session(pipeline: config.Pipeline) -> SparkSession:
    """The active session, or a new one as the pipeline file says.

    Workers run this very interpreter, or the one at its path, unless they are told another. What `spark-submit` was
    told, and what stands in spark-defaults.conf, counts more than our own defaults.
    """
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    python = pipeline.spark.settings().get(WORKER_PYTHON, sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _quiet_pyspark()
    try:
        _start_jvm(pipeline)
        with _kept_interrupt():
            return SparkSession.builder.config(conf=_conf(pipeline)).getOrCreate()
    except Exception as error:
        raise EngineLost(f"Spark did not start: {str(error).splitlines()[0]}") from error


def guest_session(session: SparkSession) -> SparkSession:
    """A session of our own in the context of somebody's: settings and data sources of theirs stay as they are.

    What their context was started with counts more than our own defaults.
    """
    if not isinstance(session, SparkSession):
        raise ConfigError(
            "a session of Spark Connect can not run a pipeline: its tasks need the session's SparkContext",
            hint="use a classic session: where Spark itself runs, or a cluster that one user has for himself",
        )
    guest, given = session.newSession(), session.sparkContext.getConf()
    for key, value in (_SQL | _PATIENCE).items():
        if not given.contains(key):
            guest.conf.set(key, value)
    return guest


def _conf(pipeline: config.Pipeline) -> SparkConf:
    conf = SparkConf()  # what the JVM was started with
    is_submitted = SUBMITTED in os.environ
    for key, value in pipeline.spark.settings().items():
        conf.setIfMissing(key, value) if is_submitted else conf.set(key, value)
    _set_master(conf, pipeline, is_submitted=is_submitted)
    local = is_local(str(conf.get("spark.master", ANY_LOCAL)))
    installed = local or not pipeline.spark.ship
    for key, value in (_DEFAULTS | (_LOCAL if local else {}) | (_INSTALLED if installed else {})).items():
        conf.setIfMissing(key, value)
    if local:
        conf.set(WORKER_PATH, _with_start(conf.get(WORKER_PATH)))
    return conf.setIfMissing("spark.app.name", f"tailrace {pipeline.name}")


def _set_master(conf: SparkConf, pipeline: config.Pipeline, *, is_submitted: bool) -> None:
    """What `spark-submit` was told counts, unless it was told nothing; then what the file says, then spark-defaults."""
    known = str(conf.get("spark.master", ANY_LOCAL))
    if is_submitted and known != ANY_LOCAL:
        return
    if pipeline.spark.master is not None:
        conf.setMaster(pipeline.spark.master)
    elif not is_submitted and known == ANY_LOCAL:
        # a copy takes a slot a core; one more is left to what is live meanwhile
        cores = os.cpu_count() or 2
        conf.setMaster(f"local[{cores + 1},{TASK_TRIES}]").setIfMissing("spark.default.parallelism", str(cores))


def _start_jvm(pipeline: config.Pipeline) -> None:
    """A JVM of our own, unless there is one: `spark-submit` starts its own, and a session may have been here before.

    It and its workers make files for their owner alone: plans, spills, checkpoints. What it says goes beside Spark's
    log: the terminal is ours.
    """
    if SparkContext._gateway is not None or SUBMITTED in os.environ:
        SparkContext._ensure_initialized()  # it knows what spark-submit was told
        return
    conf = SparkConf(loadDefaults=False).setAll(list(pipeline.spark.settings().items()))
    conf.setIfMissing(*_NO_BARS)
    options = (_logging(pipeline), _PATIENT, archive_options(os.environ), os.environ.get("SPARK_SUBMIT_OPTS", ""))
    launcher = os.environ.get("SPARK_LAUNCHER_OPTS", _QUICK_LAUNCHER)
    with ExitStack() as stack:
        stack.enter_context(_environment("SPARK_SUBMIT_OPTS", " ".join(filter(None, options))))
        stack.enter_context(_environment("SPARK_LAUNCHER_OPTS", launcher))
        stack.enter_context(_environment("PYTHONPATH", _with_start(os.environ.get("PYTHONPATH"))))
        started: dict[str, Any] = {"umask": 0o077}
        if "://" not in pipeline.state:
            target = Path(pipeline.state) / LOG_NAME
            started["stderr"] = stack.enter_context(open(target, "ab", opener=private))
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, started))  # type: ignore[no-untyped-call]


def _with_start(path: str | None) -> str:
    """For Python processes on this machine, which then need not compile pyspark (`spark/installed.py`)."""
    return os.pathsep.join(filter(None, (str(START), path)))


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """For a process that is started in here. Others that are meanwhile do not mind."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
    """That the JVM is gone is for us to say, once: threads of pyspark and py4j would print a traceback each.

    So is what goes wrong in an expression: pyspark would print it with the value that it went wrong for.
    """
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)  # some of it logs as nobody in particular


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _logging(pipeline: config.Pipeline) -> str:
    """Spark's own words go to a file in the state directory."""
    if "://" in pipeline.state:
        return _DEEP
    settings = resources.files("tailrace.spark") / "log4j2.properties"
    target = Path(pipeline.state) / LOG_NAME
    return f'"-Dlog4j2.configurationFile={settings}" "-Dtailrace.log={target}" {_DEEP}'
