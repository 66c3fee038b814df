"""The tables in a preflight: found, readable, and able to say which row changed.

However many tables there are, each problem is one finding that names the first few.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from psycopg import sql

from tailrace.config import TablePatterns
from tailrace.model.names import parse_table, table_name
from tailrace.model.schema import Identity
from tailrace.sources.base import Finding, Level
from tailrace.sources.findings import Failure, fail, number_of, ok, some_of, warn
from tailrace.sources.postgres.facts import NotTable, Part, Publication, Server, Table, TableColumn, Tables
from tailrace.sources.postgres.preflight_publication import Fate, Publications
from tailrace.sources.postgres.types import column_type, has_binary_decoder

STATEMENTS = 10  # of a fix that needs one a table
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


class Remark(msgspec.Struct, frozen=True):
    """A finding, and the tables that it is about."""

    finding: Finding
    tables: frozenset[str]


def findings(
    tables: Tables,
    around: Publications,
    server: Server,
    patterns: Sequence[str],
    unmatched: Sequence[str],
    others: Sequence[NotTable],
    *,
    is_binary: bool,
) -> Iterator[Finding]:
    """`unmatched` are the `patterns` that take no table; `others` what may have been meant by them."""
    yield from (_unmatched(pattern, tables, others) for pattern in unmatched)
    captured = [table for table in tables.captured if not around.is_left_out(table, server)]
    if not captured and (tables.captured or not unmatched):
        yield fail(
            "tables",
            f"no table of the database {server.database} is left to capture by source.tables: {', '.join(patterns)}",
            "correct source.tables",
        )
    remarks = list(_remarks(tables, around, server, is_binary=is_binary))
    yield from (_finding(remark, tables) for remark in remarks)
    if tables.captured:
        yield _summary(tables, remarks)


def _finding(remark: Remark, tables: Tables) -> Finding:
    """What is wrong with some tables does not hold up the others."""
    is_of_some = not remark.tables.issuperset(table.name for table in tables.captured)
    if isinstance(remark.finding, Failure) and is_of_some:
        return msgspec.structs.replace(remark.finding, is_of_some_tables=True)
    return remark.finding


def _summary(tables: Tables, remarks: Iterable[Remark]) -> Finding:
    troubled = {table for remark in remarks if remark.finding.level is not Level.OK for table in remark.tables}
    sound = sum(table.name not in troubled for table in tables.captured)
    rest = "" if sound == len(tables.captured) else f" of {len(tables.captured):,}"
    return ok("tables", f"{number_of(sound, 'table')}{rest}: ok")


def _remarks(tables: Tables, around: Publications, server: Server, *, is_binary: bool) -> Iterator[Remark]:
    yield from _unlogged(tables.wanted)
    yield from _unpublished(tables.captured, around, server)
    yield from _without_columns(tables.captured, around.main)
    yield from _foreign_partitions(tables.captured)
    yield from _privileges(tables.captured, server)
    yield from _hidden_rows(tables.captured, server)
    yield from _identities(tables.captured, around, server)
    yield from _types(tables, around.main, is_binary=is_binary)
    yield from _generated(tables.captured, around.main)


def _unmatched(pattern: str, tables: Tables, others: Sequence[NotTable]) -> Finding:
    """A name that is not there is a mistake; a wildcard may be waiting for its tables, if there are others."""
    takes = TablePatterns([pattern]).matches
    meant = next((other for other in others if takes(other.schema, other.name)), None)
    if meant is not None:
        return _not_a_table(pattern, meant)
    if is_wildcard(pattern) and tables.captured:
        return warn("tables", f"no table matches {pattern}", "correct source.tables, or create the table")
    guess = likely_meant(pattern, [(table.schema, table.name) for table in tables.every])
    question = f"did you mean {guess}? " if guess else ""
    return fail("tables", f"no table matches {pattern}", f"{question}correct source.tables, or create the table")


def likely_meant(pattern: str, tables: Iterable[tuple[str, str]]) -> str | None:
    """The table whose own name is most like the pattern's: in another case, misspelt, or in another schema."""
    names = {name.lower(): table_name(schema, name) for schema, name in tables}
    wanted = (parse_table(pattern) or ("", pattern))[1].lower()
    return next((names[name] for name in difflib.get_close_matches(wanted, names, n=1, cutoff=0.75)), None)


