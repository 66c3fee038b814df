"""Positions of PostgreSQL: their order, and the end of a record at the edge of a page."""

from __future__ import annotations

import pytest

from tailrace.sources.postgres.positions import end_of_record, format_lsn, parse_lsn, reached

SEGMENT, PAGE = 16 << 20, 8192


@pytest.mark.parametrize("text", ["0/0", "0/16B3748", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_a_position_survives_parsing(text: str) -> None:
    assert format_lsn(parse_lsn(text)) == text


def test_positions_are_compared_as_numbers() -> None:
    assert reached("10/0", "9/FFFFFFFF")
    assert not reached("9/FFFFFFFF", "10/0")


@pytest.mark.parametrize(
    ("insert", "end"),
    [
        ("0/1002018", "0/1002000"),  # the next record follows a page's header
        ("0/2000028", "0/2000000"),  # and here the longer one of a segment's first page
        ("0/1002028", "0/1002028"),  # a record that began on the page before ends 40 bytes into a page
        ("0/10020B8", "0/10020B8"),
    ],
)
def test_the_end_of_a_record_lies_before_the_header_of_the_next_page(insert: str, end: str) -> None:
    assert end_of_record(insert, SEGMENT, PAGE) == end


def test_pages_of_the_log_have_the_size_that_the_server_was_built_with() -> None:
    assert end_of_record("0/1002018", SEGMENT, 2 * PAGE) == "0/1002018"
    assert end_of_record("0/1001018", SEGMENT, PAGE // 2) == "0/1001000"
