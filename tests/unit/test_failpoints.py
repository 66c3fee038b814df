"""Failpoints fire where, when and how the environment says, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import failpoints

NAME = "chunk-loaded"


def run_child(environment: dict[str, str], calls: int = 1) -> subprocess.CompletedProcess[str]:
    program = (
        f"from tailrace import failpoints\nfor n in range({calls}): failpoints.reached({NAME!r}); print(n, flush=True)"
    )
    command = [sys.executable, "-c", program]
    variables = {**os.environ, **environment}
    return subprocess.run(command, env=variables, check=False, capture_output=True, text=True, timeout=30)


@pytest.fixture
def arm(monkeypatch):
    monkeypatch.setattr(failpoints, "_reached", failpoints.Counter())

    def set_variables(**options) -> None:
        for variable, value in failpoints.environment(NAME, **options).items():
            monkeypatch.setenv(variable, value)

    return set_variables


def test_nothing_happens_when_nothing_is_armed(monkeypatch):
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    for name in failpoints.ALL:
        failpoints.reached(name)


def test_the_default_action_kills_the_process():
    child = run_child({failpoints.VARIABLE: NAME})
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, "")


def test_the_nth_time_kills_and_the_earlier_ones_do_not():
    child = run_child(failpoints.environment(NAME, nth=3), calls=5)
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, "0\n1\n")


def test_a_restarted_process_does_not_die_again(tmp_path: Path):
    environment = failpoints.environment(NAME, once=str(tmp_path / "fired"))
    assert run_child(environment).returncode == -signal.SIGKILL
    assert run_child(environment).returncode == 0


def test_another_name_does_not_fire(arm):
    arm(action="raise")
    failpoints.reached("table-live")


def test_raise_raises_every_time(arm):
    arm(action="raise")
    for _ in range(2):
        with pytest.raises(failpoints.FailpointRaised, match=NAME):
            failpoints.reached(NAME)


def test_an_nth_raise_raises_only_that_time(arm):
    arm(action="raise", nth=2)
    failpoints.reached(NAME)
    with pytest.raises(failpoints.FailpointRaised):
        failpoints.reached(NAME)
    failpoints.reached(NAME)


def test_sleep_waits_and_goes_on(arm, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(failpoints.time, "sleep", slept.append)
    arm(action="sleep=2.5")
    failpoints.reached(NAME)
    assert slept == [2.5]


def test_stop_freezes_the_process_until_it_is_continued():
    command = [sys.executable, "-c", f"from tailrace import failpoints\nfailpoints.reached({NAME!r})"]
    environment = {**os.environ, **failpoints.environment(NAME, action="stop")}
    with subprocess.Popen(command, env=environment) as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        child.send_signal(signal.SIGCONT)
        assert child.wait(30) == 0


@pytest.mark.parametrize(
    "wrong", ["chunk loaded", "chunk-loaded:0", "chunk-loaded:explode", "chunk-loaded:1:sleep=", ":1"]
)
def test_a_malformed_request_is_refused(wrong, monkeypatch):
    monkeypatch.setenv(failpoints.VARIABLE, wrong)
    with pytest.raises(ValueError, match="TAILRACE_FAILPOINT"):
        failpoints.reached(NAME)


def test_a_misspelt_name_cannot_be_armed():
    with pytest.raises(ValueError, match="no failpoint is called"):
        failpoints.environment("chunk-laoded")


def test_an_undeclared_failpoint_is_noticed_when_one_is_armed(arm):
    arm(action="raise")
    with pytest.raises(ValueError, match="not declared"):
        failpoints.reached("nowhere")


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="declared twice"):
        failpoints.declare(NAME, "again")
