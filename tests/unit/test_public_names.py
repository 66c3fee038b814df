"""The public names are few, documented, and cost nothing to import."""

import subprocess
import sys

import tailrace


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(tailrace, name).__doc__ for name in tailrace.__all__)


def test_importing_tailrace_imports_neither_spark_nor_arrow() -> None:
    program = "import sys, tailrace; sys.exit(any(m.startswith(('pyspark', 'pyarrow')) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
