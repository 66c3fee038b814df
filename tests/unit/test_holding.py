"""Holding a pipeline's sinks at one place, while somebody compares."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailrace.errors import StateError
from tailrace.spark.datasource import _held_at
from tailrace.state import holding
from tailrace.state.holding import Hold
from tailrace.testing.processes import wait_until


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(holding, "LEASE_SECONDS", 0.4)
    return str(tmp_path)


def held_at(state: str) -> int | None:
    return _held_at({"path": state})


def test_a_hold_lasts_for_as_long_as_its_holder_looks_and_no_longer(state: str) -> None:
    with Hold(state, 10) as hold:
        deadline = time.monotonic() + 3 * holding.LEASE_SECONDS
        wait_until(lambda: held_at(state) != 10 or time.monotonic() > deadline, seconds=10, what="the lease to be over")
        assert held_at(state) == 10
        hold.place(7)
        assert held_at(state) == 7
    assert held_at(state) is None


def test_a_hold_whose_holder_died_lapses(state: str) -> None:
    hold = Hold(state, 10)
    hold.place(10)
    assert held_at(state) == 10
    wait_until(lambda: held_at(state) is None, seconds=10, what="the hold to lapse")


def test_there_is_one_hold_at_a_time(state: str) -> None:
    """A second one would let the sinks go on under the eyes of the first."""
    with Hold(state, 10):
        with pytest.raises(StateError, match="somebody else holds"), Hold(state, 20):
            pass
        assert held_at(state) == 10
