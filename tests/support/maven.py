"""Java programs from Maven packages: a package with all that it needs at run time, as a folder of jars in the cache.

`mvn` is used as it is set up on this machine. A folder is made once, whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.debian import locked
from tailrace.spark.java import NEEDED, find_java, java_version
from tailrace.testing import processes
from tailrace.testing.processes import ServerUnavailable

POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencyManagement><dependencies>{instead}</dependencies></dependencyManagement>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def jars(name: str, packages: Sequence[str], instead: Sequence[str] = ()) -> Path:
    """The jars of `packages` (`group:artifact:version`), downloaded at the first call on this machine.

    `instead` are packages in versions of our choice, where others need them.
    """
    target = processes.cache_folder() / name
    if not target.exists():
        with locked(target.with_name(f"{name}.lock")):
            if not target.exists():
                _make(target, packages, instead)
    return target


def java(at_least: int = NEEDED) -> str:
    """The java program that Spark has, if it is new enough; else the newest that the machine has beside it."""
    own = find_java(os.environ)
    beside = sorted(map(str, Path("/usr/lib/jvm").glob("*/bin/java")))
    for program in [own, *beside]:
        if program is not None and (java_version(program) or 0) >= at_least:
            return program
    raise ServerUnavailable(f"there is no Java {at_least} or newer on this machine")


def _make(target: Path, packages: Sequence[str], instead: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerUnavailable(f"{packages[0]} cannot be had here without mvn")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as name:
        beside = Path(name)
        beside.chmod(0o755)  # servers run as a user of their own when we are root
        wanted, chosen = ("".join(map(_dependency, each)) for each in (packages, instead))
        (beside / "pom.xml").write_text(POM.format(dependencies=wanted, instead=chosen))
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={beside / 'whole'}"], cwd=beside, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())[:500]
            raise ServerUnavailable(f"{packages[0]} cannot be had from this machine's Maven mirror: {said}")
        (beside / "whole").chmod(0o755)
        (beside / "whole").rename(target)


def _dependency(package: str) -> str:
    group, artifact, version = package.split(":")
    inner = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    return f"<dependency>{inner}</dependency>"
