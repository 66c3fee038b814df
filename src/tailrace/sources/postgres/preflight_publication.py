"""The publication in a preflight: is it there, does it publish all that happens to our tables, can it be made so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
from psycopg import sql

from tailrace.sources.base import Finding
from tailrace.sources.findings import fail, number_of, ok, some_of, warn
from tailrace.sources.postgres.facts import Publication, PublishedTable, Server, Table
from tailrace.sources.postgres.publications import MARK, addition_sql, belonging, creation_sql, other_maker

SUBJECT = "publication"


class Fate(StrEnum):
    """What becomes of a table whose changed rows can not be identified."""

    FAILS = "inserts only: updates and deletes will fail in the source"
    INSERTS = "inserts only: updates and deletes do not arrive"
    LEFT_OUT = "left out: publishing them would make updates and deletes fail in the source"
    UNSURE = "its partitions identify rows, and the table itself does not"


class Publications(msgspec.Struct, frozen=True):
    """The publication, the one beside it for inserts only, and what may be done about them."""

    names: tuple[str, str]
    main: Publication | None
    inserts: Publication | None
    slot: str
    may_create: bool
    is_named: bool  # by us
    is_late: bool  # the slot could not be read with a publication that is made now

    def fate(self, table: Table, server: Server) -> Fate:
        if not table.unidentified:
            return Fate.UNSURE
        if self.main is not None and is_member(self.main, table) and not self._can_move(self.main, table):
            return Fate.FAILS
        if self.inserts is not None and is_member(self.inserts, table):
            return Fate.INSERTS
        return Fate.INSERTS if self.may_create and self._has_room(server) else Fate.LEFT_OUT

    def is_left_out(self, table: Table, server: Server) -> bool:
        return bool(table.unidentified) and self.fate(table, server) is Fate.LEFT_OUT

    def obstacle(self, table: Table, server: Server) -> str | None:
        """Why we can not publish a table; None if we can, and also for one that is published, or left out."""
        if self._is_published(table) or self.is_left_out(table, server):
            return None
        if not self.may_create:
            return "source.create is off"
        if not table.is_owned:
            return f"only their owner can add them, which the role {server.role} is not"
        is_closed = self.main is not None and not self.main.is_ours
        return f"the role {server.role} does not own the publication" if is_closed else None

    def publishing_sql(self, tables: Sequence[Table]) -> str:
        """The statements that publish tables."""
        main, inserts = self.names
        places = {
            main: [table for table in tables if not table.unidentified],
            inserts: [table for table in tables if table.unidentified],
        }
        return " ".join(f"{addition_sql(name, _keys(found))};" for name, found in places.items() if found)

    def _is_published(self, table: Table) -> bool:
        places = (self.main, self.inserts if table.unidentified else None)
        return any(place is not None and is_member(place, table) for place in places)

    def _can_move(self, main: Publication, table: Table) -> bool:
        is_ours = main.is_ours and (main.comment.startswith(MARK) or self.is_named) and not main.takes_all
        return self.may_create and is_ours and table.source.oid in main.members

    def _has_room(self, server: Server) -> bool:
        if self.inserts is not None:
            is_foreign = other_maker(self.inserts.comment, self.slot) is not None
            return self.inserts.is_ours and not self.inserts.takes_all and not is_foreign
        is_open = self.main is None or (self.main.is_ours and not self.main.takes_all)
        return is_open and server.can_create and not self.is_late


def findings(around: Publications, captured: Sequence[Table], server: Server) -> Iterator[Finding]:
    """`captured` are the tables to capture; without any there is nothing to publish, which is said elsewhere."""
    tables = [table for table in captured if not table.unidentified]
    name, publication = around.names[0], around.main
    refusal = _belonging(around)
    if refusal is not None:
        yield refusal
        return
    if not captured:
        return
    if publication is None:
        yield _absent(around, captured, server)
        return
    yield from _actions(name, publication)
    yield from _partitions(name, publication, captured)
    yield _coverage(around, publication, tables, server)
    yield from _row_filters(name, publication, captured)
    yield from _column_lists(publication, captured)


def is_member(publication: Publication, table: Table) -> bool:
    """A partitioned table is not *listed* as published when its partitions are published under their own names."""
    source = table.source
    if (source.schema, source.name) in publication.tables or publication.takes_all:
        return True
    return source.is_partitioned and (source.oid in publication.members or source.schema in publication.schemas)


def _belonging(around: Publications) -> Finding | None:
    """Who alters nothing takes nothing from another pipeline."""
    places = zip(around.names, (around.main, around.inserts), strict=True)
    comments = {name: found.comment for name, found in places if found is not None}
    refusal = belonging(around.names[0], comments, around.slot)
    return fail(SUBJECT, *refusal) if refusal is not None and around.may_create else None


def _absent(around: Publications, captured: Sequence[Table], server: Server) -> Finding:
    name, tables = around.names[0], [table for table in captured if not table.unidentified]
    if not around.may_create:
        obstacle = " and source.create is off"
    elif all(around.obstacle(table, server) for table in captured):
        foreign = some_of(_names(captured))
        obstacle = f", and only the owner of {foreign} can change that, which the role {server.role} is not"
    elif not server.can_create:
        grant = sql.SQL("GRANT CREATE ON DATABASE {} TO {};").format(
            sql.Identifier(server.database), sql.Identifier(server.role)
        )
        return fail(
            SUBJECT,
            f"the publication {name} does not exist, and the role {server.role} may not create one in the database"
            f" {server.database}",
            grant.as_string(None),
        )
    else:
        possible = [table for table in tables if around.obstacle(table, server) is None]
        return ok(SUBJECT, f"{name} does not exist yet: it will be created for {number_of(len(possible), 'table')}")
    return fail(SUBJECT, f"the publication {name} does not exist{obstacle}", f"{creation_sql(name, _keys(tables))};")


def _coverage(around: Publications, publication: Publication, tables: Sequence[Table], server: Server) -> Finding:
    """Those that can not be published are said with the tables."""
    name = around.names[0]
    lacking = [table for table in tables if not is_member(publication, table)]
    added = [table.name for table in lacking if around.obstacle(table, server) is None]
    if added:
        return ok(SUBJECT, f"{name} lacks {number_of(len(added), 'table')} ({some_of(added)}): they will be added")
    return ok(SUBJECT, f"{name} publishes {number_of(len(tables) - len(lacking), 'table')} of the pipeline")


def _actions(name: str, publication: Publication) -> Iterator[Finding]:
    published = {
        "insert": publication.inserts,
        "update": publication.updates,
        "delete": publication.deletes,
        "truncate": publication.truncates,
    }
    lacking = [action for action, is_published in published.items() if not is_published]
    if lacking:
        yield fail(
            SUBJECT,
            f"the publication {name} does not publish {', '.join(lacking)}: such changes would be lost",
            _alter(name, "SET (publish = 'insert, update, delete, truncate')"),
        )


def _partitions(name: str, publication: Publication, tables: Sequence[Table]) -> Iterator[Finding]:
    partitioned = [table.name for table in tables if table.source.is_partitioned]
    if partitioned and not publication.via_root:
        yield fail(
            SUBJECT,
            f"the publication {name} sends changes of partitioned tables ({some_of(partitioned)}) under the names of"
            " their partitions",
            _alter(name, "SET (publish_via_partition_root = true)"),
        )


def _row_filters(name: str, publication: Publication, tables: Sequence[Table]) -> Iterator[Finding]:
    filtered = [table for table in tables if (found := _published(publication, table)) and found.has_filter]
    if filtered:
        listed = sql.SQL(", ").join(sql.Identifier(*key) for key in _keys(filtered)).as_string(None)
        yield warn(
            SUBJECT,
            f"{number_of(len(filtered), 'table')} published with a row filter ({some_of(_names(filtered))}): rows"
            " outside of the filter would not be kept up to date, so that such a table is set aside",
            f"{_alter(name, f'DROP TABLE {listed}')} {_alter(name, f'ADD TABLE {listed}')}",
        )


def _column_lists(publication: Publication, tables: Sequence[Table]) -> Iterator[Finding]:
    limited = [table for table in tables if _lacks_columns(publication, table)]
    if limited:
        yield ok(
            SUBJECT,
            f"{number_of(len(limited), 'table')} published with a column list ({some_of(_names(limited))}): the other"
            " columns do not arrive",
        )


def _lacks_columns(publication: Publication, table: Table) -> bool:
    published = _published(publication, table)
    own = {column.name for column in table.columns if not column.is_generated}
    return published is not None and not own.issubset(published.columns)


def _published(publication: Publication, table: Table) -> PublishedTable | None:
    return publication.tables.get((table.source.schema, table.source.name))


def _keys(tables: Sequence[Table]) -> list[tuple[str, str]]:
    return [(table.source.schema, table.source.name) for table in tables]


def _names(tables: Sequence[Table]) -> list[str]:
    return [table.name for table in tables]


def _alter(name: str, action: str) -> str:
    return f"ALTER PUBLICATION {sql.Identifier(name).as_string(None)} {action};"
