"""Makes an archive of the Java classes that a pipeline loads: with it, Spark starts in a third of the CPU time.

    python -m tailrace.testing.java_classes FILE

Worth it where Spark starts many times, as in the tests. `-XX:SharedArchiveFile=FILE` in `SPARK_SUBMIT_OPTS` uses it; a
JVM or a class path other than those it was made with leave it aside without a word.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tailrace.testing import shop
from tailrace.testing.pipelines import WAIT_SECONDS, RunningPipeline, wait_until_same, write_pipeline
from tailrace.testing.postgres import PostgresServer, execute
from tailrace.testing.processes import lives, wait_until


def make(archive: Path) -> None:
    """Copy and stream with a small pipeline; its classes are archived as its JVM ends."""
    with PostgresServer.start() as server, tempfile.TemporaryDirectory() as folder:
        shop.create(server.url)
        shop.load(server.url, rows=100)
        file = write_pipeline(Path(folder), server.url, {"replica": f"sqlite:///{folder}/replica.db"})
        options = {"SPARK_SUBMIT_OPTS": f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}"}
        with RunningPipeline(file, environment=options) as pipeline:
            pipeline.wait_until_live("public.orders")
            execute(server.url, "DELETE FROM order_items")
            wait_until_same(pipeline, server.url, Path(folder) / "replica.db")
            jvm = pipeline.jvm_process()
            assert pipeline.stop() == 0, pipeline.output
            wait_until(lambda: not lives(jvm), seconds=WAIT_SECONDS, what="the JVM to write its classes", every=0.1)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
