"""The demo's shop on an embedded PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tailrace.demo import shop
from tailrace.testing import content
from tailrace.testing.content import Difference
from tailrace.testing.postgres import PostgresServer


class OnPostgres:
    name, schema = "PostgreSQL 18", "public"
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def open(self, folder: Path, stack: ExitStack) -> None:
        self._server = stack.enter_context(PostgresServer.start(folder / "postgres"))

    @property
    def url(self) -> str:
        return self._server.url

    def load(self, rows: int) -> int:
        shop.create(self.url)
        loaded = shop.load(self.url, rows)
        self._connection = psycopg.connect(self.url, autocommit=True)
        return loaded

    def workload(self, rate: float) -> shop.Workload:
        return shop.Workload.start(self.url, rate)

    def count(self, table: str) -> int:
        return int(self._ask(f"SELECT count(*) FROM {table}")[0])

    def orders_after(self, id_: int) -> int:
        return int(self._ask("SELECT count(*) FROM orders WHERE id > %s", id_)[0])

    def _ask(self, query: Any, *parameters: object) -> Any:
        return self._connection.execute(query, parameters).fetchone()

    def catching_up(self, pipeline: Path) -> Callable[[], bool]:
        """The slot's word: the source may forget it, so the sink has it."""
        [target] = self._ask("SELECT pg_current_wal_flush_lsn()")
        confirmed = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'tailrace_demo'"
        return lambda: self._ask(confirmed, target) == (True,)

    def differences(self, file: Path, table: str) -> list[Difference]:
        return content.sqlite_differences(self.url, file, [f"public.{table}"])

    def how_to_look(self) -> str:
        prefix = "setpriv --reuid=nobody --regid=nogroup --clear-groups " if os.geteuid() == 0 else ""
        server, data = self._server, self._server.folder / "data"
        return (
            f"  {prefix}{server.bin / 'pg_ctl'} -D {data} -o '-p {server.port}' -l {data / 'again.log'} start\n"
            f"  {server.bin / 'psql'} {server.url}\n"
            f"  {prefix}{server.bin / 'pg_ctl'} -D {data} stop"
        )
