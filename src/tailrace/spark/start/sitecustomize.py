"""Python imports this as it starts, where this folder is on its path: in all Python processes of a Spark of ours."""

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from tailrace.spark.installed import prefer_installed_pyspark

prefer_installed_pyspark()

# whoever has a `sitecustomize` of his own gets it all the same
sys.path[:] = [place for place in sys.path if place != str(Path(__file__).parent)]
_own = sys.modules.pop("sitecustomize")
with suppress(ImportError):
    import_module("sitecustomize")
sys.modules.setdefault("sitecustomize", _own)  # Python looks for it when it has been imported
