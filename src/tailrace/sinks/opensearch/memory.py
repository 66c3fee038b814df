"""Which rows documents were built from, in an index beside theirs: an entry a document, with its key and its rows.

One rule, at every moment: an entry has all rows that its document, as it stands in the index, was built from. So what
is to be built from now on is added before the document is written, and what it was built from before is left out
after. A crash between leaves an entry with too many rows, which costs a build that changes nothing.

A row is a number: its node in the upper bits, and a hash. Two rows of one number cost such a build as well.

Entries have the versions of their documents, and every build writes them, also where nothing is new: what an older
build sent, and the server has not come to yet, is refused from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tailrace.documents.lists import Lists, none, side_by_side
from tailrace.errors import SinkUnavailable
from tailrace.sinks.opensearch.bodies import Piece, entries
from tailrace.sinks.opensearch.client import Answer, Client
from tailrace.sinks.opensearch.sending import NOT_THERE, Fenced, Sender, Target, Trouble

ROWS, KEY = "rows", "key"
MAPPING: dict[str, Any] = {
    "dynamic": "strict",
    "properties": {
        ROWS: {"type": "long", "doc_values": False},
        KEY: {"type": "keyword", "index": False, "doc_values": False, "store": True},
    },
}
PRIMARY = {"preference": "_primary"}
"""With segment replication other copies come later, and a refresh is no word of theirs."""
READ_AT_ONCE = 1_000


class Memory:
    """The entries of one target, beside documents that are written. For any number of threads."""

    def __init__(self, client: Client, target: Target, fenced: Fenced) -> None:
        self._client, self._target, self._fenced = client, target, fenced
        self._sender = Sender(client, target, target.memory, fenced)

    def add(self, piece: Piece, *, is_seed: bool) -> tuple[Lists, dict[int, Trouble]]:
        """Before documents are written. What else their entries have, and the documents that must not be written.

        Among these are those whose entries a later build has written: it writes the documents as well. In a seed no
        former entry is looked for: one that is broken off loads its chunk again, and what it loaded of rows that are
        gone since is found by these rows' own changes.
        """
        rows = piece.rows
        assert rows is not None
        more = none(len(piece)) if is_seed else left_over(self._read(piece.ids.to_pylist()), rows)
        return more, self._sender.send(entries(piece, side_by_side([rows, more]) if len(more.values) else rows))

    def leave_out(self, piece: Piece, more: Lists, refused: Collection[int]) -> None:
        """After documents are written: what they are not built from any more. Not of those that are as they were."""
        other = [place for place in np.flatnonzero(more.lengths).tolist() if place not in refused]
        if other:
            some = piece.take(other)
            assert some.rows is not None
            self._sender.send(entries(some, some.rows))

    def drop(self, piece: Piece, refused: Collection[int]) -> None:
        """After documents are deleted, by the same requests."""
        self._sender.send(piece.take([place for place in range(len(piece)) if place not in refused]))

    def _read(self, ids: Sequence[str]) -> Lists:
        rows: list[list[int]] = []
        for first in range(0, len(ids), READ_AT_ONCE):
            rows += self._read_some(ids[first : first + READ_AT_ONCE])
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return Lists(offsets, np.fromiter(chain.from_iterable(rows), np.int64, int(offsets[-1])))

    def _read_some(self, ids: Sequence[str]) -> list[list[int]]:
        doing = f"reading the memory of {self._target.table}"
        answer = self._client.ask(
            "POST", f"{self._target.memory}/_mget", {"ids": ids}, doing=doing, allow=(404,), parameters=PRIMARY
        )
        found: list[Answer] = answer.get("docs", [])
        for error in (each["error"] for each in (answer, *found) if "error" in each):
            if error["type"] == NOT_THERE:
                raise self._fenced(self._target)
            raise SinkUnavailable(f"the memory of {self._target.table} does not answer: {error['type']}")
        return [each["_source"][ROWS] if each["found"] else [] for each in found]


def left_over(former: Lists, rows: Lists) -> Lists:
    """What the former lists have and the others have not, each number once."""
    owners = np.repeat(np.arange(len(rows)), rows.lengths)
    former_owners = np.repeat(np.arange(len(rows)), former.lengths)
    owner, value = np.concatenate([owners, former_owners]), np.concatenate([rows.values, former.values])
    is_former = np.arange(len(owner)) >= len(owners)
    order = np.lexsort((is_former, value, owner))  # of equal ones, those of `rows` are first
    owner, value, is_former = owner[order], value[order], is_former[order]
    is_first = np.ones(len(owner), np.bool_)
    is_first[1:] = (owner[1:] != owner[:-1]) | (value[1:] != value[:-1])
    kept = is_first & is_former
    return Lists(np.searchsorted(owner[kept], np.arange(len(rows) + 1)), value[kept])
