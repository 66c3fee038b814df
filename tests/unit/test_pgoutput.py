"""pgoutput decoding: messages by hand, in the text and the binary form; and messages that are not pgoutput."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from support.messages import (
    NOON_US,
    begin,
    commit,
    delete,
    frames_of,
    insert,
    logical_message,
    origin,
    relation,
    transaction,
    truncate,
    type_,
    update,
)
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.changes import Changes, Op, change_schema
from tailrace.model.frames import Definition
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.pgoutput import (
    EPOCH_US,
    OpenTransaction,
    Relation,
    decode,
    keepalive_mark,
    parse_relation,
    parse_type,
)
from tailrace.sources.postgres.types import column_type

INT, TEXT, BOOLEAN = (column_type(oid, -1, {}) for oid in (23, 25, 16))
MONEY = ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)


def table(
    name: str, *columns: tuple[str, ColumnType], key: tuple[str, ...] = (), identity=Identity.DEFAULT
) -> TableSchema:
    return TableSchema("public", name, tuple(Column(n, t) for n, t in columns), key, identity)


ITEMS = table("items", ("id", INT), ("name", TEXT), ("notes", TEXT), key=("id",))
FLAGS = table("flags", ("flag", TEXT), ("is_on", BOOLEAN), key=("flag",))
WHOLE = table("whole", ("id", INT), ("name", TEXT), ("notes", TEXT), identity=Identity.FULL)
DEFINITIONS = (Definition(1, 0, ITEMS), Definition(2, 0, FLAGS), Definition(3, 0, WHOLE))


def four(value: int) -> bytes:
    return struct.pack(">i", value)


def decoded(*messages: bytes, definitions=DEFINITIONS, first: int = 1) -> list[Changes]:
    """The changes of these messages, in one transaction."""
    frames, _ = frames_of(transaction(*messages), definitions, first=first)
    return list(decode(frames, frames.first, frames.last))


def only(*messages: bytes, definitions=DEFINITIONS) -> Changes:
    (changes,) = decoded(*messages, definitions=definitions)
    return changes


def after(changes: Changes) -> list[tuple]:
    return [tuple(row.values()) for row in changes.after.to_pylist()]


def before(changes: Changes) -> dict[int, tuple]:
    rows = [tuple(row.values()) for row in changes.before.to_pylist()]
    return dict(zip(changes.before_rows.tolist(), rows, strict=True))


def unchanged(changes: Changes) -> list[list[str]]:
    return changes.to_arrow().column("_unchanged").to_pylist()


# --- rows ------------------------------------------------------------------------------------------------------------


def test_an_insert_is_its_row_whether_text_or_binary():
    changes = only(insert(1, "1", "a", "b"), insert(1, four(-2), b"c", b"d"))
    assert changes.op.tolist() == [Op.INSERT, Op.INSERT]
    assert after(changes) == [(1, "a", "b"), (-2, "c", "d")]
    assert (changes.unchanged, before(changes)) == (None, {})


def test_the_forms_may_be_mixed_within_a_row():
    assert after(only(insert(1, "1", b"a", None), insert(1, four(2), "b", "c"))) == [(1, "a", None), (2, "b", "c")]


def test_null_is_null_and_empty_is_empty():
    assert after(only(insert(1, "1", None, ""), insert(1, "2", "", None))) == [(1, None, ""), (2, "", None)]


def test_text_that_looks_like_a_boolean_stays_text():
    assert after(only(insert(2, "t", "f"), insert(2, "f", "t"))) == [("t", False), ("f", True)]


def test_an_update_without_an_old_row_has_no_before():
    changes = only(update(1, "1", "a", "b"))
    assert (changes.op.tolist(), after(changes), before(changes)) == ([Op.UPDATE], [(1, "a", "b")], {})


def test_an_update_of_the_key_carries_the_old_key():
    changes = only(update(1, "2", "a", "b", key=("1", None, None)))
    assert (after(changes), before(changes)) == ([(2, "a", "b")], {0: (1, None, None)})


def test_an_update_with_a_full_identity_carries_the_old_row():
    changes = only(update(3, "1", "new", "n", old=("1", "old", None)))
    assert (after(changes), before(changes)) == ([(1, "new", "n")], {0: (1, "old", None)})


def test_a_delete_is_what_was_sent_of_the_old_row():
    (keyed,) = decoded(delete(1, key=(four(7), None, None)))
    (whole,) = decoded(delete(3, old=("7", "a", None)))
    assert (keyed.op.tolist(), after(keyed), before(keyed)) == ([Op.DELETE], [(7, None, None)], {0: (7, None, None)})
    assert (after(whole), before(whole)) == ([(7, "a", None)], {0: (7, "a", None)})


def test_all_kinds_of_changes_in_one_run_keep_their_order_and_their_values():
    changes = only(
        insert(1, "1", "a", "b"),
        update(1, "1", "a2", ...),
        delete(1, key=("9", None, None)),
        update(1, "2", "a3", "b3", key=("1", None, None)),
        truncate(1),
        insert(1, "3", None, "c"),
    )
    assert changes.op.tolist() == [Op.INSERT, Op.UPDATE, Op.DELETE, Op.UPDATE, Op.TRUNCATE, Op.INSERT]
    assert changes.offset.tolist() == [2, 3, 4, 5, 6, 7]
    assert after(changes) == [
        (1, "a", "b"),
        (1, "a2", None),
        (9, None, None),
        (2, "a3", "b3"),
        (None, None, None),
        (3, None, "c"),
    ]
    assert before(changes) == {2: (9, None, None), 3: (1, None, None)}
    assert unchanged(changes) == [[], ["notes"], [], [], [], []]


# --- unchanged TOAST -------------------------------------------------------------------------------------------------


def test_an_unchanged_value_is_marked_and_null():
    changes = only(update(1, "1", ..., ...), update(1, "2", "b", ...), update(1, "3", None, "c"))
    assert after(changes) == [(1, None, None), (2, "b", None), (3, None, "c")]
    assert unchanged(changes) == [["name", "notes"], ["notes"], []]


def test_an_unchanged_value_with_a_full_identity_is_the_old_one():
    changes = only(
        update(3, "1", "a", ..., old=("1", "a0", b"long")), update(3, "2", ..., "n", old=(four(2), "x" * 50, None))
    )
    assert after(changes) == [(1, "a", "long"), (2, "x" * 50, "n")]
    assert changes.unchanged is None


def test_an_unchanged_value_beside_a_changed_key_stays_unchanged():
    changes = only(update(1, "2", "a", ..., key=("1", None, None)))
    assert (after(changes), unchanged(changes)) == ([(2, "a", None)], [["notes"]])


def test_a_key_that_lies_in_toast_is_taken_from_the_old_key():
    """The server sends the old key then even though it did not change, because the new row leaves the value out."""
    wide = table("wide", ("code", TEXT), ("notes", TEXT), key=("code",))
    changes = only(update(4, ..., "n", key=("c" * 3000, None)), definitions=(Definition(4, 0, wide),))
    assert after(changes) == [("c" * 3000, "n")]
    assert changes.unchanged is None


def test_a_delete_has_no_unchanged_columns():
    assert unchanged(only(update(1, "1", "a", ...), delete(1, key=("1", None, None)))) == [["notes"], []]


# --- tables ----------------------------------------------------------------------------------------------------------


def test_changes_of_several_tables_are_parted_each_in_its_order():
    found = decoded(
        insert(2, "a", "t"),
        insert(1, "1", "x", None),
        insert(2, "b", "f"),
        update(1, "1", "y", None),
        insert(3, "5", "z", ""),
    )
    assert {c.schema.table: c.offset.tolist() for c in found} == {
        "public.flags": [2, 4],
        "public.items": [3, 5],
        "public.whole": [6],
    }


def test_only_the_wanted_tables_are_decoded():
    frames, _ = frames_of(transaction(insert(1, "not a number", "", ""), insert(2, "a", "t")), DEFINITIONS)
    assert [c.schema.table for c in decode(frames, 1, 4, {"public.flags"})] == ["public.flags"]
    assert list(decode(frames, 1, 4, set())) == []


def test_only_the_wanted_offsets_are_decoded():
    frames, _ = frames_of(transaction(*(insert(1, str(n), "", "") for n in range(10))), DEFINITIONS, first=101)
    (changes,) = decode(frames, 104, 106)
    assert (changes.offset.tolist(), after(changes)) == ([104, 105, 106], [(n, "", "") for n in (2, 3, 4)])


def test_a_truncate_of_several_tables_is_a_change_of_each():
    found = decoded(insert(1, "1", "a", "b"), truncate(1, 2), insert(2, "a", "t"), insert(1, "2", "c", "d"))
    assert {c.schema.table: (c.op.tolist(), c.offset.tolist()) for c in found} == {
        "public.items": ([Op.INSERT, Op.TRUNCATE, Op.INSERT], [2, 3, 5]),
        "public.flags": ([Op.TRUNCATE, Op.INSERT], [3, 4]),
    }


def test_truncates_of_a_table_that_has_no_rows_in_between_are_all_there():
    changes = only(truncate(1), truncate(1, options=3))
    assert (changes.op.tolist(), after(changes)) == ([Op.TRUNCATE] * 2, [(None,) * 3] * 2)


def test_rows_are_counted_by_table_truncates_included():
    frames, _ = frames_of(
        transaction(insert(1, "1", "", ""), truncate(1, 2), update(1, "1", "", ""), delete(3, old=("1", "", ""))),
        DEFINITIONS,
    )
    assert frames.tables == {"public.items": 3, "public.flags": 1, "public.whole": 1}


def test_more_rows_than_one_step_of_lanes_come_out_in_order(monkeypatch):
    monkeypatch.setattr(pgoutput, "LANES", 7)
    found = decoded(*(insert(1, str(n), f"n{n}", None) for n in range(20)))
    assert [len(c) for c in found] == [7, 7, 6]
    assert [row[0] for c in found for row in after(c)] == list(range(20))


def test_relation_ids_above_two_billion_are_told_apart():
    high = 4_000_000_000
    found = decoded(insert(high, "1", "a", "b"), truncate(high), definitions=(Definition(high, 0, ITEMS),))
    assert found[0].op.tolist() == [Op.INSERT, Op.TRUNCATE]


# --- versions of a table ---------------------------------------------------------------------------------------------

WIDER = table("items", ("id", INT), ("name", TEXT), ("notes", TEXT), ("price", MONEY), key=("id",))


def test_a_table_that_changes_in_the_middle_is_decoded_version_by_version():
    versions = (Definition(1, 0, ITEMS), Definition(1, 4, WIDER))
    old, new = decoded(
        insert(1, "1", "a", "b"),
        b"R",
        insert(1, "2", "c", "d", "1.50"),
        update(1, "1", "a", "b", None),
        definitions=versions,
    )
    assert (old.schema, old.offset.tolist(), after(old)) == (ITEMS, [2], [(1, "a", "b")])
    assert (new.schema, new.offset.tolist()) == (WIDER, [4, 5])
    assert after(new) == [(2, "c", "d", Decimal("1.50")), (1, "a", "b", None)]


def test_a_definition_counts_from_its_own_offset_whatever_their_order():
    versions = (Definition(1, 3, WIDER), Definition(1, 0, ITEMS))
    found = decoded(insert(1, "1", "a", "b"), insert(1, "2", "c", "d", "2"), definitions=versions)
    assert [c.schema for c in found] == [ITEMS, WIDER]


def test_a_renamed_table_is_wanted_under_each_of_its_names_for_its_own_rows():
    renamed = table("goods", ("id", INT), ("name", TEXT), ("notes", TEXT), key=("id",))
    versions = (Definition(1, 0, ITEMS), Definition(1, 3, renamed))
    frames, _ = frames_of(transaction(insert(1, "1", "", ""), insert(1, "2", "", "")), versions)
    assert [after(c) for c in decode(frames, 1, 4, {"public.items"})] == [[(1, "", "")]]
    assert [after(c) for c in decode(frames, 1, 4, {"public.goods"})] == [[(2, "", "")]]


def test_a_table_that_was_made_again_comes_after_its_namesake_whatever_its_id():
    versions = (Definition(90, 0, ITEMS), Definition(5, 3, ITEMS))
    found = decoded(insert(90, "1", "old", ""), insert(5, "1", "new", ""), definitions=versions)
    assert [after(c) for c in found] == [[(1, "old", "")], [(1, "new", "")]]


@pytest.mark.parametrize("definitions", [(), (Definition(1, 3, ITEMS),)])
def test_a_row_of_a_table_that_was_not_described_before_it_is_an_error(definitions):
    with pytest.raises(DecodeError, match="offset 2 is of a relation that was never described"):
        decoded(insert(1, "1", "a", "b"), definitions=definitions)


def told(changes: Changes, name: str) -> list:
    """What is told of each change's transaction."""
    return changes.transactions.column(name).take(pa.array(changes.transaction)).to_pylist()


