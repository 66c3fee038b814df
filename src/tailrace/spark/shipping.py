"""Sends this very package to the workers of a cluster, so that they run the driver's version of it.

What it is made of besides (pyarrow, drivers, …) is not sent: that has to be there, see docs/cluster.md.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pyspark import SparkContext

PACKAGE = "tailrace"
_NOTES = ("METADATA", "entry_points.txt")
"""Of a distribution: its name and version, and how its connectors are found."""


def ship(context: SparkContext) -> None:
    """Make the package known to all tasks that begin from now on. May be repeated."""
    archive = build_archive(Path(context._temp_dir))  # lives as long as the context
    if archive.name not in context._python_includes:  # type: ignore[operator]
        path = list(sys.path)
        context.addPyFile(str(archive))
        sys.path[:] = path  # the driver has it already


def build_archive(folder: Path) -> Path:
    """An archive that Python can import from, named after its content."""
    files = dict(_files())
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)} ".encode() + content)
    archive = folder / f"{PACKAGE}-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        beside = archive.with_suffix(".part")
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, content in files.items():
                opened.writestr(name, content)
        beside.replace(archive)
    return archive


def _files() -> Iterator[tuple[str, bytes]]:
    yield from _below(resources.files(PACKAGE), PACKAGE)
    distribution = metadata.distribution(PACKAGE)
    for note in _NOTES:
        if (text := distribution.read_text(note)) is not None:
            yield f"{PACKAGE}-{distribution.version}.dist-info/{note}", text.encode()


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _below(entry, name) if entry.name != "__pycache__" else ()
        elif not entry.name.endswith((".pyc", ".pyo")):
            yield name, entry.read_bytes()
