"""The programs in `examples/` and in README that embed a stream, as somebody would start them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.streams import PATIENCE
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
URL = "postgresql://user@host/shop"


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(
        postgres_url,
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(9, 2))",
        "CREATE TABLE audit_log (id int PRIMARY KEY)",
        "CREATE TABLE people (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1, 9.50)",
    )
    return postgres_url


@contextmanager
def running(program: Path, url: str, folder: Path) -> Iterator[Path]:
    """What it prints goes into a file, until it is ended."""
    output = folder / "output"
    with output.open("ab") as file:
        process = subprocess.Popen([sys.executable, program, url], cwd=folder, stdout=file, stderr=file)
    try:
        yield output
    finally:
        process.terminate()
        process.wait(PATIENCE)


def wait_for(output: Path, *words: str) -> str:
    def has_all() -> bool:
        return all(word in output.read_text() for word in words)

    wait_until(has_all, seconds=PATIENCE, what=f"{words}")
    return output.read_text()


def test_five_lines_print_every_change(url: str, tmp_path: Path) -> None:
    program = ROOT / "examples" / "five_lines.py"
    with running(program, url, tmp_path) as output:
        wait_for(output, "read public.orders")
        execute(url, "UPDATE orders SET total = 10")
        wait_for(output, "update public.orders {'id': 1} {'id': 1, 'total': Decimal('10.00')}")
    with running(program, url, tmp_path) as output:
        execute(url, "DELETE FROM orders")
        printed = wait_for(output, "delete public.orders {'id': 1} None")
    lines = dict.fromkeys(printed.splitlines())  # one may have been ended between a print and its acknowledgement
    assert [line.split()[0] for line in lines] == ["read", "update", "delete"]


@pytest.mark.parametrize("page", ["README.md", "docs/embedded.md"])
def test_what_a_page_shows_runs(url: str, tmp_path: Path, page: str) -> None:
    """Every Python block that begins with an import; it prints what the database does."""
    blocks = re.findall(r"```python\n(import tailrace\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert URL in block
        program = folder / "program.py"
        program.write_text(block.replace(URL, url).replace(".after)", ".after, flush=True)"))
        with running(program, url, folder) as output:
            wait_for(output, "read public.orders {'id': 1}")
        execute(url, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")


def test_a_fan_out_gives_every_place_all_of_it(url: str, tmp_path: Path) -> None:
    with running(ROOT / "examples" / "fan_out.py", url, tmp_path) as output:
        wait_for(output, '"public.orders": 1')
        execute(url, "INSERT INTO people VALUES (7)")
        wait_for(output, '"public.orders": 1', '"public.people": 1')
    one, two = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("one.jsonl", "two.jsonl")
    )
    assert one == two
    assert [(line["op"], line["table"]) for line in one] == [("read", "public.orders"), ("insert", "public.people")]


def test_a_router_sends_each_table_where_its_name_says(url: str, tmp_path: Path) -> None:
    with running(ROOT / "examples" / "router.py", url, tmp_path) as output:
        wait_for(output, "orders read public.orders {'id': 1}")
        execute(url, "INSERT INTO audit_log VALUES (1)", "INSERT INTO people VALUES (7)")
        printed = wait_for(output, "others insert public.people {'id': 7}")
    assert "audit_log" not in printed
