"""Documents that can not be built, told apart from those that can: one bad value is the trouble of one document.

Documents that are too large to be built together are built in smaller parts, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from tailrace.documents import keys
from tailrace.documents.build import Built, build, texts_of
from tailrace.documents.tree import Tree
from tailrace.errors import ValueRefused
from tailrace.model.rows import ReadRows

MOST_REFUSED = 100
"""Of one build; beyond this many the documents are not the problem."""


class Refused(msgspec.Struct, frozen=True):
    """A document that has a value which none can have, and why. `key` are the texts that `id` is made of."""

    id: str
    reason: str
    key: tuple[str, ...] = ()


def build_apart(
    tree: Tree, wanted: pa.RecordBatch, read: ReadRows, *, are_rows: bool = False
) -> Iterator[Built | Refused]:
    """As `build`, in parts if it must be. With `are_rows`, `wanted` are whole rows of the root table.

    Raises ValueRefused where more than MOST_REFUSED documents can not be built.
    """
    waiting, refused = [wanted], 0
    while waiting:
        some = waiting.pop()
        try:
            yield build(tree, some, read, some if are_rows else None)
        except ValueRefused as error:
            if some.num_rows > 1:
                half = some.num_rows // 2
                waiting += [some.slice(half), some.slice(0, half)]
                continue
            refused += 1
            if refused > MOST_REFUSED:
                raise
            texts = texts_of(tree.root, some, tree.key) if are_rows else some.select(tree.key).columns
            yield Refused(keys.ids(texts)[0].as_py(), str(error), tuple(text[0].as_py() for text in texts))
