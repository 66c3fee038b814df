"""The oldest Spark that tailrace runs on, in an environment of its own: some of the tests, where that one differs most.

`make test` makes the environment; `make test-spark VERSION=…` runs all tests of Spark in it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from tailrace.spark.versions import NEWEST, OLDEST, parse
from tailrace.testing.plugin import unavailable

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(parse(pyspark.__version__) != NEWEST, reason="this is another Spark already"),
]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / f".venv-spark-{OLDEST[0]}.{OLDEST[1]}"
SOME = (
    "test_every_type_reaches_spark_as_a_value_of_its_own",
    "test_a_limit_is_refused_where_spark_has_none[maxRowsPerTrigger]",
    "test_a_pipelines_micro_batches_are_bounded_whatever_spark_knows[maxRowsPerTrigger-6-6]",
    "test_a_named_readers_failed_batch_stays_until_it_is_done",
)
STORY = "tests/databases/test_demo.py::test_the_demo_survives_its_kill_and_ends_identical"


def test_the_oldest_spark_carries_the_demo_and_bounds_its_micro_batches() -> None:
    if not (ENVIRONMENT / ".setup-done").exists():
        unavailable(f"{ENVIRONMENT.name} is not there: `make {ENVIRONMENT.name}/.setup-done` makes it")
    tests = [*(f"tests/spark/test_datasource.py::{name}" for name in SOME), STORY]
    done = subprocess.run(
        [ENVIRONMENT / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTEST_"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{len(tests)} passed in " in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
