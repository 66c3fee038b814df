"""Python imports this as it starts, where this folder is on its path: in all Python processes of a Spark of ours."""

import sys
from importlib import import_module
from pathlib import Path

from tailrace.spark.installed import prefer_installed_pyspark

prefer_installed_pyspark()

# whoever has a `sitecustomize` of his own gets it all the same
sys.path[:] = [place for place in sys.path if place != str(Path(__file__).parent)]
ours = sys.modules.pop("sitecustomize", None)
try:
    import_module("sitecustomize")
except ImportError:
    if ours is not None:  # Python looks for it under its name once this ends
        sys.modules["sitecustomize"] = ours
