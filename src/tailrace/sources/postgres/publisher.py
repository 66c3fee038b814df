"""The publications: which tables the server sends us, and of which of them updates and deletes.

Guarantee: no write of the application fails because of us. PostgreSQL refuses the UPDATE or DELETE of a table that
publishes such changes and can not say which row they are about; such tables go into a publication of their own, which
sends inserts and truncates only. Waiting for a lock ends after a moment, and nobody waits for us meanwhile: what is
locked is published later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql

from tailrace.config import TablePatterns
from tailrace.errors import SourceRefused
from tailrace.model.names import table_name
from tailrace.sources.base import Published
from tailrace.sources.postgres.catalog import HAS_KEY, IDENTIFIES, IS_TABLE, PARTS
from tailrace.sources.postgres.publications import (
    MADE_FOR,
    MARK,
    TOLERANT_VERSION,
    Maker,
    Publication,
    addition_sql,
    alteration_sql,
    belonging,
    comment_sql,
    creation_sql,
    existing,
    lock_sql,
    maker_by,
    only,
    other_maker,
    publications,
)

LOCK_TIMEOUT_MS = 2_000  # longer than the second after which the server ends an autovacuum that is in the way
HOLDING_TIMEOUT_MS = 10  # for what comes after the tables' locks, such as the publication's: far below deadlock_timeout
INSERTS_ONLY = "insert, truncate"

_PLACES = f"""
WITH RECURSIVE {PARTS},
safe (root, is_safe) AS (
    SELECT part.root, bool_and({IDENTIFIES}) FROM part JOIN pg_class c ON c.oid = part.oid
    WHERE c.relkind = 'r' AND c.relpersistence = 'p' GROUP BY part.root
)
SELECT n.nspname::text, c.relname::text, c.oid::bigint, c.relpersistence = 'p', pg_has_role(c.relowner, 'USAGE'),
    coalesce(safe.is_safe, {HAS_KEY}),
    ARRAY(SELECT p.pubname::text FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
        WHERE r.prrelid = c.oid AND p.pubname = ANY (%(names)s)),
    EXISTS (SELECT FROM pg_publication p WHERE p.pubname = ANY (%(names)s) AND (p.puballtables
        OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid)))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN safe ON safe.root = c.oid
WHERE {IS_TABLE}
ORDER BY 1, 2
"""

_TERMS = """
SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs)),
    pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s AND r.prrelid = %s
"""

_PASSING = (pg.LockNotAvailable, pg.DeadlockDetected, pg.QueryCanceled)
_OVERTAKEN = (pg.UndefinedTable, pg.UndefinedObject, pg.DuplicateObject, pg.UniqueViolation, pg.InternalError)
"""The table is gone, or somebody did the same at this moment: another look will tell."""


class Place(msgspec.Struct, frozen=True):
    """A table, and where it is published: by name in `members`, or together with others (`is_swept`)."""

    schema: str
    name: str
    oid: int
    is_logged: bool
    is_owned: bool  # by our role, which could not publish it otherwise
    is_safe: bool  # its updates and deletes can be published without harm
    members: list[str]
    is_swept: bool

    @property
    def table(self) -> str:
        return table_name(self.schema, self.name)

    @property
    def is_published(self) -> bool:
        return bool(self.members) or self.is_swept


class Step(msgspec.Struct, frozen=True):
    """One table's change of place: out of `leaves`, and into `enters` if there is one."""

    place: Place
    leaves: tuple[str, ...]
    enters: str | None

    @property
    def kind(self) -> str:
        if self.enters is None:
            return "moved" if len(self.place.members) > len(self.leaves) else "removed"
        return "moved" if self.leaves else "added"


