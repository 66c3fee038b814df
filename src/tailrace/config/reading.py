"""From what YAML gives to typed sections. An error names the place in the file, what was expected there, and the fix.

msgspec judges every value alone, so where it stands is known, and what it should be is told by its type: nothing is
read out of the text of an error. Values are never repeated, as they may hold secrets.

Pydantic 2.14 was tried instead: its structured errors still needed 99 lines to become our sentences (16 of 21 cases
were alike at once; unions, misspelt required keys and numbers in variables took more), for five more packages (9.8 MB
installed), 0.13 to 0.16 CPU seconds at the start of every process, and a second library of models beside that of state.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from tailrace.config.connectors import Connector, build_connector, keys_of, whose
from tailrace.config.expecting import describe, expected
from tailrace.config.sections import build, keys
from tailrace.config.shorthand import expanded
from tailrace.config.sizes import HINT, is_size, parse_size
from tailrace.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)
Place = tuple[str | int, ...]

MAPPING = dict[str, Any]
TYPE = "type"


def read(document: Any, kind: type[S], place: Place = ()) -> S:
    """The section that a document is, or that lies at `place` in one; a section that was read already stays so."""
    if isinstance(document, kind):
        return document
    if not isinstance(document, dict):
        raise _wrong(document, MAPPING, place)
    known = keys_of(kind, document) if issubclass(kind, Connector) else keys(kind)
    for key in document:
        if key not in known:
            raise _unknown(place, str(key), known, whose(kind, key) if issubclass(kind, Connector) else None)
    values = {key: _read_key(value, known[key].type, (*place, key)) for key, value in document.items()}
    for key, field in known.items():
        if field.required and key not in values:
            raise _missing((*place, key), field.type)
    try:
        return build_connector(kind, values) if issubclass(kind, Connector) else build(kind, values)
    except ConfigError as error:
        raise ConfigError(f"{at(place)}: {error}".removeprefix(": "), hint=error.hint) from None


def _read_key(value: Any, kind: Any, place: Place) -> Any:
    if isinstance(value, str) and is_size(str(place[-1])):
        value = parse_size(value)
        if value is None:
            raise ConfigError(f"{at(place)}: expected a size in bytes", hint=HINT)
    return _read_any(value, kind, place)


def _read_any(value: Any, kind: Any, place: Place) -> Any:
    value, bare = expanded(value, kind), _bare(kind)
    match get_origin(bare), get_args(bare):
        case None, _ if isinstance(bare, type) and issubclass(bare, msgspec.Struct) and value is not None:
            value = read(value, bare, place)
        case origin, variants if origin in (Union, UnionType) and _tags(variants) and isinstance(value, dict):
            value = _read_variant(value, _tags(variants), place)
        case origin, (key_kind, item_kind) if origin is dict and isinstance(value, dict):
            for key in value:
                _convert(key, key_kind, place, "a key: ")
            value = {key: _read_any(item, item_kind, (*place, key)) for key, item in value.items()}
        case origin, (item_kind, *_) if origin in (list, tuple) and isinstance(value, list):
            value = [_read_any(item, item_kind, (*place, index)) for index, item in enumerate(value)]
    return _convert(value, kind, place)


def _tags(variants: Iterable[Any]) -> dict[str, type[msgspec.Struct]]:
    """The structs of a union by their `type`; none for any other union."""
    structs = [each for each in variants if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return {str(each.__struct_config__.tag): each for each in structs if each.__struct_config__.tag is not None}


def _read_variant(document: dict[Any, Any], variants: dict[str, type[msgspec.Struct]], place: Place) -> msgspec.Struct:
    """The struct that the mapping's `type` names, of the keys beside it."""
    if TYPE not in document:
        raise ConfigError(f"{at(place)}: missing `type`", hint=f"add `type:`, one of {', '.join(variants)}")
    name = document[TYPE]
    if not isinstance(name, str) or name not in variants:
        close = difflib.get_close_matches(str(name), variants, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(variants)}"
        raise ConfigError(f"{at((*place, TYPE))}: no such type", hint=hint)
    return read({key: value for key, value in document.items() if key != TYPE}, variants[name], place)


def _convert(value: Any, kind: Any, place: Place, subject: str = "") -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise _wrong(value, kind, place, subject) from None


def _bare(kind: Any) -> Any:
    """The type without its notes, and of `… | None` the other one."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        return _bare(options[0]) if len(options) == 1 else kind
    return kind


def _wrong(value: Any, kind: Any, place: Place, subject: str = "") -> ConfigError:
    return ConfigError(f"{at(place) or 'the file'}: {subject}{expected(kind, value)}", hint=describe(kind))


def _missing(place: Place, kind: Any) -> ConfigError:
    about = describe(kind)
    return ConfigError(f"{at(place)}: missing", hint=f"add `{place[-1]}:`" + (f" ({about})" if about else ""))


def _unknown(place: Place, key: str, known: Iterable[str], owner: str | None) -> ConfigError:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}"
    return ConfigError(f"{at((*place, key))}: unknown key", hint=owner or hint)


def at(place: Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