def times(changes: Changes) -> list[int]:
    column = changes.transactions.column("_commit_time").take(pa.array(changes.transaction))
    return column.cast(pa.int64()).to_pylist()


# --- transactions ----------------------------------------------------------------------------------------------------


def test_changes_know_their_transaction():
    messages = [
        *transaction(insert(1, "1", "", ""), xid=4_294_967_295, at=0x10, time_us=5),
        *transaction(insert(1, "2", "", ""), insert(1, "3", "", ""), xid=3, at=0x7FFF_FFFF_FFFF_FFF0, time_us=-7),
    ]
    frames, _ = frames_of(messages, DEFINITIONS)
    (changes,) = decode(frames, 1, 7)
    assert told(changes, "_xid") == [4_294_967_295, 3, 3]
    assert times(changes) == [5, -7, -7]
    assert told(changes, "_commit_position") == [0x10, 0x7FFF_FFFF_FFFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0]


def test_transactions_have_the_columns_of_logs_of_earlier_versions():
    """In their order: segments are merged with older ones, which Arrow allows for equal columns only."""
    frames, _ = frames_of(transaction(xid=7))
    names = ["begin", "end", "xid", "time_us", "commit_position", "end_position"]
    assert frames.transactions.schema.names == names


def test_positions_are_exact_to_the_last_bit():
    at = (1 << 60) + 1
    frames, _ = frames_of([begin(at=at), commit(at, at + 3), keepalive_mark(at + 5, NOON_US)])
    assert frames.transactions.column("commit_position").to_pylist() == [at, at + 5]
    assert frames.transactions.column("end_position").to_pylist() == [at + 3, at + 5]


