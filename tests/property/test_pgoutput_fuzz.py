"""Damaged pgoutput: it decodes, or it raises one of our two errors; no byte outside of a message is ever used."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.messages import (
    Value,
    begin,
    commit,
    delete,
    insert,
    logical_message,
    origin,
    relation,
    row,
    truncate,
    type_,
    update,
)
from tailrace.columns.net import net_changes
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.changes import change_schema
from tailrace.model.frames import PADDING, Definition, Frames
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.types import column_type

# a type, its modifier, and some valid values of it in both forms
TYPES: list[tuple[int, int, list[Value]]] = [
    (23, -1, ["7", struct.pack(">i", -7)]),
    (25, -1, ["grüße", b"", "t"]),
    (16, -1, ["t", b"\1"]),
    (1700, (12 << 16) + 2 + 4, ["12.50", struct.pack(">HhHHHH", 2, 0, 0, 2, 12, 5000)]),
    (1700, -1, ["1e10", "NaN", struct.pack(">HhHH", 0, 0, 0xC000, 0)]),
    (1184, -1, ["2024-02-29 00:00:00.5+00", struct.pack(">q", 2**63 - 1)]),
    (17, -1, [r"\xdeadbeef", b"\0\xff"]),
    (2950, -1, ["6ba7b810-9dad-11d1-80b4-00c04fd430c8", bytes(range(16))]),
    (1007, -1, ["{1,NULL}", struct.pack(">iiiiiii", 1, 1, 23, 2, 1, 4, 7) + struct.pack(">i", -1)]),
    (3802, -1, ['{"a": 1}', b"\1[]"]),
    (1186, -1, ["1 year", struct.pack(">qii", 5, 4, 3)]),
    (1083, -1, ["12:00:00", struct.pack(">q", 0)]),
    (869, -1, ["10.0.0.1", b"\2\x20\0\4\1\2\3\4"]),
]
WIDTH = len(TYPES)
COLUMNS = tuple(Column(f"c{i}", column_type(oid, modifier, {})) for i, (oid, modifier, _) in enumerate(TYPES))
KEYED = TableSchema("public", "keyed", COLUMNS, ("c0",))
WHOLE = TableSchema("public", "whole", COLUMNS, (), Identity.FULL)
DEFINITIONS = (Definition(1, 0, KEYED), Definition(2, 0, WHOLE))
DESCRIBED = [(i == 0, f"c{i}", oid, modifier) for i, (oid, modifier, _) in enumerate(TYPES)]

rows = st.tuples(*(st.sampled_from([*values, None]) for _, _, values in TYPES))
partial_rows = st.tuples(*(st.sampled_from([*values, None, ...]) for _, _, values in TYPES))
keys = st.sampled_from(TYPES[0][2]).map(lambda value: (value, *[None] * (WIDTH - 1)))

changes = st.one_of(
    rows.map(lambda new: insert(1, *new)),
    partial_rows.map(lambda new: update(1, *new)),
    st.tuples(partial_rows, keys).map(lambda both: update(1, *both[0], key=both[1])),
    keys.map(lambda key: delete(1, key=key)),
    st.tuples(partial_rows, rows).map(lambda both: update(2, *both[0], old=both[1])),
    rows.map(lambda old: delete(2, old=old)),
    st.sampled_from([truncate(1), truncate(2, 1)]),
)
others = st.sampled_from(
    [
        begin(),
        commit(),
        origin(),
        type_(),
        logical_message(),
        relation(1, "public", "keyed", "d", DESCRIBED),
        pgoutput.keepalive_mark(1, 1),
    ]
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "cut"]),
        st.integers(0, 400),
        st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, *b"BCRIUDTOYMkKNOntub"]),
    ),
    max_size=4,
)


def edited(message: bytes, steps: list[tuple[str, int, int]]) -> bytes:
    data = bytearray(message)
    for step, place, byte in steps:
        at = place % (len(data) + 1)
        match step:
            case "insert":
                data.insert(at, byte)
            case "cut":
                del data[at:]
            case "delete":
                del data[at : at + 1]
            case _:
                data[at : at + 1] = bytes([byte])
    return bytes(data)


def read_all(messages: list[bytes], noise: int) -> list[str]:
    """Everything that capture and the tasks do with messages; `noise` fills the room behind the last one."""
    lengths = [len(message) for message in messages]
    buffer = np.frombuffer(b"".join(messages) + bytes([noise]) * PADDING, np.uint8)
    bounds = np.cumsum([0, *lengths]).astype(np.int64)
    kinds = pgoutput.kinds_of(buffer, bounds, 1)
    found = [str(pgoutput.parse_relation(m, i)) for i, m in enumerate(messages) if m[:1] == b"R"]
    transactions, still_open = pgoutput.index_transactions(buffer, bounds, kinds, 1, None)
    counts = pgoutput.count_changes(buffer, bounds, kinds)
    frames = Frames(pgoutput.KIND, 1, buffer, bounds, transactions, DEFINITIONS)
    for piece in pgoutput.decode(frames, 1, frames.last):
        flat = piece.to_arrow()
        flat.validate(full=True)
        assert flat.schema == change_schema(piece.schema, pgoutput.TOLD)
        for net in net_changes([piece]):
            net.upserts.validate(full=True)
            net.deletes.validate(full=True)
        found.append(str(flat))
    return [*found, str(transactions), str(still_open), str(sorted(counts.items()))]


def outcome(messages: list[bytes], noise: int) -> object:
    try:
        return read_all(messages, noise)
    except (DecodeError, ValueRefused) as error:
        return type(error), str(error)


@settings(max_examples=100, deadline=None)
@given(st.lists(changes, min_size=1, max_size=6))
def test_valid_messages_decode(valid):
    read_all([begin(), *valid, commit()], 0)


@settings(max_examples=400, deadline=None)
@given(st.lists(changes, max_size=3), st.one_of(changes, others), edits)
@example([], b"", [])
@example([], b"I\0\0\0\1N" + row([]), [])
@example([insert(1, *[None] * WIDTH)], b"U\0\0\0\1K\0\x0d" + b"n" * WIDTH, [])
def test_a_damaged_message_decodes_or_is_refused_whatever_lies_behind_it(valid, message, steps):
    messages = [begin(), *valid, edited(message, steps)]
    assert outcome(messages, 0) == outcome(messages, 0xFF) == outcome(messages, ord("b"))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(changes, others), min_size=2, max_size=8), edits, edits, st.integers(0, 7))
def test_several_damaged_messages_are_refused_or_decode(valid, some, more, which):
    messages = [begin(), *valid, commit()]
    messages[which % len(messages)] = edited(messages[which % len(messages)], some)
    messages[-1] = edited(messages[-1], more)
    outcome(messages, 0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_at_all_are_refused_or_decode(messages):
    outcome(messages, 0)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_relation_or_are_refused(data):
    outcome([begin(), b"R" + data], 0)
