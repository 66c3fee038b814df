"""What a connector has of its own in the pipeline file: found by the URL's scheme, and checked like all the rest."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from rich.pretty import pretty_repr

from support.connectors import BrookSettings, LakeSettings, Login
from tailrace import config, registry
from tailrace.cli import init
from tailrace.config import json_schema, load
from tailrace.errors import ConfigError, MissingExtra
from tailrace.model.watermark import SourceIdentity
from tailrace.pipeline.capture_process import Order
from tailrace.sources.postgres.settings import PostgresSettings
from tailrace.sources.postgres.source import PostgresSource

BROOK = """
name: shop
source: {url: "brook://h", tables: ["*"], server_id: 7}
sinks:
  replica: {url: "lake://h/d", format: json}
"""
CONNECTORS = [
    EntryPoint("brook", "support.connectors:BrookSource", registry.SOURCES),
    EntryPoint("undriven", "no_such_driver_anywhere:Source", registry.SOURCES),
    EntryPoint("lake", "support.connectors:LakeSink", registry.SINKS),
    EntryPoint("greedy", "support.connectors:GreedySink", registry.SINKS),
    EntryPoint("undriven", "no_such_driver_anywhere:Sink", registry.SINKS),
]


@pytest.fixture(autouse=True)
def connectors(monkeypatch):
    """As if packages with these connectors were installed beside ours."""

    def found(group: str, **wanted: str) -> list[EntryPoint]:
        every = [*entry_points(group=group), *(each for each in CONNECTORS if each.group == group)]
        return [entry for entry in every if wanted.get("name", entry.name) == entry.name]

    monkeypatch.setattr(registry, "entry_points", found)


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, environ: dict[str, str] | None = None) -> config.Pipeline:
        path = tmp_path / "pipeline.yml"
        path.write_text(textwrap.dedent(text))
        return load(path, environ or {})

    return read


@pytest.fixture
def fail(read, tmp_path):
    """What a file says when it is read, without its name, and the hint."""

    def fail(text: str) -> tuple[str, str]:
        with pytest.raises(ConfigError) as caught:
            read(text)
        return str(caught.value).removeprefix(f"{tmp_path}/pipeline.yml: "), caught.value.hint or ""

    return fail


def with_source(keys: str) -> str:
    return BROOK.replace("server_id: 7", f"server_id: 7, {keys}")


# --- a good file


def test_a_source_has_its_own_settings_beside_those_that_all_have(read):
    keys = 'mode: both, logins: {h: {user: u, password: "${P}"}}, hosts: [a, b], admin: {user: a}, buffer_bytes: 2 MiB'
    pipeline = read(with_source(keys), {"P": "p"})
    assert pipeline.source.tables == ("*",)
    assert pipeline.source_settings(BrookSettings) == BrookSettings(
        7, 2 << 20, "both", {"h": Login("u", "p")}, ("a", "b"), Login("a")
    )


def test_a_sink_has_its_own_settings_beside_those_that_all_have(read):
    pipeline = read(BROOK.replace("format: json", "format: avro, max_rows: 5"))
    assert pipeline.sinks["replica"].max_rows == 5
    assert pipeline.sink_settings("replica", LakeSettings) == LakeSettings("avro")


def test_a_number_of_its_own_may_come_from_a_variable(read):
    pipeline = read(BROOK.replace("server_id: 7", "server_id: '${ID}'"), {"ID": "12"})
    assert pipeline.source_settings(BrookSettings).server_id == 12


def test_what_the_file_does_not_say_is_left_to_the_defaults_of_the_version_that_runs(read):
    assert read(BROOK).source.own == {"server_id": 7}


# --- wrong files


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ("mod: file", "source.mod: unknown key", "did you mean `mode`?"),
        (
            "own: {}",
            "source.own: unknown key",
            "known here: url, tables, acknowledge, heartbeat_ms, snapshot, server_id,",
        ),
        ("mode: [gtid]", "source.mode: expected text, got a list", "what places are made of"),
        ("mode: name", "source.mode: expected text that is `both`, `file` or `gtid`", "what places are made of"),
        ("hosts: a", "source.hosts: expected a list, got text", "where it may be"),
        ("hosts: [a, 5]", "source.hosts[1]: expected text, got a whole number", ""),
        ("buffer_bytes: much", "source.buffer_bytes: expected a size in bytes", "write a number, or one with a unit"),
        ("buffer_bytes: 1 B", "source.buffer_bytes: expected a whole number >= 1024", "how much is read at once"),
        ("logins: {h: {usr: u}}", "source.logins.h.usr: unknown key", "did you mean `user`?"),
        ("logins: {h: {password: p}}", "source.logins.h.user: missing", "add `user:`"),
        ("admin: {user: 5}", "source.admin.user: expected text, got a whole number", ""),
        ("admin: 5", "source.admin: expected a mapping (key: value), got a whole number", ""),
        ("mode: file, hosts: [a]", "source: `mode: file` has a place on one host only", "remove `hosts`"),
    ],
)
def test_a_wrong_setting_of_its_own_says_where_and_what(fail, keys: str, message: str, hint: str):
    told = fail(with_source(keys))
    assert told[0] == message
    assert told[1].startswith(hint)


@pytest.mark.parametrize("value", ["0", "100", "'100'", "-1"])
def test_a_number_beyond_its_limits_says_them(fail, value: str):
    told = fail(BROOK.replace("server_id: 7", f"server_id: {value}"))
    assert told == ("source.server_id: expected a whole number >= 1 and <= 99", "a number that no other replica has")


def test_a_required_setting_of_its_own_is_missed(fail):
    told = fail(BROOK.replace(", server_id: 7", ""))
    assert told == ("source.server_id: missing", "add `server_id:` (a number that no other replica has)")
    assert fail(BROOK.replace(", format: json", ""))[0] == "sinks.replica.format: missing"


def test_a_setting_of_another_kind_of_source_says_whose_it_is(fail):
    told = fail(with_source("publication: mine"))
    assert told[0] == "source.publication: unknown key"
    assert told[1] == "`publication` is a setting of postgres://, postgresql:// and of no other"


def test_a_setting_of_another_kind_of_sink_says_whose_it_is(fail):
    told = fail(BROOK.replace("lake://h/d", "sqlite:///x.db"))
    hint = "`format` is a setting of file://, kafka://, lake:// and of no other"
    assert told == ("sinks.replica.format: unknown key", hint)


def test_where_the_url_is_missing_it_is_the_url_that_is_missed(fail):
    assert fail(BROOK.replace('url: "brook://h", ', ""))[0] == "source.url: missing"
    assert fail(BROOK.replace('url: "brook://h"', "ulr: x"))[0] == "source.ulr: unknown key"


def test_a_connector_that_takes_a_name_of_all_is_told_so(read):
    with pytest.raises(TypeError, match="GreedySettings has max_rows, which every Sink has already"):
        read(BROOK.replace("lake://h/d", "greedy://h").replace(", format: json", ""))


def test_settings_that_no_file_has_said_are_checked_as_well(read):
    source = config.Source("postgresql://h/d", ("*",), own={"slto": "x"})
    with pytest.raises(ConfigError, match=r"^source\.slto: unknown key$") as caught:
        registry.make_source(config.Pipeline("p", source, {}))
    assert caught.value.hint == "did you mean `slot`?"
    pipeline = config.Pipeline("p", source, {"n": config.Sink("null://", own={"format": "json"})})
    with pytest.raises(ConfigError, match=r"^sinks\.n\.format: unknown key$"):
        registry.make_sink(pipeline, "n")


# --- connectors that are not here


def test_a_connector_without_its_driver_is_the_pip_command_when_it_is_used_and_not_before(read):
    """Capture beside the database needs no driver of a sink."""
    text = BROOK.replace("brook://h", "undriven://h").replace("lake://h/d", "undriven://h")
    pipeline = read(text)
    assert (pipeline.source.own, pipeline.sinks["replica"].own) == ({"server_id": 7}, {"format": "json"})
    with pytest.raises(MissingExtra, match=r"^pip install 'tailrace\[undriven\]'$"):
        registry.make_source(pipeline)
    with pytest.raises(MissingExtra, match=r"^pip install 'tailrace\[undriven\]'$"):
        registry.make_sink(pipeline, "replica")


def test_an_unknown_scheme_is_told_when_it_is_used(read):
    with pytest.raises(ConfigError, match="no source is known for oracle:// URLs"):
        registry.make_source(read(BROOK.replace("brook://h", "oracle://h")))


def test_what_all_have_is_checked_also_where_the_connector_is_not_here(fail):
    text = BROOK.replace("brook://h", "oracle://h").replace('tables: ["*"]', "tables: 5")
    assert fail(text)[0] == "source.tables: expected a list, got a whole number"


def test_a_file_imports_the_connectors_that_it_names_and_no_others(tmp_path):
    path = tmp_path / "pipeline.yml"
    path.write_text("{name: a, source: {url: 'postgresql://h/d', tables: ['*']}, sinks: {r: {url: 'null://'}}}")
    script = f"""
        import sys
        from tailrace.config import load
        assert "psycopg" not in sys.modules
        load({str(path)!r})
        assert "psycopg" in sys.modules
        found = {{"pymysql", "sqlite3", "adbc_driver_sqlite", "pyspark"}} & set(sys.modules)
        assert not found, found
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