class Publisher:
    """The two publications of one pipeline. `is_named` is false for a publication that the user has named.

    Tables are taken out of, and moved between, publications of ours only: those that we made for this pipeline, or
    that have our name. Nothing is altered unless `may_alter`.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        names: tuple[str, str],
        patterns: TablePatterns,
        maker: Maker,
        *,
        is_named: bool,
        may_alter: bool,
    ) -> None:
        self._connection, self._patterns, self._maker = connection, patterns, maker
        self._is_named, self._may_alter = is_named, may_alter
        self.main, self.inserts = names
        self._names = list(names)

    def create(self, *, has_slot: bool) -> None:
        """Make the publications that are missing; the one for inserts only if we may alter the other.

        Both come before the slot: versions before 18 can not stream the past of a publication that is younger. One
        that belongs to another pipeline is refused.
        """
        found = publications(self._connection, self._names)
        self._claim(found)
        if self.main not in found:
            self._make(self.main, {})
        elif not found[self.main].is_alterable:
            return
        is_late = has_slot and self._connection.info.server_version < TOLERANT_VERSION
        if self.inserts not in found and not is_late:
            try:
                self._make(self.inserts, {"publish": INSERTS_ONLY})
            except SourceRefused:
                if self.main not in found:
                    raise

    def publish(self, may_add: Callable[[str], bool]) -> Published:
        """Bring every table to its place; tables that are in neither publication only if `may_add` says so."""
        found = publications(self._connection, self._names)
        steps = list(self._steps(found, may_add)) if self.main in found else []
        refused = {step.place.table: why for step in steps if (why := self._obstacle(step, found)) is not None}
        steps = [step for step in steps if step.place.table not in refused]
        done: dict[str, list[str]] = {"added": [], "moved": [], "removed": [], "waiting": []}
        for step, error in self._take(steps) if steps else ():
            if error is None:
                done[step.kind].append(step.place.table)
            elif isinstance(error, _PASSING):
                done["waiting"].append(step.place.table)
            elif not isinstance(error, _OVERTAKEN):
                refused[step.place.table] = error.diag.message_primary or str(error)
        return Published(**{kind: tuple(sorted(tables)) for kind, tables in done.items()}, refused=refused)

    def require(self, waiting: Collection[str]) -> None:
        """Raise SourceRefused, with the owner's statement, unless some table is published, or will be.

        Tables that are locked are left for later, and those that can not be published without harm are left out.
        """
        exists = bool(existing(self._connection, [self.main]))
        wanted = [place for place in self._places() if place.is_logged and self._matches(place)]
        missing = [place for place in wanted if place.is_safe and not place.is_published]
        is_followed = any(place.is_published or place.table in waiting for place in wanted)
        if exists and (is_followed or not missing):
            return
        tables = [(place.schema, place.name) for place in missing]
        statement = addition_sql(self.main, tables) if exists else creation_sql(self.main, tables)
        lack = f"lacks {len(missing)} tables" if exists else "does not exist"
        why = "our role may not change that" if self._may_alter else "source.create is off"
        raise SourceRefused(
            f"publication {self.main} {lack} and {why}", hint=f"let the tables' owner run: {statement};"
        )

    def _matches(self, place: Place) -> bool:
        return self._patterns.matches(place.schema, place.name)

    def _places(self) -> list[Place]:
        rows = self._connection.execute(_PLACES, {"names": self._names, "main": self.main}).fetchall()
        return [Place(*row) for row in rows]

    def _claim(self, found: Mapping[str, Publication]) -> None:
        """Refuse what belongs to another pipeline; what we made has to say that it belongs to this one."""
        comments = {name: found[name].comment for name in self._names if name in found}
        if (refusal := belonging(self.main, comments, self._maker.slot)) is not None:
            raise SourceRefused(refusal[0], hint=refusal[1])
        ours = [publication for publication in found.values() if publication.is_marked and self._is_open(publication)]
        for publication in ours:
            if maker_by(publication.comment) != self._maker:
                rest = MADE_FOR.sub("", publication.comment, count=1).removeprefix(MARK)
                self._connection.execute(comment_sql(publication.name, self._maker.mark + rest))

    def _is_open(self, publication: Publication) -> bool:
        return self._may_alter and publication.is_alterable and not self._is_foreign(publication)

    def _is_foreign(self, publication: Publication) -> bool:
        return other_maker(publication.comment, self._maker.slot) is not None

    def _obstacle(self, step: Step, found: Mapping[str, Publication]) -> str | None:
        """Why we can not add a table to its publication, and which statement does."""
        if step.enters is None:
            return None
        if not self._may_alter:
            why = "source.create is off"
        elif not self._is_open(found[step.enters]):
            why = "the publication is not ours to alter"
        elif not step.place.is_owned:
            why = "our role does not own it"
        else:
            return None
        statement = addition_sql(step.enters, [(step.place.schema, step.place.name)])
        return f"it can not be added to publication {step.enters}: {why}; let a superuser run: {statement};"

    def _steps(self, found: Mapping[str, Publication], may_add: Callable[[str], bool]) -> Iterator[Step]:
        open_ = {name for name, publication in found.items() if self._is_open(publication)}
        ours = {name for name in open_ if found[name].is_marked or self._is_named}
        wanted = {
            *open_,
            self.main,
            *(name for name, other in found.items() if self._may_alter and self._is_foreign(other)),
        }
        for place in self._places():
            step = self._step(place, wanted, ours, may_add)
            if step is not None and (step.leaves or step.enters):
                yield step

    def _step(self, place: Place, wanted: set[str], ours: set[str], may_add: Callable[[str], bool]) -> Step | None:
        """Into a publication that is `wanted`, whether or not we can; without one the table is left out."""
        if not place.is_logged or not self._matches(place):
            return Step(place, tuple(name for name in place.members if name in ours), None)
        right, wrong = (self.main, self.inserts) if place.is_safe else (self.inserts, self.main)
        leaves = (wrong,) if wrong in place.members and wrong in ours else ()
        if place.is_swept or (not place.members and not may_add(place.table)):
            return None
        if not leaves and wrong in place.members:
            return None  # somebody else's doing
        enters = right if right not in place.members and right in wanted else None
        return Step(place, leaves, enters)

    def _take(self, steps: Sequence[Step]) -> Iterator[tuple[Step, psycopg.Error | None]]:
        """Many tables in one transaction; those that stand in its way are found by halving.

        Who holds several tables waits for nothing, or the application could be the victim of a deadlock. One table
        alone is waited for.
        """
        try:
            with self._connection.transaction():
                timeout = LOCK_TIMEOUT_MS if len(steps) == 1 else HOLDING_TIMEOUT_MS
                self._connection.execute(f"SET LOCAL lock_timeout = {timeout}".encode())
                self._connection.execute("SET LOCAL synchronous_commit = local")  # a standby that is away is no reason
                if len(steps) > 1:
                    self._connection.execute(lock_sql([only(step.place.schema, step.place.name) for step in steps]))
                for statement in self._statements(steps):
                    self._connection.execute(statement.encode())
        except (pg.OperationalError, pg.ProgrammingError, pg.IntegrityError, pg.InternalError) as error:
            if self._connection.closed:
                raise
            if len(steps) == 1:
                yield steps[0], error
                return
            middle = len(steps) // 2
            yield from self._take(steps[:middle])
            yield from self._take(steps[middle:])
        else:
            yield from ((step, None) for step in steps)

    def _statements(self, steps: Sequence[Step]) -> Iterator[str]:
        listed = [(step.enters, self._listed(step)) for step in steps]  # before it leaves: then its terms are gone
        for name in self._names:
            leaving = [only(step.place.schema, step.place.name) for step in steps if name in step.leaves]
            if leaving:
                yield alteration_sql(name, "DROP", leaving)
        for name in self._names:
            entering = [table for place, table in listed if place == name]
            if entering:
                yield alteration_sql(name, "ADD", entering)

    def _listed(self, step: Step) -> sql.Composable:
        """A table with the column list and the row filter that it had in the publication it leaves."""
        name = only(step.place.schema, step.place.name)
        if not step.leaves:
            return name
        row = self._connection.execute(_TERMS, [step.leaves[0], step.place.oid]).fetchone()
        columns, kept = row or ([], None)
        listed = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
        rows = sql.SQL(f" WHERE ({kept})") if kept else sql.SQL("")  # the server's own text
        return name + listed + rows

    def _make(self, name: str, options: dict[str, str]) -> None:
        statement = creation_sql(name, (), options)
        try:
            with self._connection.transaction():
                self._connection.execute(statement.encode())
                self._connection.execute(comment_sql(name, self._maker.mark))
        except pg.DuplicateObject:
            return
        except psycopg.Error as error:
            raise SourceRefused(
                f"cannot create the publication {name}: {error.diag.message_primary}",
                hint=f"let the tables' owner run: {statement};",
            ) from error
