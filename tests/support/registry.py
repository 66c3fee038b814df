"""A real schema registry for tests: Apicurio, from its Maven package, with Confluent's interface; it needs Java 21.

It keeps all in memory and listens on 127.0.0.1. It ends with the process that started it; as root it runs as `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgspec

from support import maven
from support.debian import locked
from tailrace.testing import processes
from tailrace.testing.processes import Owner, ServerFailed, ServerUnavailable

VERSION = "3.3.3"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
JAVA = 21
START_SECONDS = 180.0
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class SchemaRegistry:
    """One running registry. Made with `start`; a context manager that stops it, and removes its folder."""

    def __init__(self, owner: Owner) -> None:
        self._owner, self._java, self._program = owner, maven.java(JAVA), _program()
        if not owner.can_reach(self._program):
            raise ServerUnavailable(
                f"user `nobody`, who runs the registry for root, cannot enter {owner.obstacle(self._program)}: "
                "set TAILRACE_CACHE to a folder that everybody can read"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-registry-"))
        owner.own(self.folder)
        self.log_file = self.folder / "server.log"
        self.port, self._management_port = processes.free_port(), processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls) -> Self:
        """The first start on a machine downloads it: 160 MB."""
        server = cls(Owner())
        try:
            server._run()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        """Where Confluent's interface begins."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers to a request of one's own; raises `HTTPError` as urllib does."""
        data = None if body is None else msgspec.json.encode(body)
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=60) as answer:
            return msgspec.json.decode(answer.read())

    def kill(self) -> None:
        if self._process is not None:
            processes.kill_tree(self._process)
            self._process = None

    def stop(self) -> None:
        self.kill()
        processes.remove_tree(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        settings = {
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": "jdbc:h2:mem:registry;DB_CLOSE_DELAY=-1",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": self._management_port,
            "java.io.tmpdir": self.folder,
        }
        # with -Xrs it ends with us: a JVM would take the signal for a request to show its threads
        command = [self._java, "-Xrs", "-Xmx400m", *QUICK, *(f"-D{key}={value}" for key, value in settings.items())]
        environment = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        with self.log_file.open("ab") as log:
            program = [*command, "-jar", str(self._program / "quarkus-run.jar")]
            self._process = processes.launch(program, self._owner, self.folder, log, environment)
        processes.wait_until(self._is_ready, seconds=START_SECONDS, what="the schema registry to start", every=0.2)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise ServerFailed(f"the schema registry did not start:\n{processes.last_lines(self.log_file)}")
        with contextlib.suppress(HTTPError, URLError, OSError):
            return isinstance(self.ask("GET", "/subjects"), list)
        return False


def _program() -> Path:
    """The unpacked program, downloaded at the first call on this machine."""
    target = processes.cache_folder() / f"apicurio-{VERSION}"
    if not target.exists():
        with locked(target.with_name(f"{target.name}.lock")):
            if not target.exists():
                _download(target)
    return target


def _download(target: Path) -> None:
    tool = shutil.which("mvn")
    if tool is None:
        raise ServerUnavailable("the schema registry cannot be had here without mvn")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as name:
        beside = Path(name)
        beside.chmod(0o755)
        command = [tool, "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={beside}"]
        done = subprocess.run(command, cwd=beside, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())[:500]
            raise ServerUnavailable(f"the schema registry cannot be had from this machine's Maven mirror: {said}")
        (package,) = beside.glob("*.tar.gz")
        with tarfile.open(package) as archive:
            archive.extractall(beside / "whole", filter="data")
        (beside / "whole").chmod(0o755)
        (beside / "whole").rename(target)
