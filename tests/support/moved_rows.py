"""A copy that dies under way while its rows move to other keys, and others take their place on the same pages."""

from __future__ import annotations

from pathlib import Path

from support.pipelines import Replica, RunningPipeline, write_pipeline
from tailrace import failpoints
from tailrace.testing.postgres import execute

SLOW_COPY = failpoints.environment("chunk-before-load", action="sleep=0.2")


def killed_while_rows_move(url: str, folder: Path) -> Path:
    """The file of a pipeline that was killed in its first copy of `moved`, before the rows of that moved.

    A move comes without the large value, and what the sink has under the old key by then may be another row.
    """
    source = {"snapshot": {"chunk_bytes": 8192}}
    file = write_pipeline(folder, url, {"replica": f"sqlite:///{folder}/replica.db"}, source=source)
    execute(
        url,
        "CREATE TABLE moved (id int PRIMARY KEY, filler text, large text) WITH (fillfactor = 30)",
        "ALTER TABLE moved ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO moved SELECT n, repeat('-', 500), repeat(md5(n::text), 100) FROM generate_series(1, 100) n",
    )
    with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
        pipeline.wait_for(Replica(file).is_copying, "the copy to be under way")
        pipeline.kill()
    execute(
        url,
        "UPDATE moved SET id = id + 1000 WHERE id % 2 = 0",
        "UPDATE moved SET id = id + 1 WHERE id < 1000",
    )
    return file
