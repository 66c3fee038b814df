"""The binary form of types that travel as text, written as their output functions write them. One value at a time.

Only types whose text depends on nothing but the value's bytes. timestamptz in a range is written for TimeZone UTC.
Each function is named after PostgreSQL's own (`inet_out`, `tsqueryout`, ...); the layout is that of the send function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tailrace.model.types import ColumnType
from tailrace.sources.postgres.values.cells import Cells
from tailrace.sources.postgres.values.output import date_out, float_out, numeric_out, timestamp_out, timestamptz_out

Renderer = Callable[[bytes], str]


def renderer_of(type_: ColumnType) -> Renderer | None:
    """What writes this type, whatever its modifier (`bit(8)`); None if its text depends on more than its bytes."""
    return RENDERERS.get(type_.name.partition("(")[0])


def rendered(cells: Cells, render: Renderer) -> pa.StringArray:
    """Each value written by `render`."""
    try:
        return pa.array([render(cells[row]) for row in range(len(cells))], pa.string())
    except (ValueError, ArithmeticError, LookupError, struct.error):
        raise cells.malformed("a value does not have the binary form of its type") from None


class Fields:
    """Reads a value front to back; a value that is too short or too long raises ValueError."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.at = 0

    def read(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize(">" + layout)
        return struct.unpack(">" + layout, self.bytes(size))

    def integer(self, layout: str = "i") -> int:
        return int(self.read(layout)[0])

    def bytes(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.value):
            raise ValueError("too short")
        self.at += size
        return self.value[self.at - size : self.at]

    def string(self) -> str:
        """Up to a zero byte."""
        end = self.value.index(b"\0", self.at)
        text = self.value[self.at : end].decode()
        self.at = end + 1
        return text

    def end(self) -> None:
        if self.at != len(self.value):
            raise ValueError("too long")


def _fields(write: Callable[[Fields], str]) -> Renderer:
    def render(value: bytes) -> str:
        fields = Fields(value)
        text = write(fields)
        fields.end()
        return text

    return render


def _number(layout: str) -> Renderer:
    return _fields(lambda fields: str(fields.integer(layout)))


def _vector(layout: str) -> Renderer:
    """int2vector and oidvector: arrays in binary, numbers with spaces between in text."""

    def write(fields: Fields) -> str:
        dimensions, _, _ = fields.read("iii")
        for _ in range(dimensions):
            fields.read("ii")
        numbers = []
        while fields.at < len(fields.value):
            fields.integer()
            numbers.append(str(fields.integer(layout)))
        return " ".join(numbers)

    return _fields(write)


# ranges ---------------------------------------------------------------------------------------------------------------

_EMPTY, _LOWER_IN, _UPPER_IN, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
_QUOTED = set('"\\()[], \t\n\r\v\f')


def _range(bound: Renderer) -> Callable[[Fields], str]:
    def write(fields: Fields) -> str:
        flags = fields.integer("B")
        if flags & _EMPTY:
            return "empty"
        lower = "" if flags & _LOWER_INFINITE else _range_bound(bound(fields.bytes(fields.integer())))
        upper = "" if flags & _UPPER_INFINITE else _range_bound(bound(fields.bytes(fields.integer())))
        return f"{'[' if flags & _LOWER_IN else '('}{lower},{upper}{']' if flags & _UPPER_IN else ')'}"

    return write


def _range_bound(text: str) -> str:
    return f'"{text}"' if _QUOTED & set(text) else text  # no bound of a built-in range has a quote or a backslash


def _multirange(bound: Renderer) -> Callable[[Fields], str]:
    one = _fields(_range(bound))

    def write(fields: Fields) -> str:
        return "{" + ",".join(one(fields.bytes(fields.integer())) for _ in range(fields.integer())) + "}"

    return write


# networks -------------------------------------------------------------------------------------------------------------


def _inet(fields: Fields) -> str:
    family, bits, is_cidr, size = fields.read("BBBB")
    address = fields.bytes(size)
    if (family, size) not in ((2, 4), (3, 16)):
        raise ValueError("neither IPv4 nor IPv6")
    text = ".".join(map(str, address)) if size == 4 else _ipv6(address)
    return text if bits == size * 8 and not is_cidr else f"{text}/{bits}"


def _ipv6(address: bytes) -> str:
    """inet_net_ntop_ipv6: the first longest run of zeros shortened, an embedded IPv4 address in its own form."""
    words = struct.unpack(">8H", address)
    start, size = _longest_zeros(words)
    texts = [f"{word:x}" for word in words]
    if start == 0 and (size == 6 or (size == 5 and words[5] == 0xFFFF)):
        texts[6:] = [".".join(map(str, address[12:]))]
    if size < 2:
        return ":".join(texts)
    return ":".join(texts[:start]) + "::" + ":".join(texts[start + size :])


def _longest_zeros(words: tuple[int, ...]) -> tuple[int, int]:
    best = (0, 0)
    for start in range(len(words)):
        size = 0
        while start + size < len(words) and words[start + size] == 0:
            size += 1
        if size > best[1]:
            best = (start, size)
    return best


def _macaddr(size: int) -> Renderer:
    return _fields(lambda fields: fields.bytes(size).hex(":"))


# geometry -------------------------------------------------------------------------------------------------------------


def _point(fields: Fields) -> str:
    x, y = fields.read("dd")
    return f"({float_out(x)},{float_out(y)})"


def _points(fields: Fields, count: int) -> str:
    return ",".join(_point(fields) for _ in range(count))


def _path(fields: Fields) -> str:
    is_closed = fields.integer("B")
    points = _points(fields, fields.integer())
    return f"({points})" if is_closed else f"[{points}]"


def _line(fields: Fields) -> str:
    return "{" + ",".join(map(float_out, fields.read("ddd"))) + "}"


def _circle(fields: Fields) -> str:
    centre = _point(fields)
    return f"<{centre},{float_out(fields.read('d')[0])}>"


# text search ----------------------------------------------------------------------------------------------------------


def _lexeme(text: str) -> str:
    return "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"


def _tsvector(fields: Fields) -> str:
    lexemes = []
    for _ in range(fields.integer()):
        lexeme = _lexeme(fields.string())
        positions = fields.read(f"{fields.integer('H')}H")
        marks = ",".join(f"{position & 0x3FFF}{('', 'C', 'B', 'A')[position >> 14]}" for position in positions)
        lexemes.append(f"{lexeme}:{marks}" if marks else lexeme)
    return " ".join(lexemes)


_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}