def test_a_transaction_may_go_on_over_several_frames():
    one, still_open = frames_of([begin(9, 0x50), insert(1, "1", "", "")], DEFINITIONS, first=10)
    assert still_open == OpenTransaction(10, 9, NOON_US, 0x50)
    two, still_open = frames_of([insert(1, "2", "", "")], DEFINITIONS, first=12, carried=still_open)
    three, closed = frames_of([insert(1, "3", "", ""), commit(0x50, 0x58)], DEFINITIONS, first=13, carried=still_open)
    assert closed is None
    assert [f.transactions.column("end").to_pylist() for f in (one, two, three)] == [[0], [0], [14]]
    for frames in (one, two, three):
        (changes,) = decode(frames, frames.first, frames.last)
        assert (told(changes, "_xid"), times(changes), told(changes, "_commit_position")) == (
            [9],
            [NOON_US],
            [0x50],
        )
        assert frames.transactions.column("begin").to_pylist() == [10]


def test_a_transaction_may_end_and_another_begin_in_one_frame():
    carried = OpenTransaction(3, 8, 100, 0x40)
    messages = [insert(1, "1", "", ""), commit(0x40, 0x48), begin(9, 0x50, 200), insert(1, "2", "", "")]
    frames, still_open = frames_of(messages, DEFINITIONS, first=10, carried=carried)
    (changes,) = decode(frames, 10, 13)
    assert (told(changes, "_xid"), times(changes)) == ([8, 9], [100, 200])
    assert still_open == OpenTransaction(12, 9, 200, 0x50)
    assert frames.transactions.column("end").to_pylist() == [11, 0]


