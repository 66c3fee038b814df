"""What a schema history promises beyond the tests of `seeds/test_rustcdc_history`."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace.errors import StateError
from tailrace.history.schema_history import SchemaHistory
from tailrace.history.stores import FileHistory, MemoryHistory
from tailrace.history.versions import KEPT, Retention
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind

BEGIN = datetime(2024, 2, 29, tzinfo=UTC)
TABLE = "public.t"


def reached(position: str, target: str) -> bool:
    return int(position) >= int(target)


def version(number: int) -> TableSchema:
    return TableSchema("public", "t", (Column("id", ColumnType(Kind.INT64, "bigint"), number),), ("id",))


def at(step: int) -> datetime:
    return BEGIN + timedelta(seconds=step)


def recorded(history: SchemaHistory, *steps: int) -> SchemaHistory:
    for step in steps:
        history.record(version(step), str(step), at(step))
    return history


def test_positions_are_ordered_by_whoever_made_the_history() -> None:
    """As numbers: 9 comes before 10."""
    history = recorded(SchemaHistory(MemoryHistory(), reached), 9, 10, 100)
    assert [history.schema_at(TABLE, position=p) for p in ("8", "9", "10", "99", "100", "1000")] == [
        None,
        version(9),
        version(10),
        version(10),
        version(100),
        version(100),
    ]


def test_a_version_is_in_force_until_the_moment_of_the_next() -> None:
    history = recorded(SchemaHistory(MemoryHistory(), reached), 1, 5)
    assert history.schema_at(TABLE, time=at(5) - timedelta(microseconds=1)) == version(1)
    assert history.schema_at(TABLE, time=at(5)) == version(5)
    assert history.schema_at("public.other", time=at(5)) is None


def test_either_a_position_or_a_time_is_asked_for() -> None:
    history = SchemaHistory(MemoryHistory(), reached)
    with pytest.raises(TypeError, match="either a position or a time"):
        history.schema_at(TABLE)
    with pytest.raises(TypeError, match="either a position or a time"):
        history.schema_at(TABLE, position="1", time=BEGIN)


def test_the_same_columns_again_are_no_new_version() -> None:
    history = SchemaHistory(MemoryHistory(), reached)
    for position in ("1", "2", "3"):
        history.record(version(1), position, BEGIN)
    assert [v.position for v in history.versions(TABLE)] == ["1"]


def test_columns_that_come_back_are_a_version_of_their_own() -> None:
    history = SchemaHistory(MemoryHistory(), reached)
    for position, schema in (("1", version(1)), ("2", version(2)), ("3", version(1))):
        history.record(schema, position, BEGIN)
    assert [v.number for v in history.versions(TABLE)] == [1, 2, 3]


def test_what_lies_before_the_beginning_is_not_added() -> None:
    history = recorded(SchemaHistory(MemoryHistory(), reached), 5)
    assert history.record(version(3), "3", at(3)) is None
    assert [v.position for v in history.versions(TABLE)] == ["5"]


def test_a_history_keeps_so_many_versions_of_each_table() -> None:
    history = recorded(SchemaHistory(MemoryHistory(), reached), *range(1, KEPT + 10))
    assert len(history.versions(TABLE)) == KEPT
    assert history.versions(TABLE)[-1].number == KEPT + 9


def test_a_version_is_kept_so_long_after_another_took_its_place() -> None:
    """And the last one always, however old."""
    now = at(100).timestamp()
    history = SchemaHistory(MemoryHistory(), reached, Retention(seconds=50), lambda: now)
    recorded(history, 1, 40, 60)
    assert [v.position for v in history.versions(TABLE)] == ["40", "60"]
    later = SchemaHistory(MemoryHistory(), reached, Retention(seconds=0), lambda: now + 1e9)
    assert [v.position for v in recorded(later, 1).versions(TABLE)] == ["1"]


def test_what_could_not_be_saved_is_not_known() -> None:
    class Full(MemoryHistory):
        def save(self, versions: object) -> None:
            raise StateError("the disk is full")

    history = SchemaHistory(Full(), reached)
    with pytest.raises(StateError):
        history.record(version(1), "1", BEGIN)
    assert history.versions(TABLE) == []


# --- the file


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    recorded(SchemaHistory(FileHistory(tmp_path / "history.json"), reached), 1).close()
    assert stat.S_IMODE((tmp_path / "history.json").stat().st_mode) == 0o600


def test_a_file_with_one_other_character_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    recorded(SchemaHistory(FileHistory(path), reached), 1).close()
    path.write_bytes(path.read_bytes().replace(b"bigint", b"bigimt"))
    with pytest.raises(StateError, match="is damaged: its checksum is of another content") as refused:
        FileHistory(path).load()
    assert "restore it from a backup" in str(refused.value.hint)


def test_a_file_of_a_format_to_come_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.touch(0o600)
    path.write_text(json.dumps({"format": 2, "checksum": "", "content": [], "more": 1}))
    with pytest.raises(StateError, match="has format 2, and this version of tailrace reads 1"):
        FileHistory(path).load()


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    first = recorded(SchemaHistory(FileHistory(tmp_path / "history.json"), reached), 1)
    second = SchemaHistory(FileHistory(tmp_path / "history.json"), reached)
    with pytest.raises(StateError, match="another tailrace process"):
        second.record(version(2), "2", BEGIN)
    first.close()
    assert second.record(version(2), "2", BEGIN) is not None


@pytest.mark.parametrize("mode", [0o640, 0o606])
def test_a_file_that_is_open_to_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "history.json"
    recorded(SchemaHistory(FileHistory(path), reached), 1).close()
    path.chmod(mode)
    with pytest.raises(StateError, match=f"is open to other users: mode {mode:04o}") as refused:
        FileHistory(path).load()
    assert "chmod 600" in str(refused.value.hint)
    path.chmod(0o600)
    assert FileHistory(path).load()


def test_a_file_without_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.json").touch(0o600)
    with pytest.raises(StateError, match="can not be read"):
        FileHistory(tmp_path / "history.json").load()


def test_nobody_writes_over_what_he_has_not_read(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    early = SchemaHistory(FileHistory(path), reached)
    recorded(SchemaHistory(FileHistory(path), reached), 1, 2).close()
    with pytest.raises(StateError, match="was changed since it was read"):
        recorded(early, 3)
    assert [v.position for v in recorded(SchemaHistory(FileHistory(path), reached), 3).versions(TABLE)] == list("123")


# --- what a stream tells


def shaped(*names: str, number: int = 0) -> TableSchema:
    columns = tuple(Column(name, ColumnType(Kind.INT64, "bigint"), number) for name in names)
    return TableSchema("public", "t", columns, ("id",))


def test_what_a_stream_delivers_again_is_known_whatever_it_looks_like_by_then() -> None:
    history = SchemaHistory(MemoryHistory(), reached)
    told = [(shaped("id"), "1", at(1)), (shaped("id", "a"), "5", at(5)), (shaped("id", "b"), "5", at(5))]
    assert history.learn(told) == 3
    assert history.learn(told) == 0
    assert history.learn([(shaped("id", "a", number=7), "3", at(3)), (shaped("id", "z"), "2", at(2))]) == 0
    assert history.learn([(shaped("id", "b", number=7), "9", at(9)), (shaped("id"), "9", at(9))]) == 1
    assert [(v.position, v.schema) for v in history.versions(TABLE)] == [
        *((position, schema) for schema, position, _ in told),
        ("9", shaped("id")),
    ]


def test_what_a_stream_delivers_at_once_is_saved_at_once() -> None:
    class Counting(MemoryHistory):
        saves = 0

        def save(self, versions: object) -> None:
            self.saves += 1
            super().save(versions)  # type: ignore[arg-type]

    store = Counting()
    SchemaHistory(store, reached).learn([(shaped("id"), "1", at(1)), (shaped("id", "a"), "2", at(2))])
    assert store.saves == 1


WRITER = """
import sys
from datetime import UTC, datetime
from tailrace.history.schema_history import SchemaHistory
from tailrace.history.stores import FileHistory
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind

history = SchemaHistory(FileHistory(sys.argv[1]), lambda position, target: int(position) >= int(target))
for number in range(1, 1_000_000):
    column = Column("id", ColumnType(Kind.INT64, "bigint"), number)
    history.record(TableSchema("public", "t", (column,), ("id",)), str(number), datetime.now(UTC))
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_all_that_it_has_recorded(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [int(writer.stdout.readline()) for _ in range(5)]
        writer.kill()
        lines += [int(line) for line in writer.stdout]
    history = SchemaHistory(FileHistory(path), reached)
    numbers = [v.number for v in history.versions(TABLE)]
    assert lines[-1] <= numbers[-1] <= lines[-1] + 1
    assert history.record(version(numbers[-1]), str(numbers[-1]), BEGIN) is not None
    recorded(history, numbers[-1] + 1).close()  # the dead one's lock is free
