"""The demo's own bookkeeping: what it counts as lag, and what it prints at the end."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tailrace.demo import screen
from tailrace.demo.lag import LagProbe, quantile
from tailrace.demo.screen import Screen
from tailrace.demo.summary import Facts, render
from tailrace.testing.content import Difference


def printed(facts: Facts) -> str:
    console = Console(file=StringIO(), width=1000)
    console.print(render(facts))
    return console.file.getvalue()


def test_identical_tables_end_in_one_sentence():
    told = printed(Facts(rows={"orders": (1200, 1200), "products": (3, 3)}, waits=[0.1, 0.2, 0.3]))
    assert "orders             1,200       1,200   identical\n" in told
    assert "identical: every column of all 1,203 rows" in told
    assert not any(line.endswith(" ") for line in told.splitlines())


def test_a_difference_is_named_by_its_key_and_never_by_its_values():
    wrong = Difference("public.orders", "differs in note:", (17,), (17, "secret"), (17, "other"))
    told = printed(Facts(rows={"orders": (1, 1), "products": (3, 3)}, differences=[wrong]))
    assert "NOT identical:\n  public.orders: differs in note: (17)\n" in told
    assert "1   differs\n" in told
    assert "3   identical\n" in told
    assert "secret" not in told
    assert "every column" not in told


def test_a_demo_without_orders_says_that_lag_was_not_measured():
    assert "lag       not measured" in printed(Facts())


def test_orders_of_before_and_of_the_outage_are_not_counted_as_lag():
    probe = LagProbe(Path("none.db"))
    probe.began_at = 5.0
    probe._seen += [(4.0, 6.0), (10.0, 10.5), (19.9, 31.0), (20.5, 31.0), (31.0, 33.0), (40.0, 40.3)]
    probe.mark_outage(20.0, 32.0)
    assert probe.live() == pytest.approx([0.3, 0.5])
    assert probe.longest() == pytest.approx(11.1)


@pytest.mark.parametrize(("share", "value"), [(0.5, 3), (0.95, 5), (1.0, 5), (0.0, 1)])
def test_a_quantile_is_one_of_the_values(share, value):
    assert quantile([1, 2, 3, 4, 5], share) == value


def test_without_a_terminal_how_things_are_is_a_line_now_and_then(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: clock[0])
    console = Console(file=StringIO())
    with Screen(console) as shown:
        for tick in range(200):
            clock[0] = tick / 10
            shown.show("waiting")
        shown.say("done")
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "  2.0 s  waiting"
    assert 4 <= sum(line.endswith("waiting") for line in lines) <= 6
    assert lines[-1] == " 19.9 s  done"
