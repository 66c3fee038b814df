"""Which transactions of the stream a snapshot has seen: 32-bit ids against 64-bit snapshots."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.errors import DecodeError
from tailrace.sources.postgres.visibility import is_visible, parse_snapshot

EPOCH = 1 << 32


def visible(snapshot: str, *xids: int) -> list[bool]:
    return is_visible(np.array(xids, np.int64), snapshot).tolist()


def test_what_ended_before_the_oldest_running_transaction_is_visible():
    assert visible("100:100:", 3, 98, 99) == [True] * 3


def test_what_began_after_the_snapshot_is_not_visible():
    assert visible("100:100:", 100, 101, 5_000) == [False] * 3


def test_a_transaction_that_was_running_is_not_visible_and_those_around_it_are():
    assert visible("100:110:100,105,109", *range(98, 112)) == [
        *[True, True],  # 98, 99
        *[False, True, True, True, True],  # 100 …
        *[False, True, True, True],  # 105 …
        *[False],  # 109
        *[False, False],  # 110, 111
    ]


def test_a_running_transaction_may_be_the_only_one():
    assert visible("100:101:100", 99, 100, 101) == [True, False, False]


@pytest.mark.parametrize("epoch", [1, 2, 7, 1 << 20])
def test_an_id_is_of_the_epoch_of_the_snapshot(epoch):
    base = epoch * EPOCH
    assert visible(f"{base + 100}:{base + 110}:{base + 105}", 99, 104, 105, 109, 110) == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_an_id_from_before_the_wrap_is_of_the_epoch_before():
    now = 3 * EPOCH + 10
    assert visible(f"{now}:{now}:", EPOCH - 1, EPOCH - 1_000, 9, 10) == [True, True, True, False]


def test_an_id_from_after_the_wrap_is_of_the_epoch_that_follows():
    now = 3 * EPOCH - 10
    assert visible(f"{now}:{now}:", EPOCH - 11, EPOCH - 10, 3, 1_000_000) == [True, False, False, False]


def test_a_transaction_that_ran_across_the_wrap_is_not_visible():
    before, after = 2 * EPOCH - 5, 2 * EPOCH + 20
    assert visible(f"{before}:{after}:{before},{2 * EPOCH + 3}", EPOCH - 6, EPOCH - 5, EPOCH - 4, 3, 4, 19, 20) == [
        *[True, False, True],
        *[False, True, True, False],
    ]


def test_an_id_two_billion_behind_is_past_and_two_billion_ahead_is_future():
    now = 5 * EPOCH + (1 << 31)
    half = EPOCH // 2
    assert visible(f"{now}:{now}:", *((now + step) % EPOCH for step in (1 - half, -1, 0, half - 1))) == [
        True,
        True,
        False,
        False,
    ]


def test_in_the_first_epoch_a_large_id_is_no_future():
    assert visible("1000:1000:", 3_000_000_000 - 1_000_000_000) == [False]
    assert visible("3000000000:3000000000:", 2_000_000_000, 3_500_000_000) == [True, False]


def test_no_ids_at_all_are_no_answers():
    assert visible("100:100:") == []


def test_a_snapshot_is_read_as_the_server_writes_it():
    xmin, xmax, running = parse_snapshot("10:20:10,14,15")
    assert (xmin, xmax, running.tolist()) == (10, 20, [10, 14, 15])
    assert parse_snapshot("10:10:")[2].tolist() == []


@pytest.mark.parametrize("text", ["", "10", "10:20", "10:20:30:40", "a:b:c", "10:20:1,x"])
def test_what_is_no_snapshot_is_refused(text):
    with pytest.raises(DecodeError, match="not a snapshot"):
        visible(text, 1)
