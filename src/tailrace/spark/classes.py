"""An archive of the Java classes that Spark loads: with it a JVM starts in a third of the CPU time.

A run that finds none has its JVM write one as it ends; a later run finds it. It lies in the user's cache folder, one
for each Java and Spark, and can be deleted at any time. A JVM looks itself whether an archive is of its own classes.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tailrace.spark.java import find_java

SUFFIX = ".jsa"
PART = ".part"
SETTLED_SECONDS = 10.0
UNUSED_SECONDS = 90 * 86_400.0
_QUIET = "-Xlog:cds*=off -Xlog:class+path=off"  # where it can not use the archive a JVM says so, and goes on without


def archive_options(environment: Mapping[str, str]) -> str:
    """What a JVM is to be started with so that it uses the archive, or makes it. Empty where neither can be."""
    if "SharedArchiveFile" in environment.get("SPARK_SUBMIT_OPTS", ""):
        return ""
    try:
        archive = _archive(environment)
        if archive is None:
            return ""
        _settle(archive)
        if archive.exists():
            os.utime(archive)
            return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'
        part = archive.with_suffix(f".{uuid.uuid4().hex[:8]}{PART}")
        return f'"-XX:ArchiveClassesAtExit={part}" {_QUIET}'
    except OSError:
        return ""


def _archive(environment: Mapping[str, str]) -> Path | None:
    """Where the archive of this Java and this Spark lies; the folder is made."""
    java = find_java(environment)
    cache = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if "HOME" in environment else "")
    if java is None or not cache:
        return None
    folder = Path(cache) / "tailrace"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"spark-classes-{_fingerprint(Path(java).resolve())}{SUFFIX}"


def _fingerprint(java: Path) -> str:
    """Changes with Java, and with every archive on Spark's class path."""
    digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode())
    with os.scandir(Path(_find_spark_home()) / "jars") as jars:
        for path, facts in sorted((jar.path, jar.stat()) for jar in jars):
            digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _settle(archive: Path) -> None:
    """Put what a JVM has finished writing into its place, and remove what nobody uses any more."""
    now = time.time()
    for part, age in _ages(archive.parent, PART, now):
        if age < SETTLED_SECONDS:
            continue
        with suppress(FileNotFoundError):  # another run does the same
            if part.name.startswith(archive.stem) and _is_whole(part):
                os.replace(part, archive)
            elif age > UNUSED_SECONDS or not _is_whole(part):
                part.unlink()
    for other, age in _ages(archive.parent, SUFFIX, now):
        if age > UNUSED_SECONDS and other != archive:
            other.unlink(missing_ok=True)


def _ages(folder: Path, suffix: str, now: float) -> Iterator[tuple[Path, float]]:
    for path in folder.glob(f"*{suffix}"):
        with suppress(FileNotFoundError):
            yield path, now - path.stat().st_mtime


def _is_whole(part: Path) -> bool:
    """A JVM writes the head of an archive last."""
    with open(part, "rb") as file:
        return any(file.read(4))
