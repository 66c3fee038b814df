"""Values that few tables have, through two lives of one pipeline into every sink: the stream in binary, then in text.

Arrays of several dimensions or with bounds of their own, NaN where a number has limits, the last years of a timestamp:
each as an ordinary column, as a key, and in rows that have no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.pipelines import RunningPipeline, tailrace, write_pipeline
from support.sinks import Server, SinkDatabase, SinkView, sink_databases, wait_until_current
from tailrace.testing import PostgresServer, content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

SINKS = ("sqlite", "postgresql", "mysql", "mariadb")

ODD = {
    "integer[]": ["{1,NULL,-3}", "{{1,2},{3,NULL}}", "[0:1]={1,2}", "[2:3][-1:0]={{1,2},{3,4}}", "{}", "{{{7}}}"],
    "text[]": [r'{{"a,b","\""},{"\\",NULL}}', '[0:1]={"","NULL"}', "{plain}", '{{"{x}","[0:1]={1}"}}'],
    "numeric(12,2)[]": ["{1.50,NaN,NULL}", "{{NaN},{-0.01}}"],
    "timestamptz[]": ['{"294276-12-31 23:59:59.999999+00",infinity,NULL}', '{{"0044-03-15 12:00:00+00 BC"}}'],
    "double precision[]": ["{{NaN,-Infinity},{0.1,NULL}}"],
    "bytea[]": [r'{{"\\x00ff"},{"\\x"}}'],
    "boolean[]": ["{{t,f},{NULL,t}}"],
    "box[]": ["{(2,2),(1,1);(4,4),(3,3);NULL}", "{{(2,2),(1,1)};{(4,4),(3,3)}}", "{}"],
    "point[]": ['{{"(1,2)","(3,4)"}}'],
    "mood[]": ["{{fine},{so so}}"],
    "numeric(12,2)": ["NaN", "-9999999999.99"],
    "numeric(38,10)": ["NaN", "0.0000000001"],
    "timestamp": ["294276-12-31 23:59:59.999999", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808"],
    "timestamptz": ["294276-12-31 23:59:59.999999+00", "infinity", "-infinity", "4713-11-24 00:00:00+00 BC"],
    "date": ["5874897-12-31", "4713-01-01 BC", "infinity"],
}
"""Types, and values of each as PostgreSQL reads them."""

KEYS = {"key_of_integers": "integer[]", "key_of_numbers": "numeric(12,2)", "key_of_moments": "timestamp"}


def _tables() -> list[str]:
    columns = ", ".join(f"c{place} {type_}" for place, type_ in enumerate(ODD))
    keyed = [f"CREATE TABLE {name} (k {type_} PRIMARY KEY, v text)" for name, type_ in KEYS.items()]
    return [
        "CREATE TYPE mood AS ENUM ('fine', 'so so')",
        "CREATE DOMAIN box_list AS box[]",
        f"CREATE TABLE odd (id int PRIMARY KEY, {columns})",
        f"CREATE TABLE bag ({columns})",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        *keyed,
    ]


def _rows() -> list[list[str]]:
    """Rows in which each value of each type is at least once."""
    most = max(map(len, ODD.values()))
    return [[_literal(values[n % len(values)], type_) for type_, values in ODD.items()] for n in range(most)]


def _literal(value: str, type_: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'::{type_}"


def _insert(first_id: int) -> list[str]:
    rows = _rows()
    keyed = ", ".join(f"({first_id + n}, {', '.join(row)})" for n, row in enumerate(rows))
    bare = ", ".join(f"({', '.join(row)})" for row in [*rows, rows[0]])
    return [f"INSERT INTO odd VALUES {keyed}", f"INSERT INTO bag VALUES {bare}"]


def _by_key() -> list[str]:
    found = []
    for name, type_ in KEYS.items():
        first, second, *_ = (_literal(value, type_) for value in reversed(ODD[type_]))
        found += [
            f"INSERT INTO {name} VALUES ({first}, 'first'), ({second}, 'second') ON CONFLICT (k) DO NOTHING",
            f"UPDATE {name} SET v = v || ' again' WHERE k = {first}",
            f"DELETE FROM {name} WHERE k = {second}",
        ]
    return found


CHANGES = [
    "UPDATE odd SET c0 = '{{9,9}}', c10 = 'NaN', c12 = '294276-01-01' WHERE id % 2 = 0",
    "UPDATE odd SET c0 = '{1}', c10 = 1, c12 = '2024-01-01' WHERE id % 2 = 1",
    "DELETE FROM odd WHERE id % 5 = 3",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE array_ndims(c0) = 1)",
    "UPDATE bag SET c0 = '[5:5]={5}' WHERE c0 = '{{1,2},{3,NULL}}'",
]


@dataclass(frozen=True)
class Setting:
    url: str
    file: Path
    sinks: dict[str, SinkDatabase]

    def execute(self, *statements: str) -> None:
        execute(self.url, *statements)

    def assert_same(self) -> None:
        ended = tailrace("verify", self.file)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        tables = [f"public.{name}" for name in ("odd", "bag", *KEYS)]
        content.assert_same(content.sqlite_differences(self.url, self.sinks["sqlite"].path, tables))
        content.assert_same(content.postgres_differences(self.url, self.sinks["postgresql"].url, tables))


@pytest.fixture
def setting(
    postgres_server: PostgresServer,
    mysql_server: MySqlServer,
    mariadb_server: MariaDbServer,
    postgres_url: str,
    tmp_path: Path,
) -> Iterator[Setting]:
    servers: dict[str, Server] = {"postgresql": postgres_server, "mysql": mysql_server, "mariadb": mariadb_server}
    with sink_databases(servers, tmp_path) as sinks:
        urls = {kind: {"url": sink.url, "misfits": "text"} for kind, sink in sinks.items()}
        yield Setting(postgres_url, write_pipeline(tmp_path, postgres_url, urls), sinks)


def test_odd_values_arrive_in_every_sink_by_copy_and_by_either_stream(setting: Setting) -> None:
    setting.execute(*_tables(), *_insert(1), *_by_key())
    with RunningPipeline(setting.file) as pipeline:
        views = [SinkView(setting.file, sink) for sink in SINKS]
        pipeline.wait_for(lambda: all(view.is_live() for view in views), "every sink to be live", seconds=600)
        setting.execute(*_insert(101), *_by_key(), *CHANGES)
        wait_until_current(pipeline, setting.file, setting.url, SINKS)
        setting.assert_same()
        assert pipeline.stop() == 0, pipeline.output

    setting.execute(
        "CREATE TYPE spot AS (x int, mood mood)",
        "CREATE VIEW seen AS SELECT 1",
        "CREATE TABLE text_only (id int PRIMARY KEY, s spot, r regclass, n box_list)",
        "INSERT INTO text_only SELECT n, '(1,fine)', 'seen', '{(1,1),(0,0)}' FROM generate_series(1, 2) n",
    )
    with RunningPipeline(setting.file) as pipeline:
        pipeline.wait_for(lambda: all("public.text_only" in view.state().tables for view in views), "a new table", 600)
        setting.execute(*_insert(201), *_by_key(), *CHANGES)
        wait_until_current(pipeline, setting.file, setting.url, SINKS)
        setting.assert_same()
        _rename_what_is_printed(setting, pipeline)
        assert pipeline.stop() == 0, pipeline.output
    texts = {kind: sink.query("SELECT c0 FROM odd WHERE id = 2") for kind, sink in setting.sinks.items()}
    assert texts == {
        "sqlite": [("[[9,9]]",)],
        "mysql": [("[[9,9]]",)],
        "mariadb": [("[[9,9]]",)],
        "postgresql": [([[9, 9]],)],
    }


def _rename_what_is_printed(setting: Setting, pipeline: RunningPipeline) -> None:
    """No row changes, so none is sent: the sinks have the names of their time, and `verify` says so.

    A composite that gets an attribute is another text in every row: its table is copied again.
    """
    setting.execute(
        "ALTER VIEW seen RENAME TO viewed",
        "INSERT INTO text_only VALUES (3, '(3,fine)', 'viewed')",
        "UPDATE text_only SET id = id WHERE id = 1",
    )
    wait_until_current(pipeline, setting.file, setting.url, SINKS)
    ended = tailrace("verify", setting.file)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    different = [line.split() for line in ended.stdout.splitlines() if " no " in line]
    assert [words[:2] + words[5:6] for words in different] == [
        [sink, "public.text_only", "2"] for sink in sorted(SINKS)
    ]
    setting.execute("ALTER TYPE spot RENAME ATTRIBUTE x TO y", "ALTER TYPE spot ADD ATTRIBUTE z int")
    pipeline.wait_for(lambda: tailrace("verify", setting.file).returncode == 0, "the copies", seconds=300)
    setting.assert_same()