def test_an_empty_transaction_is_indexed_and_has_no_changes():
    frames, still_open = frames_of([*transaction(at=0x10), *transaction(at=0x20)])
    assert frames.transactions.column("end").to_pylist() == [2, 4]
    assert frames.transactions.column("end_position").to_pylist() == [0x18, 0x28]
    assert (still_open, frames.tables, list(decode(frames, 1, 4))) == (None, {}, [])


def test_a_mark_is_a_place_without_a_transaction():
    frames, still_open = frames_of([keepalive_mark(0x99, NOON_US), *transaction(insert(1, "1", "", ""))], DEFINITIONS)
    mark, real = frames.transactions.to_pylist()
    assert mark == {
        "begin": 1,
        "end": 1,
        "xid": 0,
        "time_us": NOON_US,
        "commit_position": 0x99,
        "end_position": 0x99,
    }
    assert (real["begin"], real["end"], still_open) == (2, 4, None)


def test_rows_that_share_a_position_are_told_apart_by_offset():
    changes = only(*(insert(1, str(n), "", "") for n in range(3)))
    assert (changes.offset.tolist(), set(told(changes, "_commit_position"))) == ([2, 3, 4], {0x1000})


def test_origins_types_and_messages_are_tolerated_everywhere():
    found = decoded(
        origin(), type_(), relation(1, "public", "items", "d", []), logical_message(), insert(1, "1", "a", "b")
    )
    assert [after(c) for c in found] == [[(1, "a", "b")]]


