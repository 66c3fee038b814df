"""Query events, looked into only as far as needed: what ends a transaction, and which tables a statement changes.

Protocol page: "Query_event".
"""

from __future__ import annotations

import re
import struct
from enum import StrEnum

import msgspec

_QUOTED = r"`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\""
_REMARK = re.compile(rf"({_QUOTED})|/\*M?!\d*(.*?)\*/|/\*.*?\*/|--(?=\s)[^\n]*|#[^\n]*", re.DOTALL)
_SETTINGS = re.compile(rf"SET\s+STATEMENT\s+(?:{_QUOTED}|[^'\"`])*?\sFOR\s+", re.IGNORECASE | re.DOTALL)
_LONGEST = 100_000
"""Characters of a statement that are searched for remarks; one with more is a change as a statement, or a dump's."""
_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\".,;()]+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?({_TABLE})", re.IGNORECASE)
_ALTER = re.compile(rf"ALTER\s+(?:ONLINE\s+|IGNORE\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?({_TABLE})", re.IGNORECASE)
_REPLACES = re.compile(
    rf"\s+(?:TRUNCATE\s+PARTITION|EXCHANGE\s+PARTITION\s+{_NAME}\s+WITH\s+TABLE\s+({_TABLE})"
    r"|(?:DISCARD|IMPORT)\s+(?:PARTITION\s.*?\s)?TABLESPACE|CONVERT\s+(?:TABLE|PARTITION))(?!\w)",
    re.IGNORECASE | re.DOTALL,
)
_CREATE_OR_DROP = re.compile(
    rf"(?:CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?|DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?)({_TABLE}(?:\s*,\s*{_TABLE})*)",
    re.IGNORECASE,
)
_RENAME = re.compile(r"RENAME\s+TABLES?\s+(.*)", re.IGNORECASE | re.DOTALL)
_INDEX = re.compile(rf"(?:CREATE|DROP)\s+(?:\w+\s+)*INDEX\s.*?\sON\s+({_TABLE})", re.IGNORECASE | re.DOTALL)
_CHANGES = re.compile(r"(INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH)\b", re.IGNORECASE)


class Meaning(StrEnum):
    BEGIN = "begin"
    END = "end"
    ROLLBACK = "rollback"
    INSIDE = "inside"
    CHANGE = "change"  # of rows, as a statement
    XA_END = "xa end"  # of a prepared transaction
    DDL = "ddl"


class Query(msgspec.Struct, frozen=True):
    """A statement, and the database that it ran in."""

    database: str
    text: str

    @property
    def meaning(self) -> Meaning:
        words = self.text.upper().rstrip("; \n")
        if words in ("BEGIN", "START TRANSACTION"):
            return Meaning.BEGIN
        if words == "COMMIT":
            return Meaning.END
        if words.startswith(("SAVEPOINT", "RELEASE SAVEPOINT")):
            return Meaning.INSIDE
        if words.startswith("ROLLBACK"):  # to a savepoint, too: the rows since then stay in the log
            return Meaning.ROLLBACK
        if words.startswith("XA "):
            return Meaning.XA_END if words.startswith(("XA COMMIT", "XA ROLLBACK")) else Meaning.INSIDE
        if _CHANGES.match(words):
            return Meaning.CHANGE
        return Meaning.INSIDE if words.endswith("START TRANSACTION") else Meaning.DDL

    @property
    def truncated(self) -> tuple[str, str] | None:
        """The table that a TRUNCATE empties."""
        found = _TRUNCATE.match(self.text)
        return self._named(found[1]) if found else None

    @property
    def in_lower_case(self) -> Query:
        """As a server reads it that has all names so (lower_case_table_names = 1)."""
        return Query(self.database.lower(), self.text.lower())

    @property
    def replaced(self) -> list[tuple[str, str]]:
        """The tables of which rows go, or come, with a partition or a file: no event tells which."""
        found = _ALTER.match(self.text)
        if found is None or not (how := _REPLACES.match(self.text, found.end())):
            return []
        return [self._named(each) for each in (found[1], how[1]) if each]

    @property
    def altered(self) -> list[tuple[str, str]]:
        """The tables that are others from here on."""
        for pattern in (_ALTER, _INDEX):
            if found := pattern.match(self.text):
                return [self._named(found[1])]
        if found := _CREATE_OR_DROP.match(self.text):
            return [self._named(each) for each in re.findall(_TABLE, found[1])]
        if found := _RENAME.match(self.text):
            return [self._named(each) for each in re.findall(_TABLE, found[1]) if each.upper() not in ("TO", ",")]
        return []

    def _named(self, text: str) -> tuple[str, str]:
        parts = [_plain(part) for part in re.findall(_NAME, text)]
        return (parts[0], parts[1]) if len(parts) > 1 else (self.database, parts[0])


def _plain(name: str) -> str:
    """Without its quotes: backticks, or those of ANSI_QUOTES."""
    mark = name[0]
    return name[1:-1].replace(mark * 2, mark) if mark in '`"' else name


def _said(text: str) -> str:
    """A statement without remarks, with what servers read all the same, and without MariaDB's settings before it."""
    text = _REMARK.sub(lambda found: found[1] or f" {found[2] or ''} ", text[:_LONGEST]) + text[_LONGEST:]
    return _SETTINGS.sub("", text.strip(), count=1) if text.lstrip()[:3].upper() == "SET" else text


def parse(body: bytes) -> Query:
    """The body of a Query event."""
    _, _, named, _, told = struct.unpack_from("<IIBHH", body)
    start = 13 + told
    database = body[start : start + named].decode("utf-8", "replace")
    text = body[start + named + 1 :].decode("utf-8", "replace")
    return Query(database, _said(text).strip())
