"""The Java that Spark will run on: that of JAVA_HOME, else `java` on the PATH, as Spark's own launcher chooses."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

NEEDED = 17
INSTALL = (
    "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install"
    " java-21-openjdk-headless; macOS: brew install openjdk@21), or let JAVA_HOME lead to one"
)
_SECONDS = 30


def find_java(environment: Mapping[str, str]) -> str | None:
    """The program that Spark would start, if it is there."""
    home = environment.get("JAVA_HOME")
    named = str(Path(home) / "bin" / "java") if home else "java"
    return shutil.which(named, path=environment.get("PATH"))


def java_version(program: str) -> int | None:
    """The major version that a java program says it has."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout)


def parse_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15" …`; 8 of the older `"1.8.0_412"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
