"""Sends this very package to the workers of a cluster, so that they run the driver's version of it.

What it is made of besides (pyarrow, drivers, …) is not sent: that has to be there, see docs/cluster.md.
"""

from __future__ import annotations

import hashlib
import marshal
import shutil
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

from pyspark import SparkContext, SparkFiles

PACKAGE = "tailrace"
_STREAMS = "streaming_job"
_LEFT_OUT = {"__pycache__", "cli", "demo", "testing"}
"""Folders that no task needs."""
_NOTES = ("METADATA", "entry_points.txt")
"""Of a distribution: its name and version, and how its connectors are found."""


def ship(context: SparkContext) -> None:
    """Make the package known to all tasks that begin from now on. May be repeated."""
    archive = build_archive(Path(context._temp_dir))  # lives as long as the context
    if archive.name not in context._python_includes:  # type: ignore[operator]
        path = list(sys.path)
        context.addPyFile(str(archive))
        sys.path[:] = path  # the driver has it already
        _give_to_streams(archive)


def _give_to_streams(archive: Path) -> None:
    """The process that asks a streaming source for its offsets runs beside the driver, and looks where no other does.

    `PythonStreamingSourceRunner` of Spark 4.1 to 4.3 has that folder in its code, and nobody puts anything there.
    """
    folder = Path(SparkFiles.getRootDirectory()) / _STREAMS
    folder.mkdir(exist_ok=True)
    shutil.copy(archive, folder)


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
                if name.endswith(".py"):
                    opened.writestr(f"{name}c", _compiled(name, content))
        beside.replace(archive)
    return archive


def _files() -> Iterator[tuple[str, bytes]]:
    yield from _below(resources.files(PACKAGE), PACKAGE)
    distribution = metadata.distribution(PACKAGE)
    for note in _NOTES:
        if (text := distribution.read_text(note)) is not None:
            yield f"{PACKAGE}-{distribution.version}.dist-info/{note}", text.encode()


def _compiled(name: str, source: bytes) -> bytes:
    """Bytecode (PEP 552, by hash, not to be checked): a Python that can not use it takes the source beside it.

    Python keeps none of what it imports from an archive: each process of a worker would compile everything anew.
    """
    code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + code


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _below(entry, name) if entry.name not in _LEFT_OUT else ()
        elif not entry.name.endswith((".pyc", ".pyo")):
            yield name, entry.read_bytes()