# --- on the way


def test_they_reach_the_capture_process_and_a_task(read):
    text = BROOK.replace("brook://h", "postgresql://h/d").replace("server_id: 7", "slot: mine, create: false")
    pipeline = read(text)
    order = Order(pipeline, "0/1", SourceIdentity("1", "1", "d", "mine"))
    arrived = msgspec.json.decode(msgspec.json.encode(order), type=Order)
    assert arrived == order
    source = pickle.loads(pickle.dumps(PostgresSource(arrived.pipeline)))
    assert (source.slot, source.settings) == ("mine", PostgresSettings(slot="mine", create=False))


def test_no_secret_of_theirs_is_in_a_repr(read):
    keys = 'logins: {h: {user: u, password: hunter2}}, hosts: ["http://u:hunter2@h"]'
    pipeline = read(with_source(keys).replace("format: json", "format: json, api_key: hunter2"))
    settings = pipeline.source_settings(BrookSettings), pipeline.sink_settings("replica", LakeSettings)
    for shown in (repr(pipeline), str(pipeline), pretty_repr(pipeline), repr(settings), pretty_repr(settings)):
        assert "hunter2" not in shown
        assert "***" in shown
    assert "'server_id': 7" in repr(pipeline)


def test_no_value_of_theirs_is_in_an_error(fail):
    for keys in ("mode: hunter2", "hosts: hunter2", "admin: hunter2", "buffer_bytes: hunter2", "logins: {h: hunter2}"):
        assert "hunter2" not in " ".join(fail(with_source(keys)))


