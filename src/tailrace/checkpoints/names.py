"""Names of checkpoints. Each is a part of a file's, an object's or a lock's name, so it has few kinds of characters."""

from __future__ import annotations

import re

from tailrace.errors import ConfigError

LONGEST = 100
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST - 1}}}", re.ASCII)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raises ConfigError."""
    if not is_name(name):
        raise ConfigError(
            f"{name!r} can not be the name of a checkpoint",
            hint=f"use up to {LONGEST} letters, digits, `_`, `-` and `.`; the first is a letter, a digit or `_`",
        )
