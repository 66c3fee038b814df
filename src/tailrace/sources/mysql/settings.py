"""What a MySQL or MariaDB source has of its own in the pipeline file."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from tailrace import config
from tailrace.sources.mysql.types import ZeroDates

_LEAST_ID, _MOST_ID = 1, 2**32 - 1
_OWN_IDS = 1 << 31
"""Ids that we make are in the upper half: people number their servers from below."""


class Moment(StrEnum):
    """How the one moment of a copy is found, which all of its readers see."""

    QUIET = "quiet"  # between two commits: readers begin until none came in between
    LOCK = "lock"  # FLUSH TABLES WITH READ LOCK, for the milliseconds in which the readers begin


class MysqlSettings(config.Settings, frozen=True):
    """The database read from: MySQL or MariaDB."""

    server_id: (
        Annotated[
            int,
            Meta(ge=_LEAST_ID, le=_MOST_ID, description="our id as a replica; default: made of the pipeline's name"),
        ]
        | None
    ) = None
    zero_dates: Annotated[
        ZeroDates,
        Meta(
            description="dates that no calendar has, such as 0000-00-00: `stop` at them, read them as `null`, or read"
            " columns of dates as `text`"
        ),
    ] = ZeroDates.STOP
    readers: Annotated[int, Meta(ge=1, le=64, description="connections that copy tables at the same time")] = 4
    moment: Annotated[
        Moment,
        Meta(
            description="the moment of a copy: `quiet` between two commits, or under a global read `lock` of"
            " milliseconds, for servers that never rest"
        ),
    ] = Moment.QUIET
    copy_address: Annotated[
        str,
        Meta(min_length=1, description="address of this host that Spark's workers reach; they read copies through it"),
    ] = "127.0.0.1"

    def server_id_of(self, pipeline: str) -> int:
        """The id of the pipeline that has this name: the same in every run."""
        return self.server_id or _OWN_IDS | zlib.crc32(f"tailrace {pipeline}".encode()) >> 1