# --- JSON Schema


def is_valid(document: Any) -> bool:
    return jsonschema.Draft202012Validator(json_schema()).is_valid(document)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"url": "postgresql://h/d", "slot": "mine", "create": False}, True),
        ({"url": "postgres://h/d"}, True),
        ({"url": "postgres://h/d", "slto": "mine"}, False),
        ({"url": "postgres://h/d", "slot": "Mine!"}, False),
        ({"url": "postgres://h/d", "own": {}}, False),
        ({"url": "brook://h", "server_id": 7, "buffer_bytes": "1 MiB", "logins": {"h": {"user": "u"}}}, True),
        ({"url": "brook://h", "server_id": 7, "logins": {"h": {"usr": "u"}}}, False),
        ({"url": "brook://h", "server_id": 7, "slot": "mine"}, False),
        ({"url": "brook://h"}, False),
        ({"url": "oracle://h"}, True),
        ({"url": "oracle://h", "slot": "mine"}, False),
    ],
)
def test_the_schema_knows_the_settings_of_every_connector(source: dict[str, Any], expected: bool):
    document = {"name": "a", "source": source | {"tables": ["*"]}, "sinks": {"r": {"url": "sqlite:///x.db"}}}
    assert is_valid(document) is expected


def test_the_schema_knows_the_settings_of_sinks():
    def of(sink: dict[str, Any]) -> Any:
        return {"name": "a", "source": {"url": "postgres://h/d", "tables": ["*"]}, "sinks": {"r": sink}}

    assert is_valid(of({"url": "lake://h", "format": "json", "max_bytes": "1 GiB"}))
    assert not is_valid(of({"url": "lake://h"}))
    assert not is_valid(of({"url": "sqlite:///x.db", "format": "json"}))


def test_the_schema_takes_the_file_that_init_writes():
    assert is_valid(yaml.safe_load(init.TEMPLATE))
