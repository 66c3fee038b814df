"""The oldest Spark that tailrace runs on, in an environment of its own: a pipeline, and what differs most there.

`make test` makes the environment; `make test-spark VERSION=…` runs all tests of Spark in it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pyspark
import pytest

from support.pipelines import Replica, RunningPipeline, position_of, wait_until_same, write_pipeline
from tailrace.spark.versions import NEWEST, OLDEST, parse
from tailrace.testing.plugin import unavailable

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(parse(pyspark.__version__) != NEWEST, reason="this is another Spark already"),
]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / f".venv-spark-{OLDEST[0]}.{OLDEST[1]}"
SOME = (
    "test_datasource.py::test_every_type_reaches_spark_as_a_value_of_its_own",
    "test_datasource.py::test_a_limit_is_refused_where_spark_has_none[maxRowsPerTrigger]",
    "test_datasource.py::test_a_pipelines_micro_batches_are_bounded_whatever_spark_knows[maxRowsPerTrigger-6-6]",
    "test_datasource.py::test_a_named_readers_failed_batch_stays_until_it_is_done",
    "test_expressions.py::test_two_tables_go_through_their_expressions_in_one_job",
)
CHANGES = (
    "INSERT INTO items SELECT n, md5(n::text) FROM generate_series(2001, 4000) n",
    "UPDATE items SET v = v || id WHERE id % 3 = 0",
    "DELETE FROM items WHERE id % 5 = 0",
)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    """The interpreter of that environment. Nothing in the variables leads back to this one."""
    if not (ENVIRONMENT / ".setup-done").exists():
        unavailable(f"there is no {ENVIRONMENT.name}: `make {ENVIRONMENT.name}/.setup-done` makes it")
    for name in [name for name in os.environ if name.startswith(("PYSPARK_", "PYTEST_"))]:
        monkeypatch.delenv(name)
    return str(ENVIRONMENT / "bin" / "python")


def test_a_pipeline_on_the_oldest_spark_copies_and_follows(python: str, postgres_url: str, tmp_path: Path) -> None:
    sink = {"url": f"sqlite:///{tmp_path}/replica.db", "max_rows": 150}
    file = write_pipeline(tmp_path, postgres_url, {"replica": sink})
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items AS SELECT n AS id, md5(n::text) AS v FROM generate_series(1, 2000) n")
        connection.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
        with RunningPipeline(file, python=python) as pipeline:
            pipeline.wait_until_live("public.items")
            for change in CHANGES:
                connection.execute(change)
            end, replica = position_of(postgres_url), Replica(file)
            pipeline.wait_for(lambda: replica.has_reached(end), "the replica to be current")
            wait_until_same(pipeline, postgres_url, tmp_path / "replica.db")
            assert pipeline.stop() == 0, pipeline.output


def test_what_differs_on_the_oldest_spark_is_as_it_is_told(python: str) -> None:
    tests = [f"tests/spark/{name}" for name in SOME]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"{len(tests)} passed in " in done.stdout, done.stdout + done.stderr
