"""The workers of a cluster, or of somebody's session: whether they can do our tasks, in a sentence if they can not."""

from __future__ import annotations

import re
import sys
from typing import Any

from pyspark.sql import SparkSession

from tailrace import config
from tailrace.errors import ConfigError, EngineLost, TailraceError
from tailrace.spark.jobs import tagged
from tailrace.tasks.outcome import attempt, unwrap
from tailrace.tasks.ready import lacks, look

MOST_TASKS = 16


def check_workers(spark: SparkSession, pipeline: config.Pipeline) -> None:
    """Run a task or more; waits until there is a worker for it. Those that come later are not asked.

    Raises what keeps them from working.
    """
    context = spark.sparkContext
    tasks = min(context.defaultParallelism, MOST_TASKS)

    def run(_: int) -> Any:
        return attempt(lambda: look(pipeline))

    try:
        with tagged(spark):
            found = context.parallelize(range(tasks), tasks).map(run).collect()
    except Exception as error:
        raise explained(str(error), str(context.master)) from error
    unwrap(found)


def explained(words: str, master: str) -> TailraceError:
    """What Spark says of a task that could not even begin, as a sentence."""
    here = "{}.{}".format(*sys.version_info)
    if found := re.search(r"No module named '([\w.]+)'", words):
        return lacks(f"of {master}", found[1])
    if found := re.search(r"PYTHON_VERSION_MISMATCH.*?([23]\.\d+)", words, re.DOTALL):
        return ConfigError(
            f"the workers of {master} run Python {found[1]}, and the driver {here}",
            hint=f"let PYSPARK_PYTHON, or spark.pyspark.python, name a Python {here} of the workers",
        )
    if found := re.search(r'Cannot run program "([^"]+)"', words):
        return ConfigError(
            f"the workers of {master} have no Python at {found[1]}",
            hint="let PYSPARK_PYTHON, or spark.pyspark.python, say where it is on the workers",
        )
    cause = re.search(r"Exception: (.+)", words)
    reason = cause[1] if cause else (words.splitlines() or ["no reason given"])[0]
    return EngineLost(f"the workers of {master} did not do a task: {reason}")
