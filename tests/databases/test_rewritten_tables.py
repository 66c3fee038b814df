"""Tables that get new files while they are copied: none of their planned pages can be read any more."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace import failpoints
from tailrace.testing import content
from tailrace.testing.pipelines import RunningPipeline, write_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.server]


def test_a_rewritten_table_is_copied_again_and_a_truncated_one_need_not_be(postgres_url: str, tmp_path: Path) -> None:
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    once = str(tmp_path / "once")
    armed = failpoints.environment("snapshot-planned", action="sleep=4", once=once)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for table in ("vacuumed", "truncated", "emptied", "left_alone"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, t text)".encode())
            connection.execute(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, 500) n".encode())
        with RunningPipeline(file, "--until-current", environment=armed) as pipeline:
            pipeline.wait_for(lambda: failpoints.fired("snapshot-planned", once), "the copy to be planned")
            connection.execute("UPDATE truncated SET t = 'updated' WHERE id < 10")
            connection.execute("TRUNCATE truncated, emptied")
            connection.execute("INSERT INTO truncated SELECT n, 'new' FROM generate_series(490, 600) n")
            connection.execute("DELETE FROM vacuumed WHERE id < 250")
            connection.execute("VACUUM FULL vacuumed")
            assert pipeline.ended() == 0, pipeline.output

    content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
    copied = [event["table"] for event in pipeline.said("table") if event["state"] == "snapshot"]
    assert sorted(copied) == ["public.emptied", "public.left_alone", "public.truncated", *["public.vacuumed"] * 2]
