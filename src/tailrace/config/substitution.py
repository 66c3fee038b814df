"""`${VARIABLE}` and `${VARIABLE:-default}` inside the values of a document, and sizes written as `64 MiB`.

Substitution comes after YAML has been parsed, so a secret may hold any character. In the `user:password@` part of a URL
a value is percent-encoded as well: the variable holds the password as it is. `$${` stands for a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tailrace.errors import ConfigError

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_SIZE_KEY = re.compile(r"(source\.snapshot|sinks\.[^.]+|log)\.\w+_bytes")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def substitute(value: Any, environ: Mapping[str, str], path: str = "") -> Any:
    """The document with variables and sizes replaced; keys stay as they are."""
    match value:
        case dict():
            return {key: substitute(item, environ, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
        case list():
            return [substitute(item, environ, f"{path}[{index}]") for index, item in enumerate(value)]
        case str():
            text = _expand(value, environ, path)
            return _size(text, path) if _SIZE_KEY.fullmatch(path) else text
        case _:
            return value


def _expand(text: str, environ: Mapping[str, str], path: str) -> str:
    userinfo = range(text.find("://") + 3, text.rfind("@")) if "://" in text else range(0)

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found.groups()
        if name is None:
            raise ConfigError(
                f"{path}: `${{` begins a variable that never ends", hint="write ${NAME}, or $${ for a plain ${"
            )
        value = environ.get(name) or default if default is not None else environ.get(name)
        if value is None:
            raise ConfigError(
                f"{path}: the environment variable {name} is not set",
                hint=f"set it with `export {name}=…`, or give a default with ${{{name}:-…}}",
            )
        return quote(value, safe="") if found.start() in userinfo else value

    return _VARIABLE.sub(replace, text)


def _size(text: str, path: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{path}: expected a size in bytes", hint="write a number, or one with a unit such as 64 MiB")
    number, unit = float(found[1]), (found[2] or "").upper()
    return int(number * (1024 if unit.endswith("I") or not unit else 1000) ** _POWERS[unit[:1]])
