"""docs/checkpoints.md: what it shows runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tailrace.cli.main import parser

TEXT = (Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
COMMANDS = re.findall(r"^tailrace (.*)$", TEXT, re.MULTILINE)


def test_its_program_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [program] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(program, "docs/checkpoints.md", "exec"), {})
    assert (tmp_path / "mine.db").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_understood(command):
    assert parser().parse_args(shlex.split(command.replace("[", "").replace("]", ""))).run
