"""Which pyspark the Python processes of Spark import: the installed one, where it is the same as Spark's own.

Spark puts an archive of pyspark before the installed package, and Python keeps no bytecode of what is in an archive:
each process would compile pyspark anew, for a second or so. Imports nothing heavy: `start/sitecustomize.py` does it
while Python starts.
"""

from __future__ import annotations

import sys
from pathlib import Path

START = Path(__file__).parent / "start"
"""A folder that makes a Python process prefer the installed pyspark, if it is on its path."""


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
