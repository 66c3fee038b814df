"""The process that Spark's Python workers are forked from: pyspark's own, with less to do at every start.

What all workers import is imported here, once, before they are forked.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from tailrace.spark.installed import prefer_installed_pyspark

TASKS = "pyspark.worker"
"""The kind of worker that runs tasks; others look for data sources and plan reads."""


def main() -> None:
    prefer_installed_pyspark()
    if sys.argv[1:2] == [TASKS]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before a fork
        import_module("tailrace.tasks.stage")
        import_module(TASKS)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
