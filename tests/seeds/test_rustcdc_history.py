"""rustcdc's tests of its schema history (src/schema_history/mod.rs), answered by name.

rustcdc parses DDL and keeps what it makes of it. PostgreSQL sends a table's columns before its next change, so ours
records whole versions; a statement that could not be parsed is a version that can not be true.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace.codecs.json_events import JsonCodec
from tailrace.errors import ConfigError, DecodeError, StateError
from tailrace.history.schema_history import SchemaHistory
from tailrace.history.stores import FileHistory, MemoryHistory
from tailrace.history.versions import Retention
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres.positions import reached

USERS = "public.users"
BEGIN = datetime(2024, 2, 29, tzinfo=UTC)
LINE = (
    b'{"op":"insert","table":"public.users","key":{"id":1},"before":null,"after":%s,"position":"0/1",'
    b'"transaction":null,"commit_time":null}'
)


def users(*names: str) -> TableSchema:
    columns = ("id", "name", *names)
    return TableSchema(
        "public",
        "users",
        tuple(Column(name, ColumnType(Kind.TEXT, "text"), i) for i, name in enumerate(columns)),
        ("id",),
    )


def at(step: int) -> datetime:
    return BEGIN + timedelta(seconds=step)


def in_memory(retention: Retention | None = None) -> SchemaHistory:
    return SchemaHistory(MemoryHistory(), reached, retention)


def in_file(path: Path) -> SchemaHistory:
    return SchemaHistory(FileHistory(path), reached)


def number(history: SchemaHistory, schema: TableSchema, position: str, step: int = 0) -> int:
    version = history.record(schema, position, at(step))
    assert version is not None
    return version.number


def test_schema_history_round_trip() -> None:
    history = in_memory()
    assert number(history, users(), "0/100") == 1
    assert history.latest(USERS) == users()


def test_validator_detects_unknown_and_missing_columns() -> None:
    """Ours are events read back from JSON: what has a column that its version has not is refused."""
    history = in_memory()
    history.record(users(), "0/1", BEGIN)
    with pytest.raises(DecodeError):
        JsonCodec.decode(LINE % b'{"id":"1","extra":"x"}', history.schema_at(USERS, position="0/1"))


def test_validator_accepts_nullable_missing_column() -> None:
    history = in_memory()
    history.record(users("email"), "0/1", BEGIN)
    event = JsonCodec.decode(LINE % b'{"id":"1","name":"ann"}', history.schema_at(USERS, position="0/1"))
    assert event.after == {"id": "1", "name": "ann"}


def test_schema_history_tracks_version_and_timestamp_semantics() -> None:
    history = in_memory()
    assert number(history, users(), "0/100", 1) == 1
    assert number(history, users("email"), "0/200", 2) == 2
    second = history.version(USERS, 2)
    assert second is not None
    assert second.schema == users("email")
    assert history.schema_at(USERS, time=at(0)) is None
    assert history.schema_at(USERS, time=at(1)) == users()
    dropped = history.record_drop(USERS, "0/300", at(3))
    assert dropped is not None
    assert dropped.number == 3
    assert history.latest(USERS) is None
    assert history.schema_at(USERS, position="0/250") == users("email")


def test_a_replayed_alter_diff_returns_the_version_it_already_got() -> None:
    history = in_memory()
    number(history, users(), "0/100")
    first = number(history, users("email"), "0/200")
    assert number(history, users("email"), "0/200") == first
    assert number(history, users(), "0/150") == 1
    assert [v.number for v in history.versions(USERS)] == [1, first]


def test_two_distinct_ddls_on_one_table_still_produce_two_versions() -> None:
    """Also within one transaction, whose end is the position of both."""
    history = in_memory()
    versions = [number(history, users(*names), "0/100") for names in ((), ("a",), ("a", "b"))]
    assert versions == [1, 2, 3]
    assert [number(history, users(*names), "0/100") for names in ((), ("a",), ("a", "b"))] == versions


def test_alter_table_diff_applies_incremental_schema_changes() -> None:
    history = in_memory()
    number(history, users("nickname"), "0/100")
    renamed = TableSchema(
        "public", "users", (*users("email").columns[:1], Column("full_name", ColumnType(Kind.TEXT, "text"), 1)), ("id",)
    )
    assert number(history, renamed, "0/200") == 2
    latest = history.latest(USERS)
    assert latest is not None
    assert [column.name for column in latest.columns] == ["id", "full_name"]


def test_alter_table_diff_rejects_unsupported_clause_without_mutating_history() -> None:
    history = in_memory()
    number(history, users(), "0/100")
    number(history, users("email"), "0/300")
    with pytest.raises(StateError, match=r"history of public.users has version 1 at 0/200, and another one came"):
        history.record(users("phone"), "0/200", at(1))
    assert [v.schema for v in history.versions(USERS)] == [users(), users("email")]


def test_alter_table_diff_rejects_invalid_column_operations(tmp_path: Path) -> None:
    """The same in a file: what is refused is not in it."""
    with_versions = in_file(tmp_path / "history.json")
    number(with_versions, users(), "0/100")
    number(with_versions, users("email"), "0/300")
    before = (tmp_path / "history.json").read_bytes()
    with pytest.raises(StateError):
        with_versions.record(users("phone"), "0/200", at(1))
    assert (tmp_path / "history.json").read_bytes() == before


def test_a_ddl_replayed_after_a_restart_is_recognised_from_the_file(tmp_path: Path) -> None:
    history = in_file(tmp_path / "history.json")
    number(history, users(), "0/100")
    version = number(history, users("email"), "0/200")
    history.close()
    restarted = in_file(tmp_path / "history.json")
    assert number(restarted, users("email"), "0/200") == version
    assert len(restarted.versions(USERS)) == 2


def test_file_schema_history_persists_and_reloads_versions(tmp_path: Path) -> None:
    history = in_file(tmp_path / "history.json")
    number(history, users(), "0/100", 1)
    number(history, users("email"), "0/200", 2)
    history.close()
    reloaded = in_file(tmp_path / "history.json")
    assert reloaded.versions(USERS) == history.versions(USERS)
    assert reloaded.latest(USERS) == users("email")


def test_file_schema_history_rejects_corrupt_payload(tmp_path: Path) -> None:
    (tmp_path / "history.json").touch(0o600)
    (tmp_path / "history.json").write_bytes(b"{not-json")
    with pytest.raises(StateError, match=r"history.json can not be read"):
        in_file(tmp_path / "history.json")


def test_in_memory_schema_history_applies_retention_per_table() -> None:
    history = in_memory()
    for step, names in enumerate(((), ("email",), ("phone",))):
        number(history, users(*names), f"0/{step + 1}00", step)
    history.record(TableSchema("public", "others", users().columns, ("id",)), "0/900", BEGIN)
    assert history.apply_retention(Retention(versions=2)) == 1
    assert history.version(USERS, 1) is None
    assert history.version(USERS, 2) is not None
    assert history.versions(USERS)[-1].number == 3
    assert len(history.versions("public.others")) == 1


def test_file_schema_history_retention_persists_after_reload(tmp_path: Path) -> None:
    history = in_file(tmp_path / "history.json")
    for step, names in enumerate(((), ("email",), ("phone",))):
        number(history, users(*names), f"0/{step + 1}00", step)
    assert history.apply_retention(Retention(versions=1)) == 2
    history.close()
    reloaded = in_file(tmp_path / "history.json")
    assert [v.number for v in reloaded.versions(USERS)] == [3]


def test_schema_history_retention_rejects_zero_limit() -> None:
    with pytest.raises(ConfigError, match="0 versions"):
        Retention(versions=0)
