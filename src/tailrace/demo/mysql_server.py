"""A MySQL or MariaDB server of the demo's own: the program that is installed, in a folder that goes with the demo."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pymysql

from tailrace.demo.child import DemoFailed
from tailrace.testing import processes
from tailrace.testing.processes import Owner, last_lines

PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/mysql/bin", "/opt/homebrew/bin")
"""Where the programs are that are not on everybody's PATH."""
PROGRAMS = {"mysql": ("mysqld",), "mariadb": ("mariadbd", "mysqld")}
INSTALL = {
    "mysql": "install MySQL 8 or newer (Debian: mysql-server-core, Homebrew: mysql), or put its folder on PATH",
    "mariadb": "install MariaDB 10.5 or newer (Debian: mariadb-server, Homebrew: mariadb), or put its folder on PATH",
}
SETTINGS = (
    "--bind-address=127.0.0.1",
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--character-set-server=utf8mb4",
    "--skip-name-resolve",
    "--secure-file-priv=",
    "--innodb-flush-log-at-trx-commit=2",
)
OWN_SETTINGS = {"mysql": ("--mysqlx=OFF", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"), "mariadb": ()}
USERS = """\
CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""


class MysqlServer:
    """It listens on 127.0.0.1 only, runs as `nobody` for root, and ends with this process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self.folder = kind, folder
        self._program = found(kind)
        self._owner, self._port = Owner(), processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, kind: str, folder: Path) -> Self:
        server = cls(kind, folder)
        folder.mkdir()
        (folder / "tmp").mkdir()
        users = folder / "users.sql"
        users.write_text(USERS)
        for path in (folder, folder / "tmp", users):
            server._owner.own(path)
        try:
            server._install()
            server._run(users)
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return f"{self._kind}://root@127.0.0.1:{self._port}/shop"

    @property
    def _command(self) -> list[str]:
        data, scratch = self.folder / "data", self.folder / "tmp"
        return [self._program, "--no-defaults", f"--datadir={data}", f"--tmpdir={scratch}"]

    def _install(self) -> None:
        """A data folder. MariaDB has a program of its own for it."""
        command = [*self._command, "--initialize-insecure"]
        if self._kind == "mariadb":
            command = [_program("mariadb", ("mariadb-install-db", "mysql_install_db")), "--no-defaults"]
            command += [f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal"]
        if self._launched(command).wait() != 0:
            raise DemoFailed(f"{self._program} could not make a data folder: {last_lines(self._log, 5)}")

    def _run(self, users: Path) -> None:
        command = [*self._command, *SETTINGS, *OWN_SETTINGS[self._kind], f"--port={self._port}"]
        self._process = self._launched([*command, f"--socket={self.folder / 's'}", f"--init-file={users}"])
        processes.wait_until(self._is_ready, seconds=90, what=f"{self._program} to start", every=0.05)

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _launched(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return processes.launch(command, self._owner, self.folder, log, os.environ)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise DemoFailed(f"{self._program} did not start: {last_lines(self._log, 5)}")
        try:
            pymysql.connect(host="127.0.0.1", port=self._port, user="root").close()
        except pymysql.MySQLError:
            return False
        return True

    def stop(self) -> None:
        """Politely, then by force."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        processes.kill_tree(self._process)
        self._process = None

    def how_to_look(self) -> str:
        prefix = "setpriv --reuid=nobody --regid=nogroup --clear-groups " if os.geteuid() == 0 else ""
        again = " ".join([*self._command, f"--port={self._port}", f"--socket={self.folder / 's'}"])
        ask = f"mysql -h 127.0.0.1 -P {self._port} -u root"
        return f"  {prefix}{again} &\n  {ask} shop\n  {ask} -e SHUTDOWN"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def found(kind: str) -> str:
    """The server's program. Raises DemoFailed, with what to install."""
    program = _program(kind, PROGRAMS[kind])
    told = subprocess.run([program, "--no-defaults", "--version"], capture_output=True, text=True, check=False).stdout
    if ("mariadb" in told.lower()) != (kind == "mariadb"):
        raise DemoFailed(f"{program} is not what it is called: {told.strip()}", hint=INSTALL[kind])
    return program


def _program(kind: str, names: tuple[str, ...]) -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), *PLACES])
    program = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if program is None:
        raise DemoFailed(f"there is no {names[0]} on this machine", hint=INSTALL[kind])
    return program
