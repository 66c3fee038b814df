"""Whose an error is: what a table meets with in the sink is that table's own trouble, and stops no other."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.errors import SinkRejected

FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""What Python raises where code does not expect what it finds."""


@contextmanager
def trouble_of(table: str) -> Iterator[None]:
    """What is refused inside is this table's own trouble; so is a fault of ours, which stops no other table."""
    try:
        yield
    except SinkRejected as error:
        error.table = error.table or table
        raise
    except FAULTS as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"  # its words may show a value
        hint = "this is a fault of tailrace; please report it, with what is particular about the table in the sink"
        raise SinkRejected(
            f"{table} met with an error that nobody expected: {where}", hint=hint, table=table
        ) from error
