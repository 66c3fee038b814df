"""The Spark session a pipeline runs in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import EngineLost, StateError

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
}


def open_session(pipeline: config.Pipeline) -> SparkSession:
    """The active session, or a new one as the pipeline file says. Workers run this very interpreter."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"tailrace {pipeline.name}")
    if pipeline.spark.master is not None:
        builder = builder.master(pipeline.spark.master)
    elif "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in (_DEFAULTS | _logging(pipeline) | pipeline.spark.settings()).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise EngineLost(f"Spark did not start: {str(error).splitlines()[0]}") from error


def require_java() -> None:
    """Raise with the remedy when there is no Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not shutil.which(java):
        raise StateError(
            "Spark needs Java 17 or newer and none was found",
            hint="install one (Debian, Ubuntu: apt-get install default-jre-headless; macOS: brew install openjdk) "
            "or set JAVA_HOME",
        )
    subprocess.run([java, "-version"], check=False, capture_output=True)


def _logging(pipeline: config.Pipeline) -> dict[str, str]:
    """Spark's own words go to a file in the state directory: the terminal is ours."""
    if "://" in pipeline.state:
        return {}
    settings = resources.files("tailrace.spark") / "log4j2.properties"
    target = Path(pipeline.state) / "spark.log"
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings} -Dtailrace.log={target} -Xss8m",
    }
