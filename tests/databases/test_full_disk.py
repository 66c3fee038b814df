"""Databases whose disk is full: a sink says so and waits, and once there is room it goes on, with every row.

The disks are real and small: file systems in memory, which only root may mount.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.mysql_fixtures import FAST_MYSQL
from support.pipelines import RunningPipeline, write_pipeline
from support.sinks import Server, assert_same_rows, sink_databases, wait_until_current
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import requires

pytestmark = [pytest.mark.spark, pytest.mark.server]

MIB = 1 << 20
ROOM = 24 * MIB
MANY = "INSERT INTO items SELECT 10000 + n, repeat(md5(n::text), 30) FROM generate_series(1, 60000) n"
FULL = ("No space left", "is full", "No more room", "disk is full")


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, **options: object) -> None:
        given = ",".join(f"{name}={value}" for name, value in options.items())
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", given, "tmpfs", self.path], capture_output=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")

    def leave_room(self, size: int) -> None:
        disk = os.statvfs(self.path)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        subprocess.run(["mount", "-o", f"remount,size={used + size}", self.path], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


@contextmanager
def small_disk(path: Path, **options: object) -> Iterator[SmallDisk]:
    path.mkdir()
    disk = SmallDisk(path)
    disk.mount(size="4g", **options)
    try:
        yield disk
    finally:
        disk.unmount()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.long
def test_a_full_disk_is_said_and_when_there_is_room_again_every_row_arrives(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        base = Path(stack.enter_context(_reachable()))
        servers: dict[str, Server] = {"postgresql": postgres_server}
        owner = psutil.Process(postgres_server.pid).uids().real
        disks = [stack.enter_context(small_disk(base / "postgresql", uid=owner, mode="0700"))]
        for kind, start in {"mysql": MySqlServer.start, "mariadb": MariaDbServer.start}.items():
            disks.append(stack.enter_context(small_disk(base / kind, mode="0777")))
            servers[kind] = stack.enter_context(requires(start, folder=base / kind / "data", settings=FAST_MYSQL))
        sinks = stack.enter_context(sink_databases(servers))
        with psycopg.connect(postgres_server.url, autocommit=True) as admin:  # its log is on another disk
            name = sinks["postgresql"].url.rsplit("/", 1)[1].split("?")[0]
            admin.execute(f"CREATE TABLESPACE small LOCATION '{base}/postgresql'".encode())
            stack.callback(_drop_tablespace, postgres_server)
            admin.execute(f"ALTER DATABASE {name} SET TABLESPACE small".encode())
        stack.callback(sinks["postgresql"].cut_sessions)

        connection = stack.enter_context(psycopg.connect(postgres_url, autocommit=True))
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, t text)")
        connection.execute("INSERT INTO items SELECT n, 'first' FROM generate_series(1, 1000) n")
        file = write_pipeline(tmp_path, postgres_url, {kind: sink.url for kind, sink in sinks.items()})
        with RunningPipeline(file) as pipeline:
            wait_until_current(pipeline, file, postgres_url, sinks)
            for disk in disks:
                disk.leave_room(ROOM)
            connection.execute(MANY)
            pipeline.wait_for(
                lambda: all(kind in _complaining(pipeline) or not servers[kind].is_running for kind in sinks),
                "all sinks to say that there is no room",
            )
            for disk in disks:
                disk.leave_room(100 * ROOM)
            for server in servers.values():
                if not server.is_running:  # MariaDB may give itself up
                    server.restart()
            wait_until_current(pipeline, file, postgres_url, sinks)
            for sink in sinks.values():
                assert assert_same_rows(postgres_url, sink, "items", ("id", "t"), "id") == 61_000
            assert pipeline.stop() == 0, pipeline.output


@contextmanager
def _reachable() -> Iterator[str]:
    """A folder that the servers' user can get to, too."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield folder


def _drop_tablespace(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as admin:
        for (name,) in admin.execute(
            "SELECT datname FROM pg_database d JOIN pg_tablespace t ON t.oid = dattablespace WHERE spcname = 'small'"
        ).fetchall():
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        admin.execute("DROP TABLESPACE small")


def _complaining(pipeline: RunningPipeline) -> set[str]:
    retries = pipeline.said("sink-retry")
    return {event["sink"] for event in retries if any(words in event["message"] for words in FULL)}
