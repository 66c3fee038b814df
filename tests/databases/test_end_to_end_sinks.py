"""The hostile workload and a value of every type, into PostgreSQL, MySQL and MariaDB at once; `verify` is the judge.

MySQL and MariaDB have neither NaN nor infinity, so a trigger in the source keeps them out until the end, when they are
sent on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import hot
from support.hot import HotWorkload
from support.mysql import MariaDbServer, MySqlServer
from support.pipelines import RunningPipeline, tailrace, write_pipeline
from support.sinks import Server, SinkDatabase, SinkView, sink_databases, wait_until_current
from tailrace.testing import PostgresServer, content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

SINKS = ("postgresql", "mysql", "mariadb")

FINITE = """
CREATE FUNCTION finite() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.x IN ('NaN', 'Infinity') THEN NEW.x := 1e-300; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER finite BEFORE INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION finite();
CREATE FUNCTION not_too_long() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.amount >= 1e35 THEN NEW.amount := 1e34 + 0.125; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER not_too_long BEFORE INSERT OR UPDATE ON keyless FOR EACH ROW EXECUTE FUNCTION not_too_long();
"""

VALUES = {
    "boolean": "true",
    "smallint": "-32768",
    "integer": "2147483647",
    "bigint": "-9223372036854775808",
    "real": "1.17549435e-38",
    "double precision": "-1.7976931348623157e+308",
    "numeric(12,2)": "-9999999999.99",
    "numeric": "12345678901234567890.123456789",
    "text": "'it''s \\ \"q\"' || chr(10) || chr(9) || '🌊 '",
    "varchar(20)": "'ends with blanks  '",
    "char(5)": "'ab'",
    "bytea": r"'\x00ff5c0a09'",
    "uuid": "'00000000-0000-0000-0000-0000000000ff'",
    "date": "'0001-01-01'",
    "time": "'24:00:00'",
    "timetz": "'12:34:56.789+05:30'",
    "timestamp": "'9999-12-31 23:59:59.999999'",
    "timestamptz": "'1900-01-01 00:00:00.000001+02'",
    "interval": "'1 year -2 days 03:04:05.6'",
    "json": """'{"a":  [1, null]}'""",
    "jsonb": """'{"b": {"c": "ü"}}'""",
    "mood": "'so so'",
    "inet": "'10.1.2.3/8'",
    "macaddr": "'08:00:2b:01:02:03'",
    "bit(5)": "B'10101'",
    "int4range": "'[1,10)'",
    "integer[]": "ARRAY[1, NULL, -3]",
    "text[]": r"""ARRAY['a,b', '"', '\', NULL, '']""",
    "numeric[]": "ARRAY[1.50, NULL]",
    "double precision[]": "'{0.1,NaN,-Infinity}'",
    "bytea[]": r"ARRAY['\x00'::bytea]",
    "timestamptz[]": "ARRAY['2024-02-29 12:00:00+00'::timestamptz, NULL]",
    "even": "42",
}
"""A type, and a value of it that is easily damaged."""

EVERY_TYPE = [
    "CREATE TYPE mood AS ENUM ('fine', 'so so')",
    "CREATE DOMAIN even AS integer CHECK (VALUE % 2 = 0)",
    f"CREATE TABLE every_type (id int PRIMARY KEY, {', '.join(f'c{n} {t}' for n, t in enumerate(VALUES))})",
    f"INSERT INTO every_type VALUES (1, {', '.join(VALUES.values())}), (2, {', '.join(['NULL'] * len(VALUES))})",
]
CHANGES = [
    f"INSERT INTO every_type VALUES (3, {', '.join(VALUES.values())})",
    "INSERT INTO every_type (id) VALUES (4), (5)",
    f"UPDATE every_type SET {', '.join(f'c{n} = {v}' for n, v in enumerate(VALUES.values()))} WHERE id IN (2, 4)",
    f"UPDATE every_type SET {', '.join(f'c{n} = NULL' for n in range(len(VALUES)))} WHERE id = 3",
    "TRUNCATE indexed",
    "INSERT INTO indexed VALUES (1, 'after the truncate', NULL)",
]


