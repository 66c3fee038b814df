"""Finding the Java that Spark will use, with programs that pretend to be one."""

from __future__ import annotations

import os

import pytest

from tailrace.pipeline.preflight import java_finding
from tailrace.sources.base import Level
from tailrace.spark.java import parse_version


@pytest.fixture
def java(tmp_path):
    """The folder of a `java` that says what it is told to, as a JAVA_HOME."""

    def java(says: str) -> dict[str, str]:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        program.chmod(0o755)
        return {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_412"', 8),
        ("command not found", None),
    ],
)
def test_the_major_version_is_read(text, version):
    assert parse_version(text) == version


def test_a_new_enough_java_is_ok(java):
    environment = java('openjdk version "21.0.1"')
    found = java_finding(environment)
    assert found.level is Level.OK
    assert found.message == f"Java 21 at {environment['JAVA_HOME']}/bin/java"


def test_an_old_java_is_refused_with_the_way_to_a_newer_one(java):
    found = java_finding(java('java version "1.8.0_412"'))
    assert found.level is Level.FAIL
    assert found.message.endswith("is Java 8")
    assert "apt-get install" in found.fix


def test_a_java_that_says_nothing_is_refused(java):
    assert "does not say its version" in java_finding(java("hello")).message


def test_a_java_home_without_java_is_refused_even_if_the_path_has_one(tmp_path):
    found = java_finding({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert found.level is Level.FAIL
    assert f"JAVA_HOME ({tmp_path}) has none" in found.message


def test_a_java_on_the_path_is_found(java, tmp_path):
    java('openjdk version "17.0.1"')
    assert java_finding({"PATH": str(tmp_path / "bin") + os.pathsep + os.environ["PATH"]}).level is Level.OK


def test_no_java_at_all_is_refused(tmp_path):
    assert "none is on the PATH" in java_finding({"PATH": str(tmp_path)}).message
