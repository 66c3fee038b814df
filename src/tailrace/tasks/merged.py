"""Where the tables of a document are stored, as one fact: what changes in any of them shows in it.

Numbers of relations are the source's own and differ between tables, so they lie side by side; which are whose is
written beside the columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailrace.model.lifecycle import UNSEEN, StoredAs
from tailrace.model.schema import TableSchema


class Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one table: its columns, and its relations."""

    columns: str
    files: tuple[str, ...]
    marks: tuple[str, ...]


def merged(tables: Mapping[str, StoredAs]) -> StoredAs:
    files: dict[str, int] = {}
    marks: dict[str, str] = {}
    for stored in tables.values():
        files |= stored.files
        marks |= stored.marks
    owns = {t: Own(s.columns, tuple(sorted(s.files)), tuple(sorted(s.marks))) for t, s in sorted(tables.items())}
    return StoredAs(files, msgspec.json.encode(owns).decode(), marks)


def is_part(stored: StoredAs, table: TableSchema) -> bool:
    """Whether a table, and no other that had its name, is one of those that were looked at."""
    own = _owns(stored).get(table.table)
    return own is not None and str(table.relation) in own.marks


def separated(old: StoredAs, new: StoredAs) -> tuple[dict[str, StoredAs], dict[str, StoredAs], set[str]]:
    """The tables of two looks, and the relations of the old one that the stream told of and that are nobody's now.

    A relation that the stream told of belongs to the table that has it in the new look.
    """
    before, after = _owns(old), _owns(new)
    known = {file for own in before.values() for file in own.files}
    told = {file for file, number in old.files.items() if file not in known and number == UNSEEN}
    tables = {
        table: _part(old, own, told & set(after[table].files) if table in after else set())
        for table, own in before.items()
    }
    strays = told - {file for own in after.values() for file in own.files}
    return tables, {table: _part(new, own, set()) for table, own in after.items()}, strays


def _owns(stored: StoredAs) -> dict[str, Own]:
    return msgspec.json.decode(stored.columns, type=dict[str, Own]) if stored.columns else {}


def _part(stored: StoredAs, own: Own, more: set[str]) -> StoredAs:
    files = {file: stored.files[file] for file in (*own.files, *sorted(more))}
    return StoredAs(files, own.columns, {mark: stored.marks[mark] for mark in own.marks})