@dataclass(frozen=True)
class Setting:
    url: str
    file: Path
    sinks: dict[str, SinkDatabase]

    def execute(self, *statements: str) -> None:
        execute(self.url, *statements)

    def verify(self, code: int) -> list[str]:
        """What `tailrace verify` says, a line a table of a sink."""
        ended = tailrace("verify", self.file)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout.splitlines()[1:]


@pytest.fixture
def setting(
    postgres_server: PostgresServer,
    mysql_server: MySqlServer,
    mariadb_server: MariaDbServer,
    postgres_url: str,
    tmp_path: Path,
) -> Iterator[Setting]:
    servers: dict[str, Server] = {"postgresql": postgres_server, "mysql": mysql_server, "mariadb": mariadb_server}
    hot.create(postgres_url)
    with sink_databases(servers) as sinks:
        urls = {kind: sink.url for kind, sink in sinks.items()}
        file = write_pipeline(tmp_path, postgres_url, urls, source={"snapshot": {"chunk_bytes": 262_144}})
        made = Setting(postgres_url, file, sinks)
        made.execute(FINITE, *EVERY_TYPE)
        yield made


def failures(pipeline: RunningPipeline) -> dict[str, tuple[str, str]]:
    """The table that each sink has set aside, and why."""
    failed = [each for each in pipeline.said("table") if each["state"] == "failed"]
    return {each["sink"]: (each["table"], each["reason"]) for each in failed}


def test_every_kind_of_change_and_of_value_arrives_in_every_sink(setting: Setting) -> None:
    url, file = setting.url, setting.file
    hot.run(url, seed=51, transactions=200)
    with RunningPipeline(file) as pipeline:
        with HotWorkload.start(url, rate=100, seed=52, truncate=False) as workload:
            views = [SinkView(file, sink) for sink in SINKS]
            pipeline.wait_for(lambda: pipeline.said("table"), "a snapshot to begin")
            setting.execute("TRUNCATE pair, toasty")
            pipeline.wait_for(lambda: all(view.is_live() for view in views), "the tables to be live in every sink")
            seen = workload.changes
            pipeline.wait_for(lambda: workload.changes > seen + 100, "changes after the snapshot")
        setting.execute(*CHANGES)
        wait_until_current(pipeline, file, url, SINKS)

        lines = setting.verify(0)
        assert len(lines) == len(SINKS) * 11
        content.assert_same(content.postgres_differences(url, setting.sinks["postgresql"].url))

        setting.execute("INSERT INTO plain (id) VALUES (1001), (1002), (1003)")
        wait_until_current(pipeline, file, url, SINKS)
        damaged = dict(zip(SINKS, (1001, 1002, 1003), strict=True))
        for kind, key in damaged.items():
            setting.sinks[kind].query(f"UPDATE plain SET n = 5 WHERE id = {key}")
        lines = [line for line in setting.verify(1) if "public.plain" in line]
        assert {line.split()[0] for line in lines} == set(SINKS)
        for line in lines:
            assert [int(word) for word in line.split() if re.fullmatch("100[123]", word)] == [damaged[line.split()[0]]]

        setting.execute("DROP TRIGGER finite ON plain", "INSERT INTO plain (id, x) VALUES (2000, 'NaN')")
        pipeline.wait_for(lambda: failures(pipeline).keys() == {"mysql", "mariadb"}, "MySQL and MariaDB to refuse NaN")
        for table, reason in failures(pipeline).values():
            assert table == "public.plain"
            assert reason.startswith("public.plain.x (double precision) has NaN or an infinity, which the sink's")
        wait_until_current(pipeline, file, url, ["postgresql"])
        assert setting.sinks["postgresql"].query("SELECT x::text FROM plain WHERE id = 2000") == [("NaN",)]
        assert pipeline.stop() == 0, pipeline.output
