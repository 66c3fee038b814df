"""Our publications as the server has them: their names, whose they are, and the statements that make them.

A pipeline has two: one for all changes, and one beside it that sends inserts and truncates only (see `publisher`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import sql

NAME_BYTES = 63
SUFFIX = "_inserts"
TOLERANT_VERSION = 180_000
"""From here on the server streams the past of before a publication was made; older ones refuse to."""
MARK = "made by tailrace"
"""How the comment of a publication begins that we made; earlier versions did not say for which pipeline."""
MADE_FOR = re.compile(rf"{MARK} for pipeline (\w+), slot (\w+)")

_PUBLICATIONS = """
SELECT p.pubname::text, pg_has_role(p.pubowner, 'USAGE') AND NOT p.puballtables,
    coalesce(obj_description(p.oid, 'pg_publication'), '')
FROM pg_publication p WHERE p.pubname = ANY (%s)
"""


def names_of(publication: str) -> tuple[str, str]:
    """The publication, and the one beside it for tables of which only inserts can be sent."""
    encoded = publication.encode()
    if len(encoded) + len(SUFFIX) <= NAME_BYTES:
        return publication, publication + SUFFIX
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    kept = encoded[: NAME_BYTES - len(SUFFIX) - len(digest) - 1].decode(errors="ignore")
    return publication, f"{kept}_{digest}{SUFFIX}"


class Maker(msgspec.Struct, frozen=True):
    """The pipeline that a publication was made for. Its slot tells it from others: its name may change."""

    pipeline: str
    slot: str

    @property
    def mark(self) -> str:
        return f"{MARK} for pipeline {self.pipeline}, slot {self.slot}"

    def __str__(self) -> str:
        return f"the pipeline {self.pipeline} (slot {self.slot})"


def maker_by(comment: str) -> Maker | None:
    """Whose a publication with this comment is; None if it does not say."""
    found = MADE_FOR.match(comment)
    return Maker(*found.groups()) if found else None


def other_maker(comment: str, slot: str) -> Maker | None:
    """The pipeline that a publication belongs to, unless it is the one with this slot."""
    maker = maker_by(comment)
    return maker if maker is not None and maker.slot != slot else None


def belonging(main: str, comments: Mapping[str, str], slot: str) -> tuple[str, str] | None:
    """That the publication `main` belongs to another pipeline than that of the slot, and what to do.

    One that somebody made may be read by many; the one for inserts beside it belongs to the first of them.
    """
    others = {name: maker for name, text in comments.items() if (maker := other_maker(text, slot)) is not None}
    if main not in others:
        return None
    statements = " ".join(f"{comment_sql(other, MARK).as_string(None)};" for other in others)
    return (
        f"the publication {main} belongs to {others[main]}, and two pipelines would take each other's tables out of it",
        f"choose another name with source.publication; if that pipeline is gone, run: {statements}",
    )


class Publication(msgspec.Struct, frozen=True):
    name: str
    is_alterable: bool  # our role owns it, and it does not take all tables
    comment: str

    @property
    def is_marked(self) -> bool:
        return self.comment.startswith(MARK)


def publications(connection: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, Publication]:
    """Those that are there, by name."""
    rows = connection.execute(_PUBLICATIONS, [list(names)]).fetchall()
    return {name: Publication(name, *facts) for name, *facts in rows}


def subscribed(connection: psycopg.Connection[Any], names: tuple[str, str]) -> list[str]:
    """The publications to stream from: a server before 18 refuses one that does not exist."""
    if connection.info.server_version >= TOLERANT_VERSION:
        return list(names)
    return [names[0], *existing(connection, names[1:])]


def existing(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[str]:
    """Those of the publications that are there."""
    rows = connection.execute("SELECT pubname::text FROM pg_publication WHERE pubname = ANY (%s)", [list(names)])
    found = {name for (name,) in rows}
    return [name for name in names if name in found]


def drop(connection: psycopg.Connection[Any], names: Sequence[str], maker: Maker, *, is_named: bool) -> list[str]:
    """Drop those of the publications that we made for this pipeline, or that have our name (`is_named`)."""
    there = publications(connection, names)
    found = [there[name] for name in names if name in there]
    ours = [p.name for p in found if (p.is_marked or is_named) and other_maker(p.comment, maker.slot) is None]
    for name in ours:
        connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
    return ours


def creation_sql(name: str, tables: Iterable[tuple[str, str]], options: dict[str, str] | None = None) -> str:
    """The statement that makes a publication for `tables`, which may be none."""
    listed = [only(*table) for table in sorted(tables)]
    chosen = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(key), sql.Literal(value))
        for key, value in {**(options or {}), "publish_via_partition_root": "true"}.items()
    )
    statement = sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(name))
    if listed:
        statement += sql.SQL(" FOR TABLE {}").format(sql.SQL(", ").join(listed))
    return (statement + sql.SQL(" WITH ({})").format(chosen)).as_string(None)


def addition_sql(name: str, tables: Iterable[tuple[str, str]]) -> str:
    """The statement that adds `tables` to a publication."""
    return alteration_sql(name, "ADD", [only(*table) for table in sorted(tables)])


def comment_sql(name: str, comment: str) -> sql.Composed:
    return sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(sql.Identifier(name), sql.Literal(comment))


def only(schema: str, table: str) -> sql.Composable:
    """Without ONLY the server adds all tables that inherit from it, whether we want them or not."""
    return sql.SQL("ONLY {}").format(sql.Identifier(schema, table))


def alteration_sql(name: str, action: str, tables: Sequence[sql.Composable]) -> str:
    listed = sql.SQL(", ").join(tables).as_string(None)
    return f"ALTER PUBLICATION {sql.Identifier(name).as_string(None)} {action} TABLE {listed}"


def lock_sql(tables: Sequence[sql.Composable]) -> sql.Composed:
    """The lock that a publication takes on its tables, at once or not at all."""
    return sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT").format(sql.SQL(", ").join(tables))