def _tsquery(fields: Fields) -> str:
    """The items come in prefix order, the right operand before the left; so read from the back they are on a stack."""
    items = [_tsquery_item(fields) for _ in range(fields.integer())]
    stack: list[tuple[str, int]] = []  # text, and its outermost operator
    for operator, word in reversed(items):
        if not operator:
            stack.append((word, 0))
        elif operator == _NOT:
            stack.append(("!" + _operand(stack.pop(), operator), operator))
        else:
            right = _operand(stack.pop(), operator, is_right=True)
            stack.append((_operand(stack.pop(), operator) + word + right, operator))
    if len(stack) > 1:
        raise ValueError("an operand too many")
    return stack[0][0] if stack else ""


def _operand(item: tuple[str, int], parent: int, *, is_right: bool = False) -> str:
    text, operator = item
    if not operator:
        return text
    is_nested_phrase = is_right and operator == parent == _PHRASE
    return f"( {text} )" if _PRIORITY[operator] < _PRIORITY[parent] or is_nested_phrase else text


def _tsquery_item(fields: Fields) -> tuple[int, str]:
    if fields.integer("B") == 1:
        weight, prefix = fields.read("BB")
        marks = ("*" if prefix else "") + "".join("ABCD"[i] for i in range(4) if weight & 8 >> i)
        lexeme = _lexeme(fields.string())
        return 0, f"{lexeme}:{marks}" if marks else lexeme
    operator = fields.integer("B")
    if operator == _PHRASE:
        distance = fields.integer("H")
        return operator, " <-> " if distance == 1 else f" <{distance}> "
    return operator, {_NOT: "!", _AND: " & ", _OR: " | "}[operator]


# the rest -------------------------------------------------------------------------------------------------------------


def _bits(fields: Fields) -> str:
    count = fields.integer()
    value = fields.bytes(-(-count // 8))
    return "".join(f"{byte:08b}" for byte in value)[:count]


def _snapshot(fields: Fields) -> str:
    count, xmin, xmax = fields.read("iqq")
    return f"{xmin}:{xmax}:" + ",".join(map(str, fields.read(f"{count}q")))


def _lsn(fields: Fields) -> str:
    high, low = fields.read("II")
    return f"{high:X}/{low:X}"


def _tid(fields: Fields) -> str:
    block, offset = fields.read("IH")
    return f"({block},{offset})"


def _jsonpath(fields: Fields) -> str:
    if fields.integer("B") != 1:
        raise ValueError("not of version 1")
    return fields.bytes(len(fields.value) - 1).decode()


_int4_out, _int8_out = _number("i"), _number("q")

RENDERERS: dict[str, Renderer] = {
    "inet": _fields(_inet),
    "cidr": _fields(_inet),
    "macaddr": _macaddr(6),
    "macaddr8": _macaddr(8),
    "bit": _fields(_bits),
    '"bit"': _fields(_bits),
    "bit varying": _fields(_bits),
    "point": _fields(_point),
    "lseg": _fields(lambda fields: f"[{_points(fields, 2)}]"),
    "path": _fields(_path),
    "box": _fields(lambda fields: _points(fields, 2)),
    "polygon": _fields(lambda fields: f"({_points(fields, fields.integer())})"),
    "line": _fields(_line),
    "circle": _fields(_circle),
    "tsvector": _fields(_tsvector),
    "tsquery": _fields(_tsquery),
    "xml": bytes.decode,
    "refcursor": bytes.decode,
    "jsonpath": _fields(_jsonpath),
    "int4range": _fields(_range(_int4_out)),
    "int8range": _fields(_range(_int8_out)),
    "numrange": _fields(_range(numeric_out)),
    "daterange": _fields(_range(date_out)),
    "tsrange": _fields(_range(timestamp_out)),
    "tstzrange": _fields(_range(timestamptz_out)),
    "int4multirange": _fields(_multirange(_int4_out)),
    "int8multirange": _fields(_multirange(_int8_out)),
    "nummultirange": _fields(_multirange(numeric_out)),
    "datemultirange": _fields(_multirange(date_out)),
    "tsmultirange": _fields(_multirange(timestamp_out)),
    "tstzmultirange": _fields(_multirange(timestamptz_out)),
    "pg_lsn": _fields(_lsn),
    "pg_snapshot": _fields(_snapshot),
    "txid_snapshot": _fields(_snapshot),
    "tid": _fields(_tid),
    "xid": _number("I"),
    "cid": _number("I"),
    "xid8": _number("Q"),
    "int2vector": _vector("h"),
    "oidvector": _vector("I"),
}
"""By the type's name, without its modifier."""
