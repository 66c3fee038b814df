"""What a type of the pipeline file expects, in words, and what a value is."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping (key: value)",
    type(None): "nothing",
}
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "of length >=", "max_length": "of length <="}


def expected(kind: Any, value: Any) -> str:
    """What is wrong with a value that is not of this kind: a limit does not hold, or it is another kind of value."""
    options = {_plain(option): option for option in _options(inspect.type_info(kind))}
    held = next((plain for plain in options if _is(value, plain)), None)
    if held is not None:
        return f"expected {WORDS[held]} {_limits(options[held]) or 'of another form'}"
    words = [word for plain, word in WORDS.items() if plain in options and not (plain is int and float in options)]
    return f"expected {', '.join(words)}, got {WORDS.get(type(value), 'something else')}"


def describe(kind: Any) -> str | None:
    """The description in the notes of a type."""
    told = inspect.type_info(kind)
    options = told.types if isinstance(told, inspect.UnionType) else (told,)
    notes = [option.extra_json_schema or {} for option in options if isinstance(option, inspect.Metadata)]
    return next((note["description"] for note in notes if "description" in note), None)


def _options(kind: inspect.Type) -> list[inspect.Type]:
    """The types that a value may have, without notes and without None, which is a key that is not there."""
    match kind:
        case inspect.Metadata():
            return _options(kind.type)
        case inspect.UnionType():
            return [option for each in kind.types for option in _options(each)]
        case inspect.NoneType():
            return []
        case _:
            return [kind]


def _plain(kind: inspect.Type) -> type:
    """What YAML has for a type."""
    match kind:
        case inspect.IntType():
            return int
        case inspect.FloatType():
            return float
        case inspect.BoolType():
            return bool
        case inspect.CollectionType() | inspect.TupleType():
            return list
        case inspect.DictType() | inspect.StructType():
            return dict
        case _:
            return str


def _is(value: Any, plain: type) -> bool:
    """Whether a value is of a plain type; text that a variable brought may be a number."""
    if not isinstance(value, str) or plain in (list, dict):
        return type(value) is plain
    try:
        msgspec.convert(value, plain, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _limits(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.EnumType | inspect.LiteralType):
        choices = kind.cls if isinstance(kind, inspect.EnumType) else kind.values
        named = [f"`{choice.value if isinstance(choice, Enum) else choice}`" for choice in choices]
        return "that is " + " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    if getattr(kind, "pattern", None) is not None:
        return "of another form"
    limits = {sign: getattr(kind, name, None) for name, sign in SIGNS.items()}
    return " and ".join(f"{sign} {limit}" for sign, limit in limits.items() if limit is not None)
