"""What the subjects of one SQL sink share."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tailrace import config
from tailrace.config import Misfits
from tailrace.model.types import ColumnType
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql.alterations import Alterations
from tailrace.sinks.sql.claim import Claim
from tailrace.sinks.sql.copies import TableCopies
from tailrace.sinks.sql.dialect import Dialect
from tailrace.sinks.sql.notes import Notes
from tailrace.sinks.sql.places import Places
from tailrace.sinks.sql.ready import Ready
from tailrace.sinks.sql.sessions import Sessions
from tailrace.sinks.sql.tables import SinkTables


class Parts(NamedTuple):
    """Picklable; connections are made where they are used."""

    name: str
    owner: str
    settings: config.Sink
    dialect: Dialect
    sessions: Sessions
    places: Places
    mapping: SchemaMapping
    notes: Notes
    claim: Claim
    tables: SinkTables
    copies: TableCopies
    alterations: Alterations
    ready: Ready


def parts_of(dialect: Dialect, pipeline: config.Pipeline, name: str) -> Parts:
    """The parts of one sink of a pipeline. Its tables and notes are filed under `owner`."""
    settings, owner = pipeline.sinks[name], f"{pipeline.name}/{name}"
    places = Places(dialect.naming, settings, owner)
    mapping = SchemaMapping(settings.columns, functools.partial(_is_text, settings.misfits, dialect))
    notes = Notes(dialect, owner)
    tables = SinkTables(dialect, owner, notes.is_active)
    return Parts(
        name=name,
        owner=owner,
        settings=settings,
        dialect=dialect,
        sessions=Sessions(dialect, name),
        places=places,
        mapping=mapping,
        notes=notes,
        claim=Claim(notes, owner),
        tables=tables,
        copies=TableCopies(dialect, tables),
        alterations=Alterations(dialect, tables, places, mapping),
        ready=Ready(notes, tables, mapping, ddl_is_transactional=dialect.server.ddl_is_transactional),
    )


def _is_text(misfits: Misfits, dialect: Dialect, type_: ColumnType) -> bool:
    return misfits is Misfits.TEXT and dialect.encoding.has_misfits(type_)
