"""Which versions of Spark a pipeline runs on, and what of it differs. Imports nothing heavy."""

from __future__ import annotations

OLDEST, NEWEST = (4, 1), (4, 3)
INSTALL = f"pip install 'pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"
READ_LIMITS_SINCE = (4, 2)
"""Spark says how large a micro-batch of a Python source may be, and where it begins; and knows `availableNow`."""


def parse(version: str) -> tuple[int, int]:
    """(4, 1) of `4.1.4`, or of the `4.2.0.dev0` of who builds it himself."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_supported(version: str) -> bool:
    return OLDEST <= parse(version) <= NEWEST


def refusal(version: str) -> str:
    """Why a version can not be used, in a sentence."""
    oldest, newest = (".".join(map(str, end)) for end in (OLDEST, NEWEST))
    return f"pyspark {version} is not one that tailrace runs on: it needs {oldest} to {newest}"


def has_read_limits() -> bool:
    """Of the pyspark that is installed."""
    from pyspark.version import __version__

    return parse(__version__) >= READ_LIMITS_SINCE
