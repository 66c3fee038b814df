"""The parts of a preflight that need no server."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import tailrace
from tailrace import config
from tailrace.errors import ConfigError, MissingExtra, SinkError, SourceRefused, SourceUnavailable, StateError
from tailrace.pipeline import preflight
from tailrace.sources.base import Finding, Level
from tailrace.sources.findings import fail, failure, number_of, ok, some_of, warn
from tailrace.sources.postgres.facts import SlotState
from tailrace.sources.postgres.preflight import slot_findings, version_finding
from tailrace.sources.postgres.preflight_tables import is_wildcard, likely_meant
from tailrace.spark import versions


def test_findings_that_do_not_fail_raise_nothing():
    preflight.raise_if_failing([ok("a", "b"), warn("c", "d", "e")])


def test_the_first_failing_finding_is_raised_as_its_error_with_its_fix_as_hint():
    findings = [warn("a", "b"), fail("c", "full", "empty it", SourceUnavailable), fail("d", "second", "")]
    with pytest.raises(SourceUnavailable, match=r"^full$") as caught:
        preflight.raise_if_failing(findings)
    assert caught.value.hint == "empty it"
    assert caught.value.retry


def test_a_failing_finding_of_somebody_else_s_source_is_a_refusal():
    with pytest.raises(SourceRefused, match="no"):
        preflight.raise_if_failing([Finding("a", Level.FAIL, "no")])


def test_an_error_s_own_hint_is_preferred_to_a_general_fix():
    assert failure("a", SourceRefused("no", hint="mine"), "general").fix == "mine"
    assert failure("a", SourceRefused("no"), "general").fix == "general"


def test_a_failure_pickles():
    made = fail("a", "b", "c", StateError)
    assert pickle.loads(pickle.dumps(made)) == made


def test_few_names_are_listed_and_many_are_counted():
    assert some_of(["b", "a"]) == "a, b"
    assert some_of([f"t{n}" for n in range(5)]) == "t0, t1, t2 and 2 more"
    assert number_of(1, "table") == "1 table"
    assert number_of(1200, "table") == "1,200 tables"


@pytest.mark.parametrize(
    ("pattern", "expected"), [("public.*", True), ("public.a?", True), ("public.a", False), ('public."a*"', False)]
)
def test_stars_in_quotes_are_no_wildcards(pattern, expected):
    assert is_wildcard(pattern) is expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("public.oders", "public.orders"),
        ('public."Orders"', "public.orders"),
        ("shop.orders", "public.orders"),
        ("public.invoices", None),
    ],
)
def test_a_guess_is_made_from_the_table_s_own_name(pattern, expected):
    assert likely_meant(pattern, [("public", "orders"), ("public", "u")]) == expected


@pytest.mark.parametrize(("number", "level"), [(140021, Level.FAIL), (150000, Level.OK), (180001, Level.OK)])
def test_a_server_older_than_15_is_refused(number, level):
    assert version_finding(number).level is level


def test_a_version_is_shown_as_people_write_it():
    assert version_finding(180001).message == "PostgreSQL 18.1"
    assert version_finding(140021).message == "PostgreSQL 14.21 is too old: 15 or newer is needed"


class Here:
    """The server as far as a slot is concerned."""

    database = "shop"


def slot(**changes):
    facts = {"kind": "logical", "plugin": "pgoutput", "database": "shop", "active_pid": None, "has_position": True}
    facts |= {"wal_status": "reserved", "invalidation": None, "is_two_phase": False}
    return SlotState(**facts | {"retained_size": "16 MB"} | changes)


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({}, Level.OK, "the server holds 16 MB"),
        ({"plugin": "test_decoding"}, Level.FAIL, "belongs to the plugin test_decoding, not pgoutput"),
        ({"wal_status": "unreserved", "active_pid": 7}, Level.WARN, "about to invalidate"),
        ({"wal_status": "lost"}, Level.FAIL, "was invalidated by the server: "),
        ({"invalidation": "idle_timeout"}, Level.FAIL, "was invalidated by the server (idle_timeout): "),
    ],
)
def test_a_slot_s_state_is_said(changes, level, said):
    found = list(slot_findings("mine", slot(**changes), Here(), may_create=True))
    assert {finding.level for finding in found} == {level}
    assert said in found[0].message


def state(folder, max_bytes=1):
    return list(preflight.state_findings(str(folder), max_bytes))


def test_a_state_directory_that_can_be_made_is_not_made(tmp_path):
    assert [f.message for f in state(tmp_path / "a" / "b")] == [f"{tmp_path}/a/b will be created"]
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_is_there_stays_as_it_is(tmp_path):
    assert [f.message for f in state(tmp_path)] == [f"{tmp_path} is writable"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_state_directory_is_refused(tmp_path):
    (tmp_path / "state").touch()
    (finding,) = state(tmp_path / "state" / "deep")
    assert finding.message.endswith(f"{tmp_path}/state is not a folder")
    with pytest.raises(StateError):
        preflight.raise_if_failing([finding])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, not even from root")
def test_a_state_directory_that_cannot_be_written_is_refused():
    (finding,) = state("/proc/tailrace")
    assert finding.level is Level.FAIL
    assert "make /proc writable" in finding.fix


def test_a_disk_smaller_than_the_log_may_grow_is_a_warning(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    assert state(tmp_path, 2 << 30)[1].message == (
        "1.0 GiB are free on the disk, and the change log may grow to 2.0 GiB"
    )


def test_what_the_log_has_taken_already_is_room_for_the_log(tmp_path, monkeypatch):
    (tmp_path / "segment").write_bytes(b"12345")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5))
    assert len(state(tmp_path, 10)) == 1
    assert len(state(tmp_path, 11)) == 2


def test_a_state_directory_on_an_unknown_store_is_refused():
    (finding,) = state("nowhere://bucket/state")
    assert finding.level is Level.FAIL
    assert "cannot reach the state directory nowhere://bucket/state" in finding.message


def pipeline(tmp_path, sink, source="postgresql://h/d"):
    sinks = {"replica": config.Sink(url=sink)}
    return config.Pipeline(
        name="shop", source=config.Source(url=source, tables=("public.*",)), sinks=sinks, state=str(tmp_path / "state")
    )


def test_a_sqlite_sink_in_a_missing_folder_is_refused_with_its_fix(tmp_path):
    finding = preflight.sink_finding(pipeline(tmp_path, f"sqlite:///{tmp_path}/none/r.db"), "replica")
    assert finding.subject == "sink replica"
    assert finding.fix == f"mkdir -p {tmp_path}/none"
    with pytest.raises(SinkError):
        preflight.raise_if_failing([finding])


def test_a_sink_that_can_be_opened_is_ok(tmp_path):
    finding = preflight.sink_finding(pipeline(tmp_path, f"sqlite:///{tmp_path}/r.db"), "replica")
    assert finding.level is Level.OK


@pytest.mark.parametrize("url", ["kafka://127.0.0.1:1", "file:///nowhere/below"])
def test_transforms_are_refused_for_a_sink_of_changes_before_it_is_asked_for(tmp_path, url):
    shaped = msgspec.structs.replace(
        pipeline(tmp_path, url), transforms={"public.items": config.Transform(drop=("secret",))}
    )
    finding = preflight.sink_finding(shaped, "replica")
    assert finding.level is Level.FAIL
    assert finding.message == "sink replica, which takes every change, can not have transforms"
    assert "a pipeline of its own" in finding.fix


def test_an_unknown_sink_or_source_is_a_finding_and_no_exception(tmp_path):
    odd = pipeline(tmp_path, "oracle://u:secret@h/d", source="oracle://u:secret@h/d")
    found = [preflight.sink_finding(odd, "replica"), *preflight.source_findings(odd)]
    assert [f.level for f in found] == [Level.FAIL, Level.FAIL]
    assert "secret" not in str(found)
    with pytest.raises(ConfigError):
        preflight.raise_if_failing(found)


def test_a_pyspark_that_cannot_be_imported_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    finding = preflight.pyspark_finding()
    assert finding.fix == "pip install 'pyspark>=4.1,<4.4'"
    with pytest.raises(MissingExtra):
        preflight.raise_if_failing([finding])


@pytest.mark.parametrize("version", ["3.5.1", "4.0.3", "4.4.0", "5.0.0.dev0"])
def test_a_pyspark_that_is_too_old_or_too_new_is_refused(monkeypatch, version):
    monkeypatch.setattr("pyspark.__version__", version)
    said = f"pyspark {version} is not one that tailrace runs on: it needs 4.1 to 4.3"
    assert preflight.pyspark_finding().message == said


def test_a_run_with_another_pyspark_says_so_before_it_needs_any_of_it(tmp_path):
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.1'")
    (tmp_path / "p.yml").write_text(
        "name: p\nsource: {url: 'postgresql://h/d', tables: ['*.*']}\nsinks: {replica: {url: 'sqlite:///r.db'}}"
    )
    command = [sys.executable, "-m", "tailrace.cli.main", "run", "p.yml"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.stderr.splitlines() == [
        "error: pyspark 3.5.1 is not one that tailrace runs on: it needs 4.1 to 4.3",
        f"hint: {versions.INSTALL}",
    ]
    assert done.returncode == 2


def test_the_pyspark_of_this_environment_will_do():
    assert preflight.pyspark_finding().level is Level.OK


def test_the_versions_that_are_accepted_are_those_that_are_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"pip install '{next(d for d in project['dependencies'] if 'pyspark' in d)}'" == versions.INSTALL


def test_a_session_of_an_older_spark_is_told_so_and_not_that_a_module_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tailrace.spark.datasource", None)  # it can not be imported there
    with pytest.raises(ConfigError, match=r"pyspark 3\.5\.7 is not one that tailrace runs on"):
        tailrace.register(SimpleNamespace(version="3.5.7"))
