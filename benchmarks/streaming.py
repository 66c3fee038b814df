"""The limit of streaming, `pg_recvlogical`, and the backlog's raw messages, for benchmarks that need no server."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from psycopg import pq

from benchmarks.backlog import SETTINGS, Backlog, make_backlog
from tailrace.testing.postgres import PostgresServer

OPTIONS = {"proto_version": "1", "binary": "true"}


def pg_recvlogical(backlog: Backlog) -> float:
    """Seconds in which PostgreSQL's own client throws the whole backlog away: what one walsender can give."""
    options = [f"--option={name}={value}" for name, value in _options(backlog).items()]
    with backlog.fresh_slot() as slot:
        command: list[str | Path] = [
            backlog.server.bin / "pg_recvlogical",
            "--dbname",
            backlog.server.url,
            "--slot",
            slot,
            "--start",
        ]
        began = time.perf_counter()
        subprocess.run([*command, "--file=/dev/null", "--no-loop", f"--endpos={backlog.end_lsn}", *options], check=True)
        return time.perf_counter() - began


def record_messages(backlog: Backlog) -> list[bytes]:
    """Every pgoutput message of the backlog, in order (binary values, without the `w` header of the stream)."""
    options = ", ".join(f"{name} '{value}'" for name, value in _options(backlog).items())
    end = _as_number(backlog.end_lsn)
    messages: list[bytes] = []
    with backlog.fresh_slot() as slot:
        connection = pq.PGconn.connect(f"{backlog.server.url}?replication=database".encode())
        began = connection.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
        if began.status != pq.ExecStatus.COPY_BOTH:
            raise RuntimeError(f"no replication from slot {slot}: {connection.get_error_message()}")
        while True:
            _, data = connection.get_copy_data(0)
            if data[0] == ord("w"):
                messages.append(bytes(data[25:]))
            elif int.from_bytes(data[1:9], "big") >= end:  # a keepalive: all up to here has been sent
                connection.finish()
                return messages


def _options(backlog: Backlog) -> dict[str, str]:
    return OPTIONS | {"publication_names": backlog.publication}


def _as_number(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


def save_messages(path: Path, scale: float) -> None:
    """Make a backlog and pickle its messages, a list of bytes: `python -m benchmarks.streaming FILE [SCALE]`."""
    with PostgresServer.start(settings=SETTINGS) as server:
        messages = record_messages(make_backlog(server, scale))
    beside = path.with_suffix(".part")
    beside.write_bytes(pickle.dumps(messages, protocol=5))
    os.replace(beside, path)


if __name__ == "__main__":
    save_messages(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
