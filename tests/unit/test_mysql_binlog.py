"""The binary log without a server: checksums, positions, statements, maps, and rows of every shape."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from tailrace.columns.doubles import json_double
from tailrace.errors import DecodeError, PositionLost, SourceChanged, SourceRefused
from tailrace.sources.mysql import decode_maps, events, gtid, positions, queries, unpacking
from tailrace.sources.mysql.decode_rows import count_rows, walk
from tailrace.sources.mysql.values.binlog_texts import decoded

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def event(kind: int, body: bytes) -> bytes:
    data = struct.pack("<IBIIIH", 1, kind, 1, 19 + len(body) + 4, 100, 0) + body
    return data + struct.pack("<I", zlib.crc32(data))


def packed(*found: bytes) -> events.Events:
    """As they come from the server: a packet each."""
    data, starts = b"", []
    for number, each in enumerate(found):
        starts.append(len(data))
        data += struct.pack("<I", len(each) + 1)[:3] + bytes([number, 0]) + each
    ends = np.array([*starts[1:], len(data)])
    buffer = np.frombuffer(data + bytes(16), np.uint8).copy()
    return events.Events(buffer, np.array(starts), ends, np.full(len(found), 4, np.uint8))


def test_one_sweep_verifies_the_checksums_of_all_events() -> None:
    events.check_whole(packed(*(event(16, os.urandom(size)) for size in (8, 0, 100, 3))))


@pytest.mark.parametrize("damaged", range(3))
def test_a_damaged_event_is_found_wherever_it_is(damaged: int) -> None:
    found = packed(event(16, bytes(8)), event(19, bytes(30)), event(16, bytes(8)))
    found.buffer[found.starts[damaged] + events.BODY + 2] ^= 1
    with pytest.raises(DecodeError, match=f"type {(16, 19, 16)[damaged]} that ends at 100"):
        events.check_whole(found)


def test_packets_are_found_as_far_as_they_are_whole() -> None:
    data = b"".join(struct.pack("<I", size)[:3] + b"\0" + bytes(size) for size in (5, 1, 300))
    starts: list[int] = []
    assert events.packets(memoryview(data), 0, len(data) - 1, starts) == 14
    assert starts == [0, 9]
    assert events.packets(memoryview(data), 14, len(data), starts) == len(data)


def test_a_packet_in_parts_is_put_together() -> None:
    whole = bytes(1) + os.urandom(events.WHOLE_PACKET + 10)
    first, rest = whole[: events.WHOLE_PACKET], whole[events.WHOLE_PACKET :]
    data = b"\xff\xff\xff\0" + first + struct.pack("<I", len(rest))[:3] + b"\1" + rest
    assert events.joined(memoryview(data), 0, len(data) - 1) is None
    found = events.joined(memoryview(data), 0, len(data))
    assert found is not None
    buffer, end = found
    assert (end, buffer[5:-16].tobytes()) == (len(data), whole[1:])


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "servers", "numbers", "expected"),
    [
        (f"{SERVER}:1-5", [SERVER] * 3, [6, 7, 8], [f"{SERVER}:1-{n}" for n in (6, 7, 8)]),
        (f"{SERVER}:1-5", [SERVER] * 2, [7, 6], [f"{SERVER}:1-5:7", f"{SERVER}:1-7"]),
        (
            f"{SERVER}:1",
            ["4" + SERVER[1:]] * 2,
            [1, 2],
            [f"{SERVER}:1,4{SERVER[1:]}:1", f"{SERVER}:1,4{SERVER[1:]}:1-2"],
        ),
        ("0-1-5", ["0-1", "0-1", "1-7"], [6, 9, 1], ["0-1-6", "0-1-9", "0-1-9,1-7-1"]),
        (
            "b.000001:4",
            ["b.000001", "b.000001", "b.000002"],
            [100, 250, 90],
            ["b.000001:100", "b.000001:250", "b.000002:90"],
        ),
    ],
)
def test_the_place_behind_each_transaction(
    start: str, servers: list[str], numbers: list[int], expected: list[str]
) -> None:
    progress = gtid.progress_from(start)
    found = gtid.after(progress, servers, np.array(numbers, np.int64)).to_pylist()
    assert found == expected
    assert str(progress) == expected[-1]


def test_long_runs_of_transactions_end_where_one_by_one_they_would() -> None:
    together, single = gtid.progress_from(f"{SERVER}:1-5"), gtid.progress_from(f"{SERVER}:1-5")
    numbers = np.array([*range(6, 40), *range(50, 60), *range(40, 50), 61], np.int64)
    at_once = gtid.after(together, [SERVER] * len(numbers), numbers).to_pylist()
    steps = [gtid.after(single, [SERVER], numbers[place : place + 1])[0].as_py() for place in range(len(numbers))]
    assert str(together) == str(single) == f"{SERVER}:1-59:61"
    assert [str(positions.parse(text)) for text in at_once] == steps


@pytest.mark.parametrize(
    ("visibility", "server", "numbers", "expected"),
    [
        (f"{SERVER}:1-5:8", SERVER, [1, 5, 6, 8], [True, True, False, True]),
        (f"{SERVER}:1-5", "4" + SERVER[1:], [1], [False]),
        ("0-1-5", "0-2", [5, 6], [True, False]),
        ("b.000002:100", "b.000001", [900], [True]),
        ("b.000002:100", "b.000002", [100, 101], [True, False]),
    ],
)
def test_what_lies_behind_a_place(visibility: str, server: str, numbers: list[int], expected: list[bool]) -> None:
    found = positions.within(pa.array([server] * len(numbers)), pa.array(numbers), visibility)
    assert found.tolist() == expected


def test_a_text_that_is_no_place_is_refused() -> None:
    with pytest.raises(PositionLost, match="no place"):
        positions.parse("somewhere")


# --- statements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "truncated", "altered"),
    [
        ("TRUNCATE t", ("shop", "t"), []),
        ("/* why */ truncate table `o``dd`.`T t`", ("o`dd", "T t"), []),
        ("ALTER TABLE x.t ADD c int", None, [("x", "t")]),
        ("DROP TABLE IF EXISTS `a`,`b`.`c` /* generated by server */", None, [("shop", "a"), ("b", "c")]),
        ("RENAME TABLE a TO b, x.c TO d", None, [("shop", "a"), ("shop", "b"), ("x", "c"), ("shop", "d")]),
        ("CREATE UNIQUE INDEX i ON t (c)", None, [("shop", "t")]),
        ("CREATE TABLE t (i int)", None, [("shop", "t")]),
        ("GRANT ALL ON *.* TO x", None, []),
    ],
)
def test_statements_tell_which_tables_they_change(
    text: str, truncated: tuple[str, str] | None, altered: list[tuple[str, str]]
) -> None:
    body = struct.pack("<IIBHH", 1, 0, 4, 0, 3) + b"abc" + b"shop\0" + text.encode()
    query = queries.parse(body)
    assert (query.truncated, query.altered) == (truncated, altered)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("BEGIN", "begin"),
        ("COMMIT", "end"),
        ("ROLLBACK", "rollback"),
        ("ROLLBACK TO `s`", "rollback"),
        ("SAVEPOINT `s`", "inside"),
        ("insert into t values (1)", "change"),
        ("XA START X'31',X'',1", "inside"),
        ("XA COMMIT X'31',X'',1", "xa end"),
        ("CREATE TABLE t (i int) START TRANSACTION", "inside"),
        ("ALTER TABLE t ADD c int", "ddl"),
    ],
)
def test_statements_begin_end_or_change(text: str, meaning: str) -> None:
    assert queries.Query("d", text).meaning == meaning


# --- maps and rows ---------------------------------------------------------------------------------------------------

MYSQL_MAP = bytes.fromhex(
    "6f00000000000100016400017400030 30f0302c8000601014002 03fcff00040a02696404 6e616d650178080100 0c01e0".replace(
        " ", ""
    )
)
"""`d.t (id int primary key, name varchar(50), x int unsigned)`, as MySQL 9.7 sent it."""


def test_a_map_tells_names_key_signs_and_collations() -> None:
    table = decode_maps.parse(MYSQL_MAP, is_mariadb=False)
    assert (table.schema, table.name, table.names, table.key) == ("d", "t", ("id", "name", "x"), ("id",))
    assert [column.is_unsigned for column in table.columns] == [False, False, True]
    assert table.columns[1].collation == 255


def test_a_map_that_is_cut_short_is_refused() -> None:
    with pytest.raises(DecodeError, match="cut short"):
        decode_maps.parse(MYSQL_MAP[:20], is_mariadb=False)


def rows_of(*found: tuple[int, bytes | None, int]) -> bytes:
    data = b""
    for id_, name, x in found:
        null = 2 if name is None else 0
        text = b"" if name is None else bytes([len(name)]) + name
        data += bytes([null | 0xF8]) + struct.pack("<i", id_) + text + struct.pack("<I", x)
    return data


def test_rows_of_many_events_are_found_in_their_order() -> None:
    columns = decode_maps.parse(MYSQL_MAP, is_mariadb=False).columns
    parts = [
        rows_of((1, b"a", 7), (2, None, 8)),
        b"",
        rows_of((3, b"xyz", 9)),
        rows_of(*((n, b"n", n) for n in range(9))),
    ]
    ends = np.cumsum([len(part) for part in parts])
    starts = ends - [len(part) for part in parts]
    buffer = np.frombuffer(b"".join(parts) + bytes(16), np.uint8)
    assert count_rows(buffer, starts, ends, [columns]).tolist() == [2, 0, 1, 9]
    walked = walk(buffer, starts, ends, [columns])
    assert walked.event.tolist() == [0, 0, 2, *[3] * 9]
    ids = np.ndarray((len(buffer) - 3,), "<i4", buffer, 0, (1,))[walked.images[0][0].place]
    assert ids.tolist() == [1, 2, 3, *range(9)]
    assert walked.images[0][1].null is not None
    assert walked.images[0][1].null.tolist() == [False, True, *[False] * 10]


def test_rows_of_fixed_width_are_the_same_with_and_without_a_walk() -> None:
    id_, _, x = decode_maps.parse(MYSQL_MAP, is_mariadb=False).columns
    data = b"".join(bytes(1) + struct.pack("<iI", n, n) for n in range(5)) + bytes(16)
    buffer, at, end = np.frombuffer(data, np.uint8), np.array([0, 18]), np.array([18, 45])
    walked = walk(buffer, at, end, [[id_, x]])
    assert walked.event.tolist() == [0, 0, 1, 1, 1]
    assert walked.images[0][0].place.tolist() == [1, 10, 19, 28, 37]


def test_a_row_event_that_ends_inside_of_a_row_is_refused() -> None:
    columns = decode_maps.parse(MYSQL_MAP, is_mariadb=False).columns
    data = rows_of((1, b"abc", 7))
    buffer = np.frombuffer(data + bytes(16), np.uint8)
    with pytest.raises(DecodeError, match="shorter"):
        walk(buffer, np.array([0]), np.array([len(data) - 1]), [columns])


def test_a_compressed_transaction_is_the_events_in_it() -> None:
    inner = [
        struct.pack("<IBIIIH", 1, kind, 1, 19 + len(body), 0, 0) + body for kind, body in ((19, b"map"), (16, bytes(8)))
    ]
    data = pa.compress(b"".join(inner), codec="zstd", asbytes=True)
    size = sum(map(len, inner))
    fields = (
        bytes([2, 1, 0, 3, 3, 0xFC])
        + struct.pack("<H", size)
        + bytes([1, 3, 0xFC])
        + struct.pack("<H", len(data))
        + b"\0"
    )
    found = unpacking.unpacked(packed(event(events.PAYLOAD, fields + data)))
    assert found.types.tolist() == [19, 16]
    assert found.body(0) == b"map"
    assert found.number(np.array([0, 1]), 13, 4).tolist() == [100, 100]


def test_compressed_rows_of_mariadb_are_unpacked() -> None:
    rows = b"row" * 50
    body = bytes(8) + bytes([3, 7]) + bytes([0x82, 0, len(rows)]) + zlib.compress(rows)
    found = unpacking.unpacked(packed(event(166, body)))
    assert (found.types.tolist(), found.body(0)) == ([23], bytes(8) + bytes([3, 7]) + rows)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1.0"), (-0.0, "-0.0"), (1e-7, "0.0000001"), (1e100, "1e100"), (1.5e15, "1.5e15"), (123456.75, "123456.75")],
)
def test_a_double_in_json_is_written_as_the_server_does(number: float, text: str) -> None:
    assert json_double(number) == text


def test_texts_in_a_character_set_of_one_byte_are_decoded_together() -> None:
    values = pa.array([b"\xe4\x80", b"", b"abc", b"\x81"], pa.binary())
    assert decoded(values, "latin1_swedish_ci", "t.c").to_pylist() == ["ä€", "", "abc", "\x81"]


def test_bytes_that_are_no_text_are_refused_without_showing_them() -> None:
    with pytest.raises(DecodeError, match=r"t\.c: a value is not valid utf8mb4"):
        decoded(pa.array([b"\xff\xfe"], pa.binary()), "utf8mb4_bin", "t.c")


# --- what was lost, or told twice, without an error -----------------------------------------------------------------


def test_a_place_that_closes_a_gap_has_what_was_behind_it() -> None:
    progress = gtid.progress_from(f"{SERVER}:1-4:7-9")
    assert gtid.after(progress, [SERVER] * 2, np.array([5, 6])).to_pylist() == [f"{SERVER}:1-5:7-9", f"{SERVER}:1-9"]
    assert gtid.after(progress, [SERVER] * 2, np.array([10, 11])).to_pylist() == [f"{SERVER}:1-10", f"{SERVER}:1-11"]


@pytest.mark.parametrize("numbers", [[11, 11], [11, 12, 5], [11, 13, 12, 14], [10]])
def test_numbers_of_a_domain_that_do_not_grow_are_refused(numbers: list[int]) -> None:
    with pytest.raises(SourceRefused, match="several servers write to one domain"):
        gtid.after(gtid.progress_from("0-1-10"), ["0-2"] * len(numbers), np.array(numbers))


def test_places_of_two_forms_are_never_waited_for() -> None:
    with pytest.raises(SourceChanged, match="places of two kinds"):
        positions.reached("binlog.000001:400", f"{SERVER}:1-5")


def query_of(text: str) -> queries.Query:
    return queries.parse(struct.pack("<IIBHH", 0, 0, 4, 0, 0) + b"shop\0" + text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "TRUNCATE TABLE t",
        'truncate "t"',
        'TRUNCATE TABLE "shop"."t"',
        "truncate /* why */ table t",
        "TRUNCATE -- why\n t # so",
        "/*!40000 TRUNCATE TABLE t */",
        "/*M!100100 TRUNCATE */ t",
        "SET STATEMENT max_statement_time=10, sql_mode='FOR' FOR TRUNCATE TABLE `t`",
    ],
)
def test_a_truncate_is_known_in_all_words(text: str) -> None:
    assert query_of(text).truncated == ("shop", "t")


def test_remarks_in_quotes_are_none() -> None:
    assert query_of("TRUNCATE TABLE `a/*b*/``c`").truncated == ("shop", "a/*b*/`c")
    assert query_of("TRUNCATE TABLE Shop.T").in_lower_case.truncated == ("shop", "t")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ALTER TABLE t TRUNCATE PARTITION p0", ["t"]),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE `u` WITHOUT VALIDATION", ["t", "u"]),
        ("ALTER TABLE t IMPORT TABLESPACE", ["t"]),
        ("ALTER TABLE t ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))", []),
        ("ALTER TABLE t ADD COLUMN truncate_partition int", []),
    ],
)
def test_statements_that_take_rows_away_with_their_storage(text: str, names: list[str]) -> None:
    assert query_of(text).replaced == [("shop", name) for name in names]


def test_a_rollback_to_a_savepoint_is_one() -> None:
    assert query_of("ROLLBACK TO `a`").meaning is queries.Meaning.ROLLBACK
    assert query_of("SAVEPOINT `a`").meaning is queries.Meaning.INSIDE