def test_a_message_of_no_transaction_ends_by_itself_as_a_mark_does():
    frames, _ = frames_of([logical_message(in_transaction=False), *transaction(logical_message(b"x" * 300))])
    facts = [frames.transactions.column(name).to_pylist() for name in ("begin", "end", "xid", "end_position")]
    assert [column[0] for column in facts] == [1, 1, 0, 0x1000]
    alone, inside = pgoutput.messages(frames, frames.first, frames.last)
    assert (alone.transaction, alone.message.is_transactional, alone.message.content) == (0, False, b"hello")
    assert (inside.transaction, inside.message.prefix, len(inside.message.content)) == (1, "app", 300)


@pytest.mark.parametrize("cut", [1, 4, 5, 9])
def test_a_message_that_is_cut_short_is_refused(cut):
    with pytest.raises(DecodeError):
        pgoutput.parse_message(logical_message()[:-cut], 1)


# --- the flat form ---------------------------------------------------------------------------------------------------


def test_the_flat_form_has_the_change_columns():
    changes = only(insert(1, "1", "a", "b"), update(1, "2", "c", ..., key=("1", None, None)))
    flat = changes.to_arrow()
    flat.validate(full=True)
    assert flat.schema == change_schema(ITEMS, pgoutput.TOLD)
    assert flat.to_pylist()[1] == {
        "id": 2,
        "name": "c",
        "notes": None,
        "_op": "update",
        "_offset": 3,
        "_commit_position": 0x1000,
        "_commit_time": datetime.datetime(2024, 6, 1, 12, tzinfo=datetime.UTC),
        "_xid": 700,
        "_unchanged": ["notes"],
        "_before": {"id": 1, "name": None, "notes": None},
    }
    assert flat.column("_before").to_pylist()[0] is None


# --- what is not pgoutput --------------------------------------------------------------------------------------------

LONG = insert(1, "1", "a", "b")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"Z",
        b"S" + bytes(20),
        b"I\0\0\0\1N\0",
        begin()[:-1],
        begin() + b"\0",
        commit()[:-1],
        commit() + b"\0",
        keepalive_mark(1, 1)[:-1],
        truncate(1)[:-1],
        truncate(1) + b"\0",
        b"T" + struct.pack(">iBI", 2, 0, 1),
        b"T" + struct.pack(">iBI", -1, 0, 1),
    ],
)
def test_a_message_that_is_not_pgoutput_is_refused_with_its_offset(message):
    with pytest.raises(DecodeError, match="offset 103 is not pgoutput"):
        frames_of([begin(), LONG, LONG, message], first=100)


@pytest.mark.parametrize(
    ("messages", "offset"),
    [
        ([commit()], 100),
        ([begin(), begin()], 101),
        ([begin(), commit(), commit()], 102),
        ([LONG], 100),
        ([begin(), commit(), LONG], 102),
        ([truncate(1)], 100),
        ([begin(), keepalive_mark(1, 1)], 101),
    ],
)
def test_messages_out_of_turn_are_refused_with_their_offset(messages, offset):
    with pytest.raises(DecodeError, match=f"offset {offset} stands outside of its transaction"):
        frames_of(messages, first=100)


def test_a_transaction_that_is_open_may_not_begin_again():
    with pytest.raises(DecodeError, match="offset 100"):
        frames_of([begin()], first=100, carried=OpenTransaction(5, 1, 1, 1))


