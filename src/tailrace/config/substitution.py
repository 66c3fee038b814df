"""`${VARIABLE}` and `${VARIABLE:-default}` inside the values of a document.

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


def substitute(value: Any, environ: Mapping[str, str], path: str = "") -> Any:
    """The document with variables replaced; keys stay as they are."""
    match value:
        case dict():
            return {key: substitute(item, environ, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
        case list():
            return [substitute(item, environ, f"{path}[{index}]") for index, item in enumerate(value)]
        case str():
            return _expand(value, environ, path)
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
