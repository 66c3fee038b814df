"""Python imports this as it starts, where this folder is on its path: in Python processes of a Spark of ours.

The Python may be another one than the driver's, without this package: what is needed of it is found beside.
"""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_here = Path(__file__).parent
_found = spec_from_file_location("tailrace_installed", _here.parent / "installed.py")
if _found is not None and _found.loader is not None:
    _installed = module_from_spec(_found)
    _found.loader.exec_module(_installed)
    _installed.prefer_installed_pyspark()

# whoever has a `sitecustomize` of his own gets it all the same
sys.path[:] = [place for place in sys.path if place != str(_here)]
_own = sys.modules.pop("sitecustomize")
with suppress(ImportError):
    import_module("sitecustomize")
sys.modules.setdefault("sitecustomize", _own)  # Python looks for it when it has been imported
