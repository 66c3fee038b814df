"""Programs out of Debian packages, without root and without installing them: a package and all that it needs, unpacked.

Down to the C library, so that a program of any Debian suite runs on any Linux. Mirror and proxies are those of the
machine's own apt; signatures are checked as always. A folder is made once and kept in the cache folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tailrace.testing import processes
from tailrace.testing.processes import ServerUnavailable

TOOLS = ("apt-get", "dpkg-deb")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIBRARIES = ("lib/*-linux-gnu*", "usr/lib/*-linux-gnu*")

APT_CONFIG = """\
#clear APT::Update;
#clear APT::Architectures;
#clear DPkg;
Dir::State "{folder}";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
Dir::Cache::archives "{folder}/archives";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
"""
"""Laid over the system's configuration: an apt of our own that has nothing installed and runs nobody's hooks."""


class Unpacked:
    """An unpacked package with all that it depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def version(self, package: str) -> str:
        """Name, version and architecture of one of its packages, as in `mysql-server-core_9.7.4-2_amd64`."""
        names = (self.folder / "packages.txt").read_text().split()
        return next(name for name in names if name.startswith(f"{package}_"))

    def command(self, program: str) -> list[str | Path]:
        """The start of a command line for `program`, run by the folder's own loader with the folder's own libraries."""
        libraries = [folder for pattern in LIBRARIES for folder in self.folder.glob(pattern)]
        loader = next(path for folder in libraries for path in folder.glob("ld-linux*.so.*"))
        return [loader, "--library-path", ":".join(map(str, libraries)), self.folder / program]


def unpack(package: str, suite: str) -> Unpacked:
    """The newest `package` of a Debian suite, downloaded at the first call on this machine.

    Whole or not there, also when several processes ask at once. Delete the folder to get a newer version.
    """
    target = processes.cache_folder() / f"debian-{suite}-{package}"
    if not target.exists():
        with locked(target.with_name(f"{target.name}.lock")):
            if not target.exists():
                _make(target, package, suite)
    return Unpacked(target)


def mirrors() -> list[str]:
    """The archives that the machine's apt is configured for; a security archive has no whole suites."""
    question = [
        "apt-get",
        "indextargets",
        "--no-release-info",
        "--format",
        "$(SITE) $(RELEASE)",
        "Created-By: Packages",
    ]
    found = (line.split() for line in _run(question).splitlines())
    return list(dict.fromkeys(site for site, suite in found if not suite.endswith(("-security", "/updates"))))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path, package: str, suite: str) -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ServerUnavailable(f"Debian's {package} cannot be unpacked here without {' and '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as name:
        beside = Path(name)
        beside.chmod(0o755)  # apt downloads as a user of its own when we are root
        archives = _download(beside / "apt", package, suite)
        (beside / "whole").mkdir(mode=0o755)
        for archive in archives:
            _run(["dpkg-deb", "-x", archive, beside / "whole"])
        (beside / "whole" / "packages.txt").write_text("".join(f"{archive.stem}\n" for archive in archives))
        (beside / "whole").rename(target)


def _download(folder: Path, package: str, suite: str) -> list[Path]:
    """The packages that installing `package` on a machine without anything would need."""
    sites = mirrors()
    if not sites:
        raise ServerUnavailable(f"Debian's {package} cannot be had here: apt is configured without a package mirror")
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "apt.conf").write_text(APT_CONFIG.format(folder=folder))
    apt: list[str | Path] = ["apt-get", "-c", folder / "apt.conf", "-qq", "--yes"]
    failures = []
    for site in sites:
        (folder / "sources.list").write_text(_source(site, suite))
        try:
            _run([*apt, "-o", "APT::Update::Error-Mode=any", "update"])
            _run([*apt, "--download-only", "install", package])
            return sorted((folder / "archives").glob("*.deb"))
        except ServerUnavailable as error:
            failures.append(str(error))
    raise ServerUnavailable(f"{package} of Debian {suite} cannot be had from this machine's mirror: {failures[-1]}")


def _source(site: str, suite: str) -> str:
    options = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    return f"deb {options}{site} {suite} main\n"


def _run(command: Sequence[str | Path]) -> str:
    """What the command prints. A command that is missing or fails is a server that cannot be had."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise ServerUnavailable(f"there is no {command[0]} on this machine") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or "without a word"
        raise ServerUnavailable(f"{command[0]} failed: {said}")
    return done.stdout
