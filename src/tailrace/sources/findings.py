"""Making findings: the lines of a preflight, and the error that a failing one stands for."""

from __future__ import annotations

from collections.abc import Collection

from tailrace.errors import SourceRefused, TailraceError
from tailrace.sources.base import Finding, Level

NAMED = 3


class Failure(Finding, frozen=True):
    """A finding that stops the pipeline; `error` is what `run` raises for it, and so says whether to try again.

    One that is only about some of its tables stops these: they are set aside by the run.
    """

    error: type[TailraceError] = SourceRefused
    is_of_some_tables: bool = False


def ok(subject: str, message: str) -> Finding:
    return Finding(subject, Level.OK, message)


def warn(subject: str, message: str, fix: str = "") -> Finding:
    return Finding(subject, Level.WARN, message, fix)


def fail(
    subject: str,
    message: str,
    fix: str,
    error: type[TailraceError] = SourceRefused,
    *,
    is_of_some_tables: bool = False,
) -> Failure:
    return Failure(subject, Level.FAIL, message, fix, error, is_of_some_tables)


def failure(subject: str, error: TailraceError, fix: str = "") -> Failure:
    """An error that was raised while looking, as a finding. The error's own hint is the better fix."""
    return Failure(subject, Level.FAIL, str(error), error.hint or fix, type(error))


def number_of(count: int, noun: str) -> str:
    """`1 table`, `1,200 tables`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(names: Collection[str]) -> str:
    """The first few names and how many more there are: a finding stays one line, whatever the number of tables."""
    first = sorted(names)[:NAMED]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest:,} more" if rest else "")
