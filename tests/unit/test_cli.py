"""The command line: what it prints, and with which exit code it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tailrace.cli import init
from tailrace.cli.main import COMMANDS, main, parser
from tailrace.config import load
from tailrace.errors import ConfigError, MissingExtra, PositionLost
from tailrace.sources.postgres.settings import PostgresSettings

ROOT = Path(__file__).parents[2]
NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]


def code_of(arguments: list[str]) -> int | str | None:
    """The exit code of a call that argparse ends by itself."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.fixture
def failing(monkeypatch):
    """Make `tailrace schema` raise an error."""

    def failing(error: BaseException) -> None:
        def run(_: object) -> int:
            raise error

        monkeypatch.setattr("tailrace.cli.schema.run", run)

    return failing


# --- help


def test_help_names_every_command(capsys):
    assert code_of(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n    {name}" in out for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name, capsys):
    assert code_of([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: tailrace {name}")


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run", "--nonsense"], ["init", "a", "b"]])
def test_wrong_use_ends_with_2(arguments, capsys):
    assert code_of(arguments) == 2
    assert "usage: tailrace" in capsys.readouterr().err


def test_the_version_is_the_project_s(capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert code_of(["--version"]) == 0
    assert capsys.readouterr().out == f"tailrace {version}\n"


def test_the_command_line_imports_nothing_heavy():
    heavy = "{'pyspark', 'pyarrow', 'numpy', 'psycopg', 'rich'}"
    code = f"import sys; from tailrace.cli.main import parser; parser(); print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- init


def test_init_writes_a_file_that_loads(tmp_path, capsys):
    path = tmp_path / "pipeline.yml"
    assert main(["init", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert load(path, {"DB_PASSWORD": "x"}).name == "shop"


def test_init_shows_the_defaults_it_comments_out(tmp_path):
    """With every commented key switched on, nothing but the examples differs from the default."""
    path = tmp_path / "pipeline.yml"
    path.write_text(init.TEMPLATE)
    plain = load(path, {"DB_PASSWORD": "x"})
    lines = [line.replace("# ", "", 1) if _is_a_key(line) else line for line in init.TEMPLATE.splitlines()]
    path.write_text("\n".join(lines))
    full = load(path, {"DB_PASSWORD": "x"})
    assert full.spark.conf, "the commented keys were switched on"
    assert full.log == plain.log
    own, defaults = full.source_settings(PostgresSettings), PostgresSettings()
    assert (own.slot_of("shop"), own.publication_of("shop")) == (defaults.slot_of("shop"),) * 2
    assert (own.create, own.binary) == (defaults.create, defaults.binary)
    assert full.source.snapshot.chunk_bytes == plain.source.snapshot.chunk_bytes
    for name in ("acknowledge", "heartbeat_ms"):
        assert getattr(full.source, name) == getattr(plain.source, name)
    for name in ("max_rows",):
        assert getattr(full.sinks["replica"], name) == getattr(plain.sinks["replica"], name)


def _is_a_key(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and words[0] == "#" and words[1].endswith(":") and words[1].islower()


def test_init_does_not_overwrite(tmp_path, capsys):
    path = tmp_path / "mine.yml"
    path.write_text("mine")
    assert main(["init", str(path)]) == 2
    assert path.read_text() == "mine"
    assert "--force" in capsys.readouterr().err


def test_init_overwrites_when_forced(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text("mine")
    assert main(["init", "--force", str(path)]) == 0
    assert path.read_text() == init.TEMPLATE


def test_init_into_a_missing_folder_is_a_sentence(tmp_path, capsys):
    assert main(["init", str(tmp_path / "none" / "pipeline.yml")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


# --- schema


def test_schema_prints_json(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "tailrace pipeline"


# --- errors


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ConfigError("it is wrong", hint="mend it"), 2, "error: it is wrong\nhint: mend it\n"),
        (MissingExtra("pip install 'tailrace[x]'"), 2, "error: pip install 'tailrace[x]'\n"),
        (PositionLost("gone"), 1, f"error: gone\nhint: {PositionLost.hint}\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code(failing, capsys, error, code, printed):
    failing(error)
    assert main(["schema"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", printed)


@pytest.mark.parametrize("arguments", [["--debug", "schema"], ["schema", "--debug"]])
def test_debug_shows_the_traceback(failing, arguments):
    failing(ConfigError("it is wrong"))
    with pytest.raises(ConfigError):
        main(arguments)


# --- which pipeline

ABOUT_A_PIPELINE = ["check", "run", "status", "verify", "drop"]


@pytest.mark.parametrize("command", ABOUT_A_PIPELINE)
def test_a_missing_file_is_said_before_anything_starts(command, tmp_path, capsys):
    assert main([command, str(tmp_path / "none.yml")]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ABOUT_A_PIPELINE)
def test_pipeline_yml_is_the_default(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([command]) == 2
    assert capsys.readouterr().err.startswith("error: pipeline.yml: no such file\nhint: `tailrace init`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "postgresql://h/d"], "error: --to is missing\n"),
        (["--to", "sqlite:///x.db"], "error: --from is missing\n"),
        (["--tables", "public.*"], "error: --from is missing\n"),
        (["a.yml", "--from", "x:"], "error: both the file a.yml and --from are given\n"),
        (["--from", "nonsense", "--to", "sqlite:///x.db"], "error: source.url: expected text of another form\n"),
    ],
)
def test_wrong_combinations_are_wrong_use(arguments, message, capsys):
    assert main(["run", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_run_takes_urls():
    args = parser().parse_args(
        ["run", "--from", "postgresql://h/d", "--to", "sqlite:///x.db", "--tables", "a.*", "!a.b", "--until-current"]
    )
    assert (args.from_url, args.to_url, args.tables) == ("postgresql://h/d", "sqlite:///x.db", ["a.*", "!a.b"])
    assert args.until_current
