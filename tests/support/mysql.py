"""Real MariaDB and MySQL servers for tests, unpacked from Debian packages into the cache folder.

They listen on 127.0.0.1 only, are strict, take `LOAD DATA LOCAL`, and end with the process that started them. As root
they run as `nobody`. A server's port stays the same over `kill`, `stop` and `restart`, so its URLs stay true. There is
no binary log unless settings ask for one (`log_bin`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

from support import debian
from support.mysql_flavors import MARIADB, MYSQL, SETTINGS, Flavor, option_file
from tailrace.testing import processes
from tailrace.testing.processes import Owner, ServerFailed, ServerUnavailable

if TYPE_CHECKING:
    from pymysql.connections import Connection

ACCESS_DENIED, NO_SUCH_THREAD = 1045, 1094

READ_FROM = 'exec "$@" < "$0"'
"""For a shell: become a command that reads a file."""


class _Server:
    """One running server. Made with `start`; a context manager that stops it, and removes its folder if it made it."""

    flavor: ClassVar[Flavor]

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        unpacked: debian.Unpacked,
        settings: dict[str, object | None],
        password: str | None,
        *,
        temporary: bool,
    ) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.log_file = folder / "server.log"
        self._data = folder / "data"
        self._users = folder / "users.sql"
        self._owner = owner
        self._unpacked = unpacked
        self._settings = settings
        self._password = password
        self._temporary = temporary
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: str | Path | None = None,
        settings: Mapping[str, object | None] | None = None,
        password: str | None = None,
    ) -> Self:
        """Start a server on data in `folder` (made if new; without it a temporary one that `stop` removes).

        The first start on a machine downloads the server. With a `password`, user `root` must give it. A setting that
        is `None` is an option without a value.
        """
        _driver()
        owner = Owner()
        unpacked = _binaries(cls.flavor, owner)
        home = _home(cls.flavor, folder, owner)
        merged = {**SETTINGS, **cls.flavor.settings, **(settings or {})}
        server = cls(home, owner, unpacked, merged, password, temporary=folder is None)
        try:
            server._initialise()
            server._run()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return self.url_of("mysql")

    def url_of(self, database: str, user: str = "root", password: str | None = None) -> str:
        """The URL of one database, for the superuser unless another user is named."""
        if user == "root" and password is None:
            password = self._password
        secret = "" if password is None else f":{quote(password, safe='')}"
        address = f"{quote(user, safe='')}{secret}@127.0.0.1:{self.port}"
        return f"{self.flavor.scheme}://{address}/{quote(database, safe='')}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"this {self.flavor.name} server is stopped and has no process id")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self.execute(f"CREATE DATABASE {_quoted(name)}")
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions that are in it: one with an open transaction would hold it."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW FULL PROCESSLIST")
            for session, _, _, database, *_ in cursor.fetchall():
                if database == name:
                    self._end_session(int(session))
            cursor.execute(f"DROP DATABASE IF EXISTS {_quoted(name)}")

    def execute(self, statement: str, arguments: Sequence[object] = (), database: str | None = None) -> list[Any]:
        """Run one statement as the superuser, committed at once, and return its rows."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())

    def connect(self, database: str | None = None) -> Connection[Any]:
        """A session of the superuser, with autocommit."""
        connection: Connection[Any] = _driver().connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            password=self._password or "",
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
        )
        return connection

    def stop(self) -> None:
        """End the server politely (sessions are cut, data is flushed), then remove its folder if it is temporary."""
        self._shut_down()
        if self._temporary:
            processes.remove_tree(self.folder)

    def kill(self) -> None:
        """Crash: SIGKILL. `restart` recovers."""
        if self._process is not None:
            processes.kill_tree(self._process)
            self._process = None

    def restart(self, settings: Mapping[str, object | None] | None = None) -> None:
        """Stop the server if it runs and start it on the same port, with `settings` laid over the earlier ones."""
        self._shut_down()
        self._settings |= settings or {}
        self._run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initialise(self) -> None:
        """A data folder of our own, whole or not there: copied from the cache, or made and kept there for the next."""
        if self._data.exists():
            return
        fresh = self.folder / "fresh"
        processes.remove_tree(fresh)
        kept = f"{self._unpacked.version(self.flavor.package)}-data"
        template = processes.cache_folder() / kept / "data"
        if os.access(template / "ibdata1", os.R_OK):
            shutil.copytree(template, fresh, ignore=shutil.ignore_patterns("auto.cnf"))  # it names one server
        else:
            self._install(fresh)
            processes.cached_copy({"data": fresh}, kept)
        for path in (fresh, *fresh.rglob("*")):
            self._owner.own(path)
        self._write_users()
        fresh.rename(self._data)

    def _install(self, fresh: Path) -> None:
        self._write_settings({**SETTINGS, **self.flavor.settings})
        fresh.mkdir(mode=0o700)
        self._owner.own(fresh)
        script = self.folder / "install.sql"
        script.write_bytes(self._install_script())
        self._owner.own(script)
        process = self._launch(["/bin/sh", "-c", READ_FROM, script, *self._command(fresh), self.flavor.install])
        if process.wait() != 0:
            raise self._failure("could not make a data folder")
        script.unlink()

    def _install_script(self) -> bytes:
        """As MariaDB's own mariadb-install-db puts it together: one statement a line, users without a password."""
        if not self.flavor.install_sql:
            return b""
        opening = b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        return opening + b"\n".join((self._messages / name).read_bytes() for name in self.flavor.install_sql)

    def _write_users(self) -> None:
        """The superuser over TCP and over the socket, in a file for the first start."""
        secret = (self._password or "").replace("\\", "\\\\").replace("'", "''")
        lines = ["SET sql_log_bin = 0", "CREATE USER IF NOT EXISTS root@'127.0.0.1'"]
        lines += [f"ALTER USER root@'{host}' IDENTIFIED BY '{secret}'" for host in ("127.0.0.1", "localhost")]
        lines += ["GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION"]
        self._users.touch(mode=0o600)
        self._users.write_text("".join(f"{line};\n" for line in lines))
        self._owner.own(self._users)

    def _run(self) -> None:
        self._write_settings(self._settings)
        command = [*self._command(self._data), f"--port={self.port}"]
        if self._users.exists():
            command.append(f"--init-file={self._users}")  # run before connections are taken
        self._process = self._launch(command)
        processes.wait_until(self._is_ready, seconds=90, what=f"{self.flavor.name} to start", every=0.05)
        self._users.unlink(missing_ok=True)

    @property
    def _messages(self) -> Path:
        return self._unpacked.folder / "usr/share/mysql"

    def _command(self, data: Path) -> list[str | Path]:
        command = [*self._unpacked.command(self.flavor.program), f"--defaults-file={self.folder / 'server.cnf'}"]
        command += [f"--basedir={self._unpacked.folder / 'usr'}", f"--datadir={data}", f"--tmpdir={self._scratch()}"]
        return [*command, f"--lc-messages-dir={self._messages}", f"--character-sets-dir={self._messages / 'charsets'}"]

    def _scratch(self) -> Path:
        """A folder of its own for temporary tables: a server that starts removes those that it finds in /tmp."""
        folder = self.folder / "tmp"
        folder.mkdir(exist_ok=True)
        self._owner.own(folder)
        return folder

    def _launch(self, command: list[str | Path]) -> subprocess.Popen[bytes]:
        """With an environment that names no settings of other servers; OpenSSL's file would be another version's."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MYSQL", "MARIADB", "LC_", "LANG"))
        }
        with self.log_file.open("ab") as log:
            return processes.launch(command, self._owner, self.folder, log, clean | {"OPENSSL_CONF": "/dev/null"})

    def _write_settings(self, settings: Mapping[str, object | None]) -> None:
        file = self.folder / "server.cnf"
        file.write_text(option_file(settings))
        self._owner.own(file)

    def _is_ready(self) -> bool:
        """Whether it takes connections, and is ours: for a moment another server could have had our port."""
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise self._failure("did not start")
        try:
            [(folder,)] = self.execute("SELECT @@datadir")
        except _driver().OperationalError as error:
            if error.args[0] == ACCESS_DENIED:
                raise self._failure("refuses this password for root") from error
            return False
        return Path(folder) == self._data

    def _failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.flavor.name} {what} in {self.folder}:\n{processes.last_lines(self.log_file)}")

    def _shut_down(self) -> None:
        """Politely, then by force."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self.kill()

    def _end_session(self, session: int) -> None:
        try:
            self.execute(f"KILL {session}")
        except _driver().MySQLError as error:
            if error.args[0] != NO_SUCH_THREAD:
                raise  # otherwise it went by itself


