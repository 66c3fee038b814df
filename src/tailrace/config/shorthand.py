"""Short ways to write a value of the pipeline file: a mark on its type that both reading and the JSON Schema follow."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

from msgspec import Meta

MARK = "x-short"
ONE = "[]"  # a single value, where a list may be
PATH = "path"  # the path of a file that holds it; `loading` puts in what it holds


def short(form: str, description: str | None = None, **limits: Any) -> Meta:
    """`ONE`, `PATH`, or the key of a mapping that a plain text stands for."""
    return Meta(description=description, extra_json_schema={MARK: form}, **limits)


def expanded(value: Any, kind: Any) -> Any:
    """The value as it is written in full."""
    form = _form(kind)
    if form == ONE:
        return value if value is None or isinstance(value, list | tuple) else [value]
    return {form: value} if isinstance(value, str) and form not in (None, PATH) else value


def _form(kind: Any) -> str | None:
    if get_origin(kind) is not Annotated:
        return None
    inner, *notes = get_args(kind)
    marks = [(note.extra_json_schema or {}).get(MARK) for note in notes if isinstance(note, Meta)]
    return next(filter(None, marks), None) or _form(inner)


def with_shorthand(schema: Any) -> Any:
    """A JSON Schema in which what is marked may be written in its short way too."""
    match schema:
        case dict():
            inner = {key: with_shorthand(value) for key, value in schema.items() if key != MARK}
            return _either(inner, schema[MARK]) if isinstance(schema.get(MARK), str) else inner
        case list():
            return [with_shorthand(each) for each in schema]
        case _:
            return schema


def _either(schema: dict[str, Any], form: str) -> dict[str, Any]:
    about: dict[str, Any] = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    if "discriminator" in schema:  # not a word of JSON Schema
        names = list(schema.pop("discriminator")["mapping"])
        return {**about, "anyOf": [{"enum": names}, *schema["anyOf"]]}
    return {**about, "anyOf": [schema["items"] if form == ONE else {"type": "string"}, schema]}
