"""`tailrace demo --source mysql`, for real: with the server of the tests as the one that is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import debian
from support.mysql_flavors import MYSQL
from tailrace.testing.plugin import requires

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.server]

DEMO = [sys.executable, "-m", "tailrace.cli.main", "demo", "--seconds", "8", "--workload-rate", "200", "--source"]


def installed(folder: Path) -> None:
    """Programs in `folder` that run what was unpacked."""
    unpacked = requires(debian.unpack, MYSQL.package, MYSQL.suite)
    root, messages = unpacked.folder / "usr", unpacked.folder / "usr/share/mysql"
    command = " ".join(f"'{word}'" for word in unpacked.command(MYSQL.program))
    places = f"--basedir='{root}' --lc-messages-dir='{messages}' --character-sets-dir='{messages / 'charsets'}'"
    program = folder / "mysqld"
    program.write_text(f'#!/bin/sh\nexport OPENSSL_CONF=/dev/null\nexec {command} "$@" {places}\n')
    program.chmod(0o755)


def demo(source: str, path: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": path}
    return subprocess.run([*DEMO, source], capture_output=True, text=True, timeout=800, check=False, env=environment)


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder that whom the server runs as can come by, which no folder of pytest's own is."""
    with tempfile.TemporaryDirectory(prefix="tailrace-programs-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.long
def test_the_demo_of_mysql_survives_its_kill_and_ends_identical(programs: Path) -> None:
    installed(programs)
    done = demo("mysql", f"{programs}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    for table in ("customers", "products", "orders", "order_items"):
        found = re.search(rf"^{table} +([\d,]+) +([\d,]+)   identical$", done.stdout, re.MULTILINE)
        assert found is not None, done.stdout
        assert found[1] == found[2]
    assert re.search(r"^identical: every column of all [\d,]+ rows", done.stdout, re.MULTILINE)
    [folder_of_it] = re.findall(r"starting MySQL in (\S+)", done.stdout)
    assert not Path(folder_of_it).exists()


def test_a_server_that_is_not_installed_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    done = demo("mariadb", str(tmp_path))
    assert done.returncode == 1
    assert "there is no mariadbd on this machine" in done.stderr
    assert "install MariaDB" in done.stderr
    assert "Traceback" not in done.stderr
