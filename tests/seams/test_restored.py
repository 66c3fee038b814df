"""A sink or a state directory that is put back from a backup, and a copy that is interrupted twice.

Either it is healed, or refused in a sentence: a run never ends well with rows missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.moved_rows import killed_while_rows_move
from support.pipelines import RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace import failpoints
from tailrace.testing import content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.server]


def assert_equal(url: str, folder: Path) -> None:
    content.assert_same(content.sqlite_differences(url, folder / "replica.db"))


class Files:
    """The replica and the state directory of a stopped pipeline, saved and put back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, name: str) -> None:
        kept = self._folder / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        shutil.copytree(self._folder / "state", kept / "state")
        for path in self._folder.glob("replica.db*"):
            shutil.copy2(path, kept)

    def put_back(self, name: str, *, sink: bool, state: bool) -> None:
        kept = self._folder / name
        if state:
            shutil.rmtree(self._folder / "state", ignore_errors=True)
            shutil.copytree(kept / "state", self._folder / "state")
        if sink:
            for path in self._folder.glob("replica.db*"):
                path.unlink()
            for path in kept.glob("replica.db*"):
                shutil.copy2(path, self._folder)


def change(url: str, number: int) -> None:
    """Every kind of change, more of them than a log keeps unread, in a table with a key and in one without."""
    execute(
        url,
        f"INSERT INTO items SELECT n, '{number}' FROM generate_series({number}001, {number}500) n",
        f"UPDATE items SET t = 'changed by {number}' WHERE id = 1",
        f"DELETE FROM items WHERE id = {number + 1}",
        f"INSERT INTO events SELECT {number} FROM generate_series(1, 500)",
    )


def test_backups_of_a_sink_or_a_state_directory_are_healed_or_refused(postgres_url: str, tmp_path: Path) -> None:
    execute(
        postgres_url,
        "CREATE TABLE items (id int PRIMARY KEY, t text)",
        "CREATE TABLE events (n int)",
        "ALTER TABLE events REPLICA IDENTITY FULL",
        "INSERT INTO items SELECT n, 'first' FROM generate_series(1, 100) n",
    )
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    files = Files(tmp_path)
    run_until_current(file)
    files.save("older")
    change(postgres_url, 1)
    run_until_current(file)
    assert_equal(postgres_url, tmp_path)
    for number, (sink, state) in enumerate(((True, False), (False, True), (True, True)), start=2):
        files.save("latest")
        change(postgres_url, number)
        files.put_back("older", sink=sink, state=state)
        ended = tailrace("run", file, "--until-current")
        assert "Traceback" not in ended.stdout + ended.stderr
        if ended.returncode == 0:
            assert_equal(postgres_url, tmp_path)
        else:
            assert ended.returncode == 1, ended
            error, hint = ended.stderr.splitlines()
            assert error.startswith("error: ")
            assert hint.startswith("hint: ")
            files.put_back("latest", sink=True, state=True)
    run_until_current(file)
    assert_equal(postgres_url, tmp_path)


def test_a_copy_that_is_resumed_and_killed_again_takes_nothing_from_later_rows(
    postgres_url: str, tmp_path: Path
) -> None:
    """As when it is killed once, in test_kills. The second death comes when its last chunk is loaded."""
    file = killed_while_rows_move(postgres_url, tmp_path)
    with RunningPipeline(file, environment=failpoints.environment("snapshot-finished")) as pipeline:
        assert pipeline.ended() == -9, pipeline.output
    run_until_current(file)
    assert_equal(postgres_url, tmp_path)
