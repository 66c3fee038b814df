"""`tailrace demo`, for real: it ends identical, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.server]

DEMO = [sys.executable, "-m", "tailrace.cli.main", "demo", "--seconds", "8", "--workload-rate", "200"]


def folder_in(text: str) -> Path:
    [folder] = re.findall(r"starting PostgreSQL 18 in (\S+)", text)
    return Path(folder)


def processes_about(folder: Path) -> list[psutil.Process]:
    """Processes that have the folder in their command line, or work in it."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        if any(str(folder) in word for word in words):
            found.append(process)
    return found


def test_the_demo_survives_its_kill_and_ends_identical():
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    for table in ("customers", "products", "orders", "order_items"):
        source, sink = re.search(rf"^{table} +([\d,]+) +([\d,]+)   identical$", told, re.MULTILINE).groups()
        assert source == sink
    assert re.search(r"SIGKILL to process \d+, with \d+ committed orders on their way", told)
    assert re.search(r"^lag  .* p50 [\d.]+ s, p95 [\d.]+ s", told, re.MULTILINE)
    assert re.search(r"^identical: every column of all [\d,]+ rows", told, re.MULTILINE)
    assert done.stderr == ""
    assert not folder_in(told).exists()
    assert processes_about(folder_in(told)) == []


def _as_on_a_terminal() -> None:
    """Jobs in the background of a shell are born deaf to Ctrl-C, and so are their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("how", "code", "moment"),
    [
        (signal.SIGINT, 130, "started `tailrace run"),
        (signal.SIGTERM, 143, "starting PostgreSQL"),
        (signal.SIGINT, 130, "tables are copied and live"),
    ],
    ids=["Ctrl-C while Spark starts", "SIGTERM while PostgreSQL starts", "Ctrl-C while it follows"],
)
def test_an_interrupted_demo_leaves_nothing_behind(how, code, moment, tmp_path):
    log = tmp_path / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            DEMO, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_as_on_a_terminal
        )
    wait_until(lambda: moment in log.read_text() or demo.poll() is not None, seconds=400, what=moment)
    time.sleep(0.5)  # not a condition: to be in the middle of whatever comes next
    os.killpg(demo.pid, how)  # as a terminal does it: to the whole group
    assert demo.wait(90) == code, log.read_text()
    folder = folder_in(log.read_text())
    assert not folder.exists()
    assert processes_about(folder) == []


def test_a_demo_that_is_killed_itself_leaves_no_process(tmp_path):
    log = tmp_path / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(DEMO, stdout=out, stderr=subprocess.STDOUT)
    wait_until(lambda: "started `tailrace run" in log.read_text(), seconds=200, what="the pipeline to be started")
    folder = folder_in(log.read_text())
    demo.kill()
    demo.wait()
    try:
        wait_until(lambda: processes_about(folder) == [], seconds=60, what="the processes to notice", every=0.2)
    finally:
        shutil.rmtree(folder)  # nobody was left to do it


def test_a_demo_without_java_says_so_in_a_sentence(tmp_path):
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 1
    assert "Java 17" in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder_in(done.stdout).exists()


@pytest.mark.parametrize("option", ["--seconds", "--workload-rate"])
def test_numbers_that_make_no_sense_are_refused(option):
    done = subprocess.run([*DEMO, option, "0"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "0 is not between 1 and 1,000,000" in done.stderr
