"""From msgspec's validation error to a sentence with the path in the file, what was expected, and the fix.

Values are never repeated: they may hold secrets.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import msgspec
from msgspec import inspect

from tailrace.config.pipeline import Pipeline
from tailrace.errors import ConfigError

_PLACE = re.compile(r" - at (`key` in )?`\$(.*)`$", re.DOTALL)
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_WORDS = {
    "`object`": "a mapping (key: value)",
    "`array`": "a list",
    "`null`": "nothing",
    "`str`": "text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`bool | int | float | str`": "text, a number, true or false",
}


def explain(error: msgspec.ValidationError, document: Any) -> ConfigError:
    """The `ConfigError` to raise for what `msgspec.convert(document, Pipeline)` raised."""
    message = str(error)
    place = _PLACE.search(message)
    what = message[: place.start()] if place else message
    steps = [name or index for name, index in _STEP.findall(place[2])] if place else []
    path = _name_keys(document, steps)
    field = _FIELD.match(what)
    if field and field[1].startswith("missing"):
        return _missing([*path, field[2]])
    if field:
        return _unknown(path, field[2])
    subject = "a key: " if place and place[1] else ""
    return _wrong(path, subject + what[:1].lower() + what[1:])


def _missing(path: list[str]) -> ConfigError:
    about = _description(path)
    return ConfigError(f"{_text(path)}: missing", hint=f"add `{path[-1]}:`" + (f" ({about})" if about else ""))


def _unknown(path: list[str], key: str) -> ConfigError:
    known = _fields(path)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}"
    return ConfigError(f"{_text([*path, key])}: unknown key", hint=hint)


def _wrong(path: list[str], what: str) -> ConfigError:
    what = re.sub(" matching regex .*", " of another form", what, flags=re.DOTALL)
    for name, word in _WORDS.items():
        what = what.replace(name, word)
    about = _description(path)
    return ConfigError(f"{_text(path) or 'the file'}: {what}", hint=about)


def _name_keys(document: Any, steps: list[str]) -> list[str]:
    """msgspec writes `[...]` for the key of a mapping; the key is found by trying each one alone."""
    path: list[str] = []
    here = document
    for step in steps:
        name = next((key for key in here if not _is_valid(document, path, here, key)), step) if step == "..." else step
        path.append(str(name))
        here = here[int(step)] if isinstance(here, list) else here[name]
    return path


def _is_valid(document: Any, path: list[str], mapping: dict[str, Any], key: str) -> bool:
    alone: Any = {key: mapping[key]}
    for depth in reversed(range(len(path))):
        parent = document
        for step in path[:depth]:
            parent = parent[step]
        alone = {**parent, path[depth]: alone}
    try:
        msgspec.convert(alone, Pipeline, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _text(path: list[str]) -> str:
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path).lstrip(".")


def _kind_at(path: list[str]) -> inspect.Type:
    kind: inspect.Type = inspect.type_info(Pipeline)
    for step in path:
        kind = _step_into(_bare(kind), step)
    return kind


def _step_into(kind: inspect.Type, step: str) -> inspect.Type:
    match kind:
        case inspect.StructType():
            return next((field.type for field in kind.fields if field.encode_name == step), inspect.AnyType())
        case inspect.DictType():
            return kind.value_type
        case _:
            return inspect.AnyType()


def _bare(kind: inspect.Type) -> inspect.Type:
    """The type without the notes msgspec wraps around it."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return kind


def _fields(path: list[str]) -> list[str]:
    kind = _bare(_kind_at(path))
    return [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []


def _description(path: list[str]) -> str | None:
    kind = _kind_at(path)
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    notes = [option.extra_json_schema or {} for option in options if isinstance(option, inspect.Metadata)]
    return next((note["description"] for note in notes if "description" in note), None)