DAMAGED = {
    "one column too few": insert(1, "1", "a"),
    "one column too many": insert(1, "1", "a", "b", "c"),
    "cut in a value": LONG[:-1],
    "cut before a value": LONG[:-6],
    "bytes behind": LONG + b"\0",
    "a length past the end": LONG[:9] + struct.pack(">i", 100) + LONG[13:],
    "a length past four gigabytes": LONG[:9] + b"\xff\xff\xff\x7f" + LONG[13:],
    "a negative length": LONG[:9] + struct.pack(">i", -1) + LONG[13:],
    "an unknown kind of value": LONG[:8] + b"x" + LONG[9:],
    "no tuple": LONG[:5] + b"X" + LONG[6:],
    "an insert with an old row": b"I\0\0\0\1K" + update(1, "1", "a", "b", key=("1", None, None))[6:],
    "a delete with a new row": b"D" + LONG[1:],
    "an update with an old row only": b"U" + delete(1, key=("1", None, None))[1:],
    "a delete with both": b"D" + update(1, "1", "a", "b", key=("1", None, None))[1:],
    "bytes behind a delete": delete(1, key=("1", None, None)) + b"n",
    "an integer of three bytes": insert(1, b"\0\0\1", "a", "b"),
    "an integer that is no number": insert(1, "one", "a", "b"),
    "text that is not utf-8": insert(1, "1", b"\xff", "b"),
}


@pytest.mark.parametrize("message", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_row_among_good_ones_is_refused_with_its_own_offset(message):
    good = [insert(1, "1", "a", "b"), update(1, "1", ..., "b"), delete(1, key=("1", None, None))]
    with pytest.raises(DecodeError, match=r"public\.items at offset 1006$"):
        decoded(*good, good[0], good[1], message, *good, first=1000)


def test_a_value_that_arrow_can_not_hold_is_refused_with_its_offset_and_not_shown():
    dates = table("dates", ("id", INT), ("day", column_type(1082, -1, {})))
    message = insert(1, "1", struct.pack(">i", 2**31 - 2))
    with pytest.raises(ValueRefused, match=r"column public\.dates\.day \(date\).*at offset 3$") as caught:
        decoded(insert(1, "1", None), message, definitions=(Definition(1, 0, dates),))
    assert str(2**31 - 2) not in str(caught.value)


# --- relations -------------------------------------------------------------------------------------------------------

DESCRIBED = relation(16_400, "public", "Items ü", "d", [(True, "id", 23, -1), (False, "price", 1700, 786_438)])


def test_a_relation_message_is_read_as_it_was_sent():
    assert parse_relation(DESCRIBED, 1) == Relation(
        16_400, "public", "Items ü", "d", ((True, "id", 23, -1), (False, "price", 1700, 786_438))
    )


def test_an_empty_schema_name_is_the_catalogs():
    assert parse_relation(relation(1, "", "pg_class", "n", []), 1).schema == "pg_catalog"


@pytest.mark.parametrize("length", range(1, len(DESCRIBED)))
def test_a_relation_message_cut_short_is_refused_with_its_offset(length):
    with pytest.raises(DecodeError, match="offset 77"):
        parse_relation(DESCRIBED[:length], 77)


@pytest.mark.parametrize(
    "message",
    [DESCRIBED + b"\0", relation(1, "public", "t", "x", []), DESCRIBED.replace(b"Items", b"It\xffms")],
    ids=["bytes behind", "an unknown identity", "a name that is not utf-8"],
)
def test_a_malformed_relation_message_is_refused(message):
    with pytest.raises(DecodeError):
        parse_relation(message, 77)


@pytest.mark.parametrize("message", [type_()[:-1], type_()[:4], type_() + b"x", b"Y\0\0\0\1\xff\0t\0"])
def test_a_malformed_type_message_is_refused_with_its_offset(message):
    with pytest.raises(DecodeError, match="offset 77"):
        parse_type(message, 77)


def test_a_type_message_names_its_type():
    assert parse_type(type_(16_500, "", "int4"), 1) == (16_500, "pg_catalog", "int4")


@pytest.mark.parametrize("change", [update(3, "2", "b", "c"), delete(3, key=("1", None, None))])
def test_an_old_row_that_is_not_whole_is_refused_where_nothing_else_says_which_row_is_meant(change):
    frames, _ = frames_of(transaction(insert(3, "1", "a", "b"), change), DEFINITIONS)
    with pytest.raises(DecodeError, match=r"not sent whole; public\.whole at offset 3"):
        list(decode(frames, 1, 4))


def test_marks_are_made_in_the_protocols_own_time():
    _, position, time = struct.unpack(">cqq", keepalive_mark(0x77, NOON_US))
    assert (position, time) == (0x77, NOON_US - EPOCH_US)


def test_packing_leaves_room_behind_the_last_message():
    buffer, bounds = pgoutput.pack([b"ab", b"", b"c"])
    assert (buffer[:3].tobytes(), bounds.tolist(), len(buffer)) == (b"abc", [0, 2, 2, 3], 19)