def _not_a_table(pattern: str, meant: NotTable) -> Finding:
    found = f"{pattern}: {table_name(meant.schema, meant.name)} is"
    if meant.root is not None:
        message = f"{found} a partition, and partitions are captured with their root"
        return fail("tables", message, f"write {meant.root} in source.tables")
    message = f"{found} {_KINDS[meant.kind]}, and only tables can be captured"
    return fail("tables", message, "write the tables that it reads from in source.tables")


def is_wildcard(pattern: str) -> bool:
    """Inside of double quotes, stars and question marks are themselves."""
    return bool(re.search(r"[*?]", re.sub(r'"(?:[^"]|"")*"', "", pattern)))


def _unpublished(tables: Sequence[Table], around: Publications, server: Server) -> Iterator[Remark]:
    """Where there is no publication, nor a table for which we can make one, that is said instead."""
    obstacles = {table.name: around.obstacle(table, server) for table in tables}
    if around.main is None and (not around.may_create or all(obstacles.values())):
        return
    for obstacle in sorted({found for found in obstacles.values() if found is not None}):
        lacking = [table for table in tables if obstacles[table.name] == obstacle]
        lacks = f"lacks {number_of(len(lacking), 'table')} ({some_of(_names(lacking))})"
        message = f"the publication {around.names[0]} {lacks}: {obstacle}"
        yield Remark(fail("publication", message, around.publishing_sql(lacking)), _names(lacking))


def _unlogged(tables: Sequence[Table]) -> Iterator[Remark]:
    for grade, fate in (
        ([t for t in tables if t.source.is_unlogged], "not captured"),
        ([t for t in tables if not t.source.is_unlogged], "they send no changes, so their table is set aside"),
    ):
        parts = [part for table in grade for part in table.parts if part.is_unlogged]
        if parts:
            kind = "table" if fate == "not captured" else "partition"
            yield Remark(
                warn(
                    "unlogged",
                    f"{number_of(len(parts), f'unlogged {kind}')} ({_some(parts)}): {fate}",
                    _statements("ALTER TABLE {} SET LOGGED;", parts),
                ),
                _names(table for table in grade if any(part.is_unlogged for part in table.parts)),
            )


def _without_columns(tables: Sequence[Table], publication: Publication | None) -> Iterator[Remark]:
    found = [table for table in tables if not _published_columns(table, publication)]
    if found:
        names = [table.name for table in found]
        message = (
            f"{number_of(len(found), 'table')} without a column that is published ({some_of(names)}): not captured"
        )
        yield Remark(warn("columns", message, "exclude them in source.tables, or add a column"), _names(found))


def _foreign_partitions(tables: Sequence[Table]) -> Iterator[Remark]:
    touched = {table.name: [part for part in table.parts if part.kind == "f"] for table in tables}
    parts = [part for found in touched.values() for part in found]
    if parts:
        message = f"{number_of(len(parts), 'partition')} that are foreign tables ({_some(parts)}): not captured"
        fix = "capture them from the server that holds them"
        yield Remark(warn("partitions", message, fix), frozenset(name for name, found in touched.items() if found))


def _privileges(tables: Sequence[Table], server: Server) -> Iterator[Remark]:
    role = sql.Identifier(server.role)
    closed = {part.schema for table in tables for part in table.parts if not part.can_use_schema}
    if closed:
        listed = sql.SQL(", ").join(sql.Identifier(schema) for schema in sorted(closed))
        yield Remark(
            fail(
                "privileges",
                f"the role {server.role} may not use {number_of(len(closed), 'schema')}: {some_of(closed)}",
                sql.SQL("GRANT USAGE ON SCHEMA {} TO {};").format(listed, role).as_string(None),
            ),
            _names(table for table in tables if not all(part.can_use_schema for part in table.parts)),
        )
    unreadable = [part for table in tables for part in table.parts if not part.can_select]
    if unreadable:
        listed = sql.SQL(", ").join(sql.Identifier(part.schema, part.name) for part in unreadable)
        yield Remark(
            fail(
                "privileges",
                f"the role {server.role} may not read {number_of(len(unreadable), 'table')}: {_some(unreadable)}",
                sql.SQL("GRANT SELECT ON {} TO {};").format(listed, role).as_string(None),
            ),
            _names(table for table in tables if not all(part.can_select for part in table.parts)),
        )


