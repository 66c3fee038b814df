"""Which pyspark the workers of Spark import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.spark.daemon import prefer_installed_pyspark


def archive_in(folder: Path) -> str:
    return str(folder / "pyspark" / "python" / "lib" / "pyspark.zip")


def test_the_archive_of_an_installed_pyspark_leaves_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", ["", archive_in(tmp_path), "/elsewhere", str(tmp_path)])
    prefer_installed_pyspark()
    assert sys.path == ["", "/elsewhere", str(tmp_path)]


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_archive_of_another_spark_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    """Of one whose package is not on the path, or which has none beside it."""
    if is_installed:
        (tmp_path / "pyspark").mkdir()
        (tmp_path / "pyspark" / "__init__.py").touch()
    path = [archive_in(tmp_path), "/opt/spark/python/lib/pyspark.zip", "/elsewhere"]
    monkeypatch.setattr(sys, "path", list(path))
    prefer_installed_pyspark()
    assert sys.path == path
