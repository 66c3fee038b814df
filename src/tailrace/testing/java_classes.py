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
from tailrace.testing.pipelines import WAIT_SECONDS, RunningPipeline, write_pipeline
from tailrace.testing.postgres import PostgresServer
from tailrace.testing.processes import lives, wait_until


def make(archive: Path) -> None:
    """Run a small pipeline until it is current; its classes are archived as its JVM ends."""
    with PostgresServer.start() as server, tempfile.TemporaryDirectory() as folder:
        shop.create(server.url)
        shop.load(server.url, rows=100)
        file = write_pipeline(Path(folder), server.url, {"replica": f"sqlite:///{folder}/replica.db"})
        options = {"SPARK_SUBMIT_OPTS": f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}"}
        with RunningPipeline(file, "--until-current", environment=options) as pipeline:
            pipeline.wait_for(lambda: pipeline.said("running"), "the pipeline to run")
            jvm = pipeline.jvm_process()
            assert pipeline.ended() == 0, pipeline.output
            wait_until(lambda: not lives(jvm), seconds=WAIT_SECONDS, what="the JVM to write its classes", every=0.1)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
