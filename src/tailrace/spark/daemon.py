"""The process that Spark's Python workers are forked from: pyspark's own, with less to do at every start.

Spark puts an archive of pyspark before the installed package, and Python keeps no bytecode of what is in an archive:
each worker would compile pyspark anew. And what all workers import is imported here, once, before they are forked.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
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
    """Take an archive off the path that is part of an installed package which is on the path itself.

    The archive of a Spark that is not installed with pip stays: another pyspark may not speak with it.
    """
    sys.path[:] = [place for place in sys.path if not _is_doubled(Path(place))]


def _is_doubled(place: Path) -> bool:
    """Whether it is `…/site-packages/pyspark/python/lib/pyspark.zip`."""
    package = Path(*place.parts[:-3])
    is_archive = place.parts[-4:] == ("pyspark", "python", "lib", "pyspark.zip")
    return is_archive and (package / "__init__.py").is_file() and str(package.parent) in sys.path


if __name__ == "__main__":
    main()
