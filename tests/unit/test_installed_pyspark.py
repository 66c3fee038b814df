"""Which pyspark the workers of Spark import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tailrace.spark.installed import START, prefer_installed_pyspark


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


def test_a_python_process_of_ours_prefers_the_installed_pyspark_and_starts_as_it_is_told_to(tmp_path: Path) -> None:
    """Also where somebody has a `sitecustomize` of his own."""
    (tmp_path / "sitecustomize.py").write_text("print('his own')")
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    assert archive.is_file()
    path = os.pathsep.join([str(archive), str(START), str(tmp_path)])
    script = "import pyspark, sys; print(pyspark.__file__); print(*sys.path)"
    printed = subprocess.check_output([sys.executable, "-c", script], env={"PYTHONPATH": path}, text=True)
    own, package, found = printed.splitlines()
    assert (own, package) == ("his own", pyspark.__file__)
    assert str(archive) not in found
    assert str(START) not in found


def test_a_python_process_of_ours_starts_without_a_word() -> None:
    """Also where nobody has a `sitecustomize`: Python itself looks for the module that it has just imported."""
    told = subprocess.run([sys.executable, "-c", ""], env={"PYTHONPATH": str(START)}, capture_output=True, check=True)
    assert told.stdout + told.stderr == b""
