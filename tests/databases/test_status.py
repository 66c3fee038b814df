"""`tailrace status`: of a pipeline that never ran, that runs, that stopped; without its source, without its state."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tailrace import config
from tailrace.cli.main import main
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import Watermark
from tailrace.pipeline import status
from tailrace.pipeline.status import RunState
from tailrace.sinks.base import Batch, ChunkMark
from tailrace.sinks.sql.sqlite import session as sqlite_session
from tailrace.sinks.sql.sqlite.dialect import SqliteSink
from tailrace.testing.processes import wait_until

PIPELINE = """
name: status
source:
  url: {url}
  tables: [public.*]
sinks:
  replica:
    url: sqlite:///replica.db
state: ./state
"""


@pytest.fixture
def file(postgres_url, tmp_path):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE parts (id int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO parts SELECT n, 'part ' || n FROM generate_series(1, 500) n")
        connection.execute('CREATE TABLE "Odd Name" (id int PRIMARY KEY)')
    path = tmp_path / "pipeline.yml"
    path.write_text(PIPELINE.format(url=postgres_url))
    return path


@pytest.fixture
def run(file):
    """Start `tailrace run`; whatever still runs at the end of the test is stopped."""
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        log = (file.parent / "run.log").open("ab")
        command = [sys.executable, "-m", "tailrace.cli.main", "run", *arguments, str(file)]
        started.append(subprocess.Popen(command, stdout=log, stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def lines_of(file: Path) -> dict[str, status.TableLine]:
    return {line.table: line for line in status.read(config.load(file))}


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def add_rows(url: str, first: int, last: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO parts SELECT n FROM generate_series(%s::int, %s) n", [first, last])


def test_a_pipeline_that_never_ran_has_nothing_and_gets_nothing(file, tmp_path, capsys):
    before = everything_in(tmp_path)
    assert main(["status", str(file)]) == 0
    assert capsys.readouterr().out == "sink replica has nothing of this pipeline yet\n"
    assert everything_in(tmp_path) == before


def test_a_file_of_somebody_else_is_left_as_it_is(file, tmp_path):
    with sqlite3.connect(tmp_path / "replica.db") as connection:
        connection.execute("CREATE TABLE mine (id)")
    connection.close()
    before = (tmp_path / "replica.db").read_bytes()
    assert status.read(config.load(file)) == []
    assert (tmp_path / "replica.db").read_bytes() == before
    assert everything_in(tmp_path) == {"pipeline.yml", "replica.db"}


def test_a_file_that_is_no_database_is_an_error_of_one_sentence(file, tmp_path, capsys):
    (tmp_path / "replica.db").write_text("shopping list: flour, " * 100)
    assert main(["status", str(file)]) == 1
    assert "file is not a database" in capsys.readouterr().err


@pytest.fixture
def stopped(file):
    """A sink as a run leaves it: 500 rows of a live table, and a table of which two of five chunks are copied."""
    pipeline = config.load(file)
    sink = SqliteSink(pipeline, "replica")
    for name, state, loaded in (("parts", TableState.LIVE, 5), ("more", TableState.SNAPSHOT, 2)):
        schema = TableSchema("public", name, (Column("id", ColumnType(Kind.INT32)),), ("id",))
        place = Watermark("log", 7, "0/10")
        marks = [ChunkMark(2, Chunk(schema.table, each, 0), each < loaded, 100 * (each < loaded)) for each in range(5)]
        sink.begin_snapshot(TableStatus(schema.table, state, place, schema, 2, rows=500), marks, clear=True)
    sink.commit(Batch(watermark=Watermark("log", 9, "0/20")), fetch=None)
    sink.close()
    with sqlite3.connect(config.sqlite_path(pipeline.sinks["replica"].url)) as connection:
        connection.executemany("INSERT INTO parts VALUES (?)", [[number] for number in range(498)])
    connection.close()
    return file


def test_looking_at_a_stopped_pipeline_leaves_no_trace(stopped, tmp_path):
    before = everything_in(tmp_path)
    assert {line.run for line in lines_of(stopped).values()} == {RunState.STOPPED}
    assert everything_in(tmp_path) == before


def test_a_live_table_is_where_its_sink_is(stopped):
    line = lines_of(stopped)["public.parts"]
    assert (line.state, line.rows, line.copied) == (TableState.LIVE, 498, 500)
    assert (line.offset, line.position, line.chunks) == (9, "0/20", None)


def test_a_snapshot_under_way_shows_its_chunks_and_its_own_place(stopped):
    line = lines_of(stopped)["public.more"]
    assert (line.state, line.chunks_loaded, line.chunks, line.copied) == (TableState.SNAPSHOT, 2, 5, 200)
    assert (line.offset, line.position, line.lag_seconds) == (7, "0/10", None)


def test_a_source_that_answers_tells_how_far_behind_a_stopped_pipeline_is(stopped):
    line = lines_of(stopped)["public.parts"]
    assert line.behind_bytes > 1_000_000
    assert line.source_error is None


def test_a_source_that_is_down_is_said_and_the_rest_is_told(stopped, capsys):
    stopped.write_text(PIPELINE.format(url="postgresql://postgres:secret@127.0.0.1:1/shop"))
    assert main(["status", str(stopped)]) == 0
    told = capsys.readouterr().out
    assert "how far the source is, is not known: cannot connect to PostgreSQL at 127.0.0.1:1/shop" in told
    assert "public.parts" in told
    assert "secret" not in told


def test_what_takes_long_to_count_is_not_counted(stopped, monkeypatch, capsys):
    monkeypatch.setattr(status, "COUNT_SECONDS", -1.0)
    monkeypatch.setattr(sqlite_session, "STEPS", 1)
    assert lines_of(stopped)["public.parts"].rows is None
    main(["status", str(stopped)])
    assert "not counted" in capsys.readouterr().out


def test_a_person_reads_a_table(stopped, capsys):
    main(["status", str(stopped)])
    head, more, parts = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["sink", "table", "state", "rows", "copied", "chunks", "offset", "position", "lag", "behind"]
    assert more[:8] == ["replica", "public.more", "snapshot", "0", "200", "2/5", "7", "0/10"]
    assert parts[:8] == ["replica", "public.parts", "live", "498", "500", "9", "0/20", "stopped"]


def test_a_sink_that_does_not_answer_is_said_and_the_others_are_shown(stopped, capsys):
    document = stopped.read_text()
    stopped.write_text(document.replace("sinks:\n", "sinks:\n  gone:\n    url: mysql://nobody@127.0.0.1:9/gone\n"))
    assert main(["status", str(stopped)]) == 1
    said = capsys.readouterr()
    assert "error: sink gone: " in said.err
    assert "public.parts" in said.out
    assert main(["status", str(stopped), "--json"]) == 1
    assert {line["sink"] for line in json.loads(capsys.readouterr().out)} == {"replica"}


@pytest.mark.spark
@pytest.mark.slow
def test_a_running_pipeline_is_told_with_its_lag(file, run, postgres_url, tmp_path, capsys):
    process = run()
    wait_until(lambda: is_live(file), seconds=200, what="both tables to be live", every=0.2)
    assert {line.run for line in lines_of(file).values()} == {RunState.RUNNING}
    assert rows_of(file) == {"public.parts": 500, "public.Odd Name": 0}

    os.kill(process.pid, signal.SIGSTOP)  # capture goes on, the sink does not
    add_rows(postgres_url, 501, 600)
    wait_until(lambda: (lag_of(file) or 0) > 1, seconds=30, what="a lag of a second", every=0.2)
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: rows_of(file)["public.parts"] == 600, seconds=60, what="the new rows", every=0.2)
    wait_until(lambda: lag_of(file) == 0.0, seconds=60, what="the lag to go", every=0.1)
    main(["status", str(file), "--json"])
    assert {line["run"] for line in json.loads(capsys.readouterr().out)} == {"running"}

    process.terminate()
    assert process.wait(60) == 0
    shutil.rmtree(tmp_path / "state")
    before = everything_in(tmp_path)
    assert {(line.run, line.lag_seconds) for line in lines_of(file).values()} == {(RunState.STOPPED, None)}
    assert rows_of(file)["public.parts"] == 600
    assert everything_in(tmp_path) == before


def is_live(file: Path) -> bool:
    states = [line.state for line in lines_of(file).values()]
    return states == [TableState.LIVE, TableState.LIVE]


def rows_of(file: Path) -> dict[str, int | None]:
    return {table: line.rows for table, line in lines_of(file).items()}


def lag_of(file: Path) -> float | None:
    return lines_of(file)["public.parts"].lag_seconds
