"""The process that Spark's Python workers are forked from: pyspark's own, with less to do at every start.

Spark puts an archive of pyspark before the installed package, and Python keeps no bytecode of what is in an archive:
each worker would compile pyspark anew. And what all workers import is imported here, once, before they are forked.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

TASKS = "pyspark.worker"
"""The kind of worker that runs tasks; others look for data sources and plan reads."""


def main() -> None:
    prefer_installed_pyspark()
    if sys.argv[1:2] == [TASKS]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before a fork
        import_module("tailrace.spark.apply")
        import_module(TASKS)
    import_module("pyspark.daemon").manager()


def prefer_installed_pyspark() -> None:
    """Take the archive off the path, if what is left has a pyspark."""
    archived = [place for place in sys.path if Path(place).name == "pyspark.zip"]
    sys.path[:] = [place for place in sys.path if place not in archived]
    if find_spec("pyspark") is None:
        sys.path[1:1] = archived


if __name__ == "__main__":
    main()
