"""Spark masters of this machine and of others: what each is given, what is refused, and in which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace import config
from tailrace.errors import ConfigError, EngineLost, StateError
from tailrace.pipeline import preflight
from tailrace.sources.base import Level
from tailrace.spark import session
from tailrace.spark.masters import is_local, refuse_local_sinks
from tailrace.spark.shipping import build_archive
from tailrace.spark.workers import explained
from tailrace.state.layout import RUN_LOCK
from tailrace.tasks import ready

CLUSTER = "spark://head:7077"


def pipeline_of(sink: str, state: str = "./state", **spark: Any) -> config.Pipeline:
    source = config.Source("postgresql://user:hidden@h/shop", ("public.*",))
    return config.Pipeline("shop", source, {"replica": config.Sink(sink)}, state=state, spark=config.Spark(**spark))


@pytest.mark.parametrize("master", ["local", "local[*]", "local[3,4]", "local-cluster[2,1,1024]"])
def test_a_master_of_this_machine_is_local(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", [CLUSTER, "yarn", "k8s://https://h:6443"])
def test_a_file_of_this_machine_is_refused_as_a_sink_of_a_cluster(master: str) -> None:
    assert not is_local(master)
    with pytest.raises(ConfigError, match=f"sink replica .* is on this machine, where the workers of {master}"):
        refuse_local_sinks(pipeline_of("sqlite:////srv/replica.db"), master)


@pytest.mark.parametrize("url", ["null://", "postgresql://u:hidden@h/copy", "mysql://u:hidden@h/copy"])
def test_servers_are_sinks_of_any_master(url: str) -> None:
    refuse_local_sinks(pipeline_of(url), CLUSTER)
    refuse_local_sinks(pipeline_of("sqlite:////srv/replica.db"), "local[*]")


def test_check_refuses_such_a_sink_where_the_file_names_the_master() -> None:
    found = preflight.sink_finding(pipeline_of("sqlite:////srv/replica.db", master=CLUSTER), "replica")
    assert found.level is Level.FAIL
    assert "local[*]" in found.fix


def test_paths_and_addresses_of_this_machine_are_given_to_local_masters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(session.SUBMITTED, raising=False)
    local = dict(session._conf(pipeline_of("null://")).getAll())
    assert local["spark.driver.host"] == "127.0.0.1"
    assert local[session.WORKER_PATH].endswith("start")
    assert local["spark.python.daemon.module"] == "tailrace.spark.daemon"
    remote = dict(session._conf(pipeline_of("null://", master=CLUSTER)).getAll())
    assert remote["spark.master"] == CLUSTER
    ours = {"spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled", session.WORKER_PATH}
    assert not remote.keys() & {*ours, "spark.python.daemon.module"}


def test_where_the_package_is_installed_its_workers_start_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(session.SUBMITTED, raising=False)
    remote = dict(session._conf(pipeline_of("null://", master=CLUSTER, ship=False)).getAll())
    assert remote["spark.python.daemon.module"] == "tailrace.spark.daemon"
    assert session.WORKER_PATH not in remote


def test_a_session_of_spark_connect_is_refused() -> None:
    remote: Any = object()
    with pytest.raises(ConfigError, match="Spark Connect"):
        session.guest_session(remote)


IMPORTS = """
import sys
sys.path = [sys.argv[1], *(place for place in sys.path if not place.endswith("/src"))]
from importlib.metadata import entry_points, version
import tailrace.registry as registry
assert registry.__file__.startswith(sys.argv[1]), registry.__file__
print(version("tailrace"), registry.sink_class("postgresql://h/d").__name__, *registry.schemes("tailrace.sinks"))
"""


def test_the_archive_for_workers_is_a_package_with_its_connectors(tmp_path: Path) -> None:
    archive = build_archive(tmp_path)
    assert build_archive(tmp_path) == archive
    command = [sys.executable, "-c", IMPORTS, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    schemes = "file kafka mariadb mysql null opensearch opensearchs postgres postgresql sqlite"
    assert done.stdout.split()[1:] == ["PostgresSink", *schemes.split()]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("PythonException: …\nModuleNotFoundError: No module named 'pyarrow.fs'", "has no Python package pyarrow"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than",
            "run Python 3.9, and the driver",
        ),
        ('java.io.IOException: Cannot run program "/opt/python": error=2', "have no Python at /opt/python"),
    ],
)
def test_what_keeps_workers_from_working_is_a_sentence(said: str, words: str) -> None:
    error = explained(f"An error occurred while calling x.\n{said}", CLUSTER)
    assert isinstance(error, ConfigError)
    assert words in str(error)
    assert error.hint


def test_of_other_trouble_of_the_workers_the_cause_is_said() -> None:
    error = explained("An error occurred.\n: org.apache.spark.SparkException: Job aborted: no space", CLUSTER)
    assert isinstance(error, EngineLost)
    assert str(error).endswith("Job aborted: no space")


def test_a_worker_that_does_not_see_the_state_of_the_run_says_so(tmp_path: Path) -> None:
    pipeline = pipeline_of("null://", state=str(tmp_path))
    with pytest.raises(StateError, match="does not see the state directory"):
        ready.look(pipeline)
    (tmp_path / RUN_LOCK).touch()
    assert ready.look(pipeline)
