"""URLs of sources and sinks: their scheme, their secrets, and the files they point to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigError
from tailrace.registry import scheme

HIDDEN = "***"
_SECRET_KEY = r"[^=&?]*(?:password|passwd|passfile|secret|token|access[._-]?key|credential)[^=&]*"
_SECRET_PARAMETER = re.compile(rf"(?<=[?&])({_SECRET_KEY})=[^&#]*", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_SECRET_SETTING = re.compile(rf"{_SECRET_KEY}|(?:api|private)[._-]?key|[._]pem$|jaas", re.IGNORECASE)


def redact(url: str) -> str:
    """The URL with every password hidden, also when the URL is malformed: hiding too much is the safe error."""
    start, separator, rest = url.partition("://")
    if not separator:
        return url if scheme(url) == url else f"{scheme(url)}:{HIDDEN}"
    authority_end = re.search(r"[/?#]|$", rest).start()  # type: ignore[union-attr]  # `$` always matches
    end = rest.rfind("@", 0, authority_end)
    if end < 0:
        end = rest.partition("?")[0].rfind("@")  # a password with an unescaped slash
    if end >= 0 and ":" in rest[:end]:
        rest = f"{rest.partition(':')[0]}:{HIDDEN}{rest[end:]}"
    return start + separator + _SECRET_PARAMETER.sub(rf"\1={HIDDEN}", rest)


def redact_setting(key: str, value: Any) -> Any:
    """A setting's value without secrets: those of URLs, and what stands under a key that sounds like one."""
    match value:
        case None | bool():
            return value
        case dict():
            return {name: redact_setting(f"{key}.{name}", each) for name, each in value.items()}
        case _ if _SECRET_SETTING.search(key):
            return HIDDEN
        case list() | tuple():
            return type(value)(redact_setting(key, each) for each in value)
        case str() if key == "url" or "://" in value:
            return redact(value)
        case _:
            return value


def sqlite_path(url: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    path = url.partition("?")[0].removeprefix("sqlite:///")
    if not url.startswith("sqlite:///") or path in ("", ":memory:"):
        raise ConfigError(
            "a sqlite URL names a file",
            hint="write sqlite:///file.db, or sqlite:////folder/file.db for an absolute path",
        )
    return Path(path).expanduser()


def resolve_url(url: str, folder: Path) -> str:
    """The URL with a SQLite file's path made absolute; other URLs as they are, once they can be read in one way."""
    if scheme(url) != "sqlite":
        _refuse_ambiguous(url)
        return url
    _, question, parameters = url.partition("?")
    return f"sqlite:///{folder / sqlite_path(url)}{question}{parameters}"


def _refuse_ambiguous(url: str) -> None:
    """Whoever takes a password for a part of the server's name prints it."""
    rest = url.partition("://")[2]
    place = rest.partition("?")[0]
    authority = re.split("[/#]", place, maxsplit=1)[0]
    user, _, hosts = authority.rpartition("@")
    is_ambiguous = (
        re.search(r"\s|%(?![0-9A-Fa-f]{2})", rest)
        or re.search(r"[@\[\]]", user)
        or "@" in place[len(authority) :]
        or not all(_HOST.fullmatch(host) for host in hosts.split(","))
    )
    if is_ambiguous:
        raise ConfigError(
            "the URL can not be read: its user, password or port has characters that mean something else in a URL",
            hint="write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23, [ as %5B, % as %25, a space as %20",
        )


def resolve_folder(path: str, folder: Path) -> str:
    """A state folder made absolute; the URL of an object store as it is."""
    return path if "://" in path else str(folder / Path(path).expanduser())
