"""Lists as PostgreSQL's array literals: `{"a","b",NULL}`, every element in quotes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.model.text import to_text
from tailrace.model.types import ColumnType


def array_literals(array: pa.ListArray, type_: ColumnType) -> pa.StringArray:
    """The literal of each list; null stays null."""
    assert type_.element is not None
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    text = to_text(array.flatten(), type_.element)
    for character in ("\\", '"'):
        text = pc.replace_substring(text, character, "\\" + character)
    text = pc.fill_null(pc.binary_join_element_wise('"', text, '"', ""), "NULL")
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(bounds), text)
    joined = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))
