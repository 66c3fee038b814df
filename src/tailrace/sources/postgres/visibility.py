"""Which transactions a snapshot sees: `pg_current_snapshot()` against the transaction ids of the stream.

A snapshot's ids have 64 bits, the stream's 32: a short id is the long one nearest to the snapshot's `xmax`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailrace.errors import DecodeError

_EPOCH = 1 << 32


def is_visible(xids: npt.NDArray[np.int64], snapshot: str) -> npt.NDArray[np.bool_]:
    """For each committed transaction: true if `snapshot` (`xmin:xmax:xip,xip,…`) sees it."""
    xmin, xmax, running = parse_snapshot(snapshot)
    nearest = xmax - (xmax % _EPOCH) + xids
    nearest = np.where(nearest - xmax >= _EPOCH // 2, nearest - _EPOCH, nearest)
    nearest = np.where(xmax - nearest > _EPOCH // 2, nearest + _EPOCH, nearest)
    return (nearest < xmin) | ((nearest < xmax) & ~np.isin(nearest, running))


def running(snapshot: str) -> npt.NDArray[np.int64]:
    """The transactions that have not ended, by their short ids."""
    return parse_snapshot(snapshot)[2] % _EPOCH


def written_since(snapshot: str) -> str:
    """A condition in SQL on the rows that a snapshot may not see: written by its oldest running transaction, or later.

    A part of a transaction (a savepoint) has an id of its own, which no snapshot lists: so all later ones count.
    """
    newest = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    own = "xmin::text::bigint"
    whole = f"({newest} - {newest} % {_EPOCH} + {own} - CASE WHEN {own} > {newest} % {_EPOCH} THEN {_EPOCH} ELSE 0 END)"
    return f"{whole} >= {parse_snapshot(snapshot)[0]}"


def parse_snapshot(text: str) -> tuple[int, int, npt.NDArray[np.int64]]:
    try:
        xmin, xmax, running = text.split(":")
        return int(xmin), int(xmax), np.array([int(x) for x in running.split(",") if x], np.int64)
    except ValueError as error:
        raise DecodeError(f"{text!r} is not a snapshot of PostgreSQL") from error