class MariaDbServer(_Server):
    """MariaDB 10.11 of Debian bookworm."""

    flavor = MARIADB


class MySqlServer(_Server):
    """MySQL 9.7 (or what follows it) of Debian sid."""

    flavor = MYSQL


def _driver() -> Any:
    try:
        import pymysql
    except ImportError as error:
        raise ServerUnavailable("no driver for MariaDB and MySQL is installed: pip install PyMySQL") from error
    return pymysql


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _binaries(flavor: Flavor, owner: Owner) -> debian.Unpacked:
    unpacked = debian.unpack(flavor.package, flavor.suite)
    if not owner.can_reach(unpacked.folder / flavor.program):
        raise ServerUnavailable(
            f"user `nobody`, who runs {flavor.name} for root, cannot enter {owner.obstacle(unpacked.folder / 'usr')}: "
            "set TAILRACE_CACHE to a folder that everybody can read"
        )
    return unpacked


def _home(flavor: Flavor, folder: str | Path | None, owner: Owner) -> Path:
    home = Path(tempfile.mkdtemp(prefix=f"tailrace-{flavor.scheme}-") if folder is None else folder).absolute()
    home.mkdir(parents=True, exist_ok=True)
    owner.own(home)
    obstacle = owner.obstacle(home / "data")
    if obstacle is not None:
        raise ServerUnavailable(
            f"user `nobody`, who runs {flavor.name} for root, cannot enter {obstacle}: "
            f"choose another folder than {home}"
        )
    return home