def _hidden_rows(tables: Sequence[Table], server: Server) -> Iterator[Remark]:
    hiding = [table for table in tables if any(part.hides_rows for part in table.parts)]
    if hiding:
        yield Remark(
            fail(
                "row security",
                f"row security may hide rows of {number_of(len(hiding), 'table')} from the role {server.role}"
                f" ({some_of(_names(hiding))}): the first copy would not be whole",
                f"ALTER ROLE {sql.Identifier(server.role).as_string(None)} BYPASSRLS;",
            ),
            _names(hiding),
        )


def _identities(tables: Sequence[Table], around: Publications, server: Server) -> Iterator[Remark]:
    lost = {table.name: [part for part in table.parts if _cannot_identify(part)] for table in tables}
    fates = {table.name: around.fate(table, server) for table in tables if lost[table.name]}
    for fate in Fate:
        parts = [part for name, found in lost.items() for part in found if fates.get(name) is fate]
        for what, kind, grade in (
            ("no usable primary key", "FULL", [part for part in parts if not part.has_key]),
            ("no replica identity", "DEFAULT", [part for part in parts if part.has_key]),
        ):
            if grade:
                about = frozenset(name for name, found in lost.items() if any(part in grade for part in found))
                message = f"{number_of(len(about), 'table')} with {what} ({some_of(about)}): {fate}"
                fix = _statements(f"ALTER TABLE {{}} REPLICA IDENTITY {kind};", grade)
                yield Remark(warn("replica identity", message, fix), about)
    whole = [t for t in tables if t.source.identity is Identity.FULL and not t.source.has_primary_key]
    if whole:
        message = f"{number_of(len(whole), 'table')} without a key and with identity full ({some_of(_names(whole))})"
        yield Remark(ok("replica identity", f"{message}: the whole old row identifies a row"), _names(whole))


def _cannot_identify(part: Part) -> bool:
    return part.kind in ("r", "p") and not part.is_unlogged and not part.identifies_rows


def _types(tables: Tables, publication: Publication | None, *, is_binary: bool) -> Iterator[Remark]:
    as_text: dict[str, str] = {}
    for table in tables.captured:
        for column in _published_columns(table, publication):
            type_ = column_type(column.type, -1, tables.types)
            if not has_binary_decoder(type_):
                as_text[f"{table.name}.{column.name} {type_.name}"] = table.name
    if as_text and is_binary:
        message = f"{number_of(len(as_text), 'column')} without a binary decoder ({some_of(as_text)})"
        finding = ok("types", f"{message}: the stream runs in text mode, slower and just as exact")
        yield Remark(finding, frozenset(as_text.values()))


def _generated(tables: Sequence[Table], publication: Publication | None) -> Iterator[Remark]:
    left_out = {
        f"{table.name}.{column.name}": table.name
        for table in tables
        for column in table.columns
        if column.is_generated and column not in _published_columns(table, publication)
    }
    if left_out:
        message = f"{number_of(len(left_out), 'generated column')} not published by the server: {some_of(left_out)}"
        yield Remark(ok("generated columns", message), frozenset(left_out.values()))


def _published_columns(table: Table, publication: Publication | None) -> list[TableColumn]:
    """Those that the publication sends; all but the generated ones where none lists them."""
    listed = publication.tables.get((table.source.schema, table.source.name)) if publication else None
    if listed is None:
        return [column for column in table.columns if not column.is_generated]
    return [column for column in table.columns if column.name in listed.columns]


def _statements(statement: str, parts: Sequence[Part]) -> str:
    """One statement a table, for the first of them."""
    written = [statement.format(sql.Identifier(p.schema, p.name).as_string(None)) for p in parts[:STATEMENTS]]
    rest = len(parts) - len(written)
    return " ".join(written) + (f" -- and so for {rest:,} more" if rest else "")


def _some(parts: Sequence[Part]) -> str:
    return some_of([table_name(part.schema, part.name) for part in parts])


def _names(tables: Iterable[Table]) -> frozenset[str]:
    return frozenset(table.name for table in tables)
