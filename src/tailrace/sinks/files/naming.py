"""Where things are in the folder of a sink.

    <folder>/public.orders/commit_date=2026-11-18/<commit>-<number>-<first offset>-<last offset>-<token>.parquet
    <folder>/_tailrace/<pipeline>/<sink>/{manifest.json, lock, staged/}

Files of a table, sorted by name, are in the order in which they were committed: `<commit>` never goes back, and
`<number>` counts the files of a commit. The token keeps two pipelines from writing over each other's files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tailrace.errors import ConfigError
from tailrace.model.schema import TableSchema

OWN = "_tailrace"
"""What is not for readers: Spark and others pass over a name that begins so."""
MANIFEST, LOCK, STAGED = "manifest.json", "lock", "staged"
PARTITION = "commit_date"
LONGEST = 200
"""Bytes of a folder's name; file systems take 255."""


def path_of(url: str, name: str) -> Path:
    path = url.removeprefix("file://")
    if not url.startswith("file:///") or not path.strip("/") or "?" in path or "#" in path:
        raise ConfigError(
            f"sinks.{name}.url: a file URL names a folder by its absolute path", hint="write file:///folder/below"
        )
    return Path(path)


def folder_of(schema: TableSchema) -> str:
    """The folder of a table, of no other one's: what readers may stumble over in a name is percent-encoded."""
    name = schema.table
    kept = "".join(_kept(character, is_first=not place) for place, character in enumerate(name))
    if len(kept.encode()) <= LONGEST:
        return kept
    short = kept.encode()[: LONGEST - 17].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _kept(character: str, *, is_first: bool) -> str:
    if character.isalnum() or (character in "_-." and not is_first):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode())


def file_name(commit: int, number: int, span: str, token: str, suffix: str) -> str:
    return f"{commit:012d}-{number:05d}-{span}-{token}{suffix}"


def last_commit(folder: Path) -> int:
    """The highest number of a commit in the names of files that are there, whoever wrote them; 0 without any."""
    heads = (path.name.partition("-")[0] for path in data_files(folder))
    return max((int(head) for head in heads if head.isdecimal()), default=0)


def data_files(folder: Path) -> list[Path]:
    """What a listing finds."""
    return [path for path in folder.glob(f"*/{PARTITION}=*/*") if path.parts[-3] != OWN]
