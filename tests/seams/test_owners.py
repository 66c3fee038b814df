"""Tables of other owners: they are set aside with the statement that publishes them, and hold nobody up."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipelines import RunningPipeline, states, tailrace, wait_until_same, write_pipeline
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]


def create(url: str, table: str, owner: str) -> None:
    execute(
        url,
        f"CREATE TABLE {table} (id int PRIMARY KEY, t text)",
        f"INSERT INTO {table} SELECT n, 'first' FROM generate_series(1, 10) n",
        f"ALTER TABLE {table} OWNER TO {owner}",
    )


def wait_until(pipeline: RunningPipeline, table: str, state: str) -> None:
    def is_so() -> bool:
        said = [each["state"] for each in pipeline.said("table") if each["table"] == f"public.{table}"]
        return bool(said) and said[-1] == state

    pipeline.wait_for(is_so, f"{table} to be {state}", seconds=60)


def reason_of(file: Path, table: str) -> str:
    state, reason = states(file)["replica", f"public.{table}"]
    assert state == "failed"
    return reason


def statement_in(reason: str) -> str:
    return reason.partition("run: ")[2]


def test_tables_that_only_their_owners_can_publish_are_set_aside_until_somebody_does(tmp_path: Path) -> None:
    """At the first start, while it runs, and at the next start."""
    replica = tmp_path / "replica.db"
    with requires(PostgresServer.start, settings=FAST) as server:
        execute(
            server.url,
            *("CREATE ROLE follower LOGIN REPLICATION", "CREATE ROLE ann", "CREATE ROLE bob"),
            "GRANT pg_read_all_data TO follower",
            "GRANT CREATE ON DATABASE postgres TO follower",
        )
        create(server.url, "items", "follower")
        create(server.url, "early", "ann")
        follower = server.url.replace("postgres@", "follower@")
        file = write_pipeline(tmp_path, follower, {"replica": f"sqlite:///{replica}"}, tables=["public.*"])
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.items")
            wait_until(pipeline, "early", "failed")
            checked = tailrace("check", file)
            assert checked.returncode == 1
            assert "public.early" in checked.stdout
            execute(server.url, statement_in(reason_of(file, "early")))
            wait_until(pipeline, "early", "live")

            create(server.url, "later", "ann")
            wait_until(pipeline, "later", "failed")
            verified = tailrace("verify", file)
            assert (verified.returncode, "public.later" in verified.stdout) == (1, True), verified
            execute(server.url, "GRANT ann TO follower")
            wait_until(pipeline, "later", "live")
            wait_until_same(pipeline, server.url, replica, seconds=60)
            create(server.url, "last", "bob")
            wait_until(pipeline, "last", "failed")
            assert pipeline.stop() == 0, pipeline.output

        execute(server.url, "UPDATE items SET t = 'second'", "UPDATE early SET t = 'second'")
        with RunningPipeline(file) as pipeline:
            wait_until_same(pipeline, server.url, replica, "public.items", "public.early", "public.later", seconds=60)
            execute(server.url, statement_in(reason_of(file, "last")))
            wait_until_same(pipeline, server.url, replica, seconds=60)
            assert pipeline.copies("public.items") == pipeline.copies("public.early") == 0
            assert pipeline.stop() == 0, pipeline.output


def test_a_second_pipeline_that_names_the_publication_of_the_first_is_refused(
    postgres_url: str, tmp_path: Path
) -> None:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY)", "CREATE TABLE others (id int PRIMARY KEY)")
    files = {}
    for name, table in (("first", "items"), ("second", "others")):
        (tmp_path / name).mkdir()
        sinks = {"replica": f"sqlite:///{tmp_path}/{name}/replica.db"}
        source = {"publication": "shared", "slot": f"{name}_of_two"}
        files[name] = write_pipeline(
            tmp_path / name,
            postgres_url,
            sinks,
            name=name,
            tables=[f"public.{table}"],
            source=source,
            state=f"{tmp_path}/{name}/state",
        )
    with RunningPipeline(files["first"]) as pipeline:
        pipeline.wait_until_live("public.items")
        refused = tailrace("run", files["second"], "--until-current")
        assert refused.returncode == 1, refused
        assert "error: the publication shared belongs to the pipeline first (slot first_of_two)" in refused.stderr
        assert "belongs to the pipeline first" in " ".join(tailrace("check", files["second"]).stdout.split())
        dropped = tailrace("drop", files["second"])
        assert dropped.returncode == 0, dropped
        assert "publication" not in dropped.stdout
        execute(postgres_url, "INSERT INTO items VALUES (1)")
        wait_until_same(pipeline, postgres_url, tmp_path / "first/replica.db", "public.items", seconds=60)
        assert pipeline.stop() == 0, pipeline.output
    assert "publication shared" in tailrace("drop", files["first"]).stdout
