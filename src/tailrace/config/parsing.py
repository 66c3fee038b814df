"""YAML files. Errors name the line; whoever asked for the file names the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tailrace.errors import ConfigError


def parse_file(path: Path, missing: str | None = None) -> Any:
    """What the file holds. Raises ConfigError; `missing` is its hint where there is no such file."""
    return _parse(_text(path, missing))


def _text(path: Path, missing: str | None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file", hint=missing) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", hint="save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error


_YAML_HINT = 'put a value that begins with * or ! in quotes, such as "!public.audit_*"'


class _Loader(yaml.SafeLoader):
    """YAML without surprises: a key given twice is an error, as both can not be meant."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key `{key.value}` twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        is_mark = re.search(r"\b(alias|tag)\b", f"{error.context} {error.problem}")
        problem = "`*` and `!` have a meaning of their own" if is_mark else error.problem
        raise ConfigError(f"{where}not valid YAML: {problem}", hint=_YAML_HINT) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"not valid YAML: {type(error).__name__}") from None
