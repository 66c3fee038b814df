"""A schema of Kafka Connect as a .proto file: one message, with those that it is made of inside.

A column has the number that its source gave it, so that it keeps it when others come and go. A list is a message with
`items`, each a message with a `value`: an item may be null, and so may a list.
"""

from __future__ import annotations

from tailrace.codecs.debezium.logical import DECIMAL, Schema
from tailrace.codecs.wire.avro_schema import full_name, valid_name
from tailrace.codecs.wire.protobuf import Numbers, number_of
from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema

FIRST_FACT = 10_001
"""The number of what a flat record has beside a table's columns: more columns no database has."""
_SIMPLE = {
    "boolean": "bool",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_DECIMAL = ["message Decimal {", "  bytes value = 1;", "  uint32 precision = 2;", "  int32 scale = 3;", "}"]


def column_numbers(schema: TableSchema, prefix: str, facts: tuple[str, ...]) -> Numbers:
    """Of the fields that are columns, in every struct that has them."""
    own = [column.number for column in schema.columns]
    is_numbered = all(0 < number < FIRST_FACT for number in own) and len(set(own)) == len(own)
    by_name = {column.name: column.number if is_numbered else place for place, column in enumerate(schema.columns, 1)}
    found = {(f"{prefix}.{kind}", name): n for kind in ("Key", "Value", "Flat") for name, n in by_name.items()}
    return found | {(f"{prefix}.Flat", name): n for n, name in enumerate(facts, FIRST_FACT)}


def proto_of(schema: Schema, numbers: Numbers) -> str:
    space, _, name = full_name(schema["name"]).rpartition(".")
    head = ['syntax = "proto3";', *([f"package {space};"] if space else []), ""]
    return "\n".join([*head, *_Message(name, schema, numbers).lines, ""])


class _Message:
    """The lines of a message; each message that its fields are of is defined in it once."""

    def __init__(self, name: str, schema: Schema, numbers: Numbers) -> None:
        self._numbers, self._inner = numbers, dict[str, list[str]]()
        names = [valid_name(field["field"]) for field in schema["fields"]]
        if clash := sorted({each for each in names if names.count(each) > 1}):
            raise SinkRejected(
                f"two columns of {schema['name']} have the same name in Protobuf: {clash[0]}",
                hint="rename one of them, or use format: json",
            )
        own = [
            f"  {self._typed(field, each)} {each} = {number_of(numbers, schema, field)};"
            for field, each in zip(schema["fields"], names, strict=True)
        ]
        inner = [f"  {line}" for lines in self._inner.values() for line in lines]
        self.lines = [f"message {name} {{", *inner, *own, "}"]

    def _typed(self, field: Schema, name: str) -> str:
        found = self._type(field, name)
        return found if found in self._inner else f"optional {found}"

    def _type(self, schema: Schema, field: str) -> str:
        match schema["type"]:
            case "struct":
                name = full_name(schema["name"]).rpartition(".")[2]
                return self._defined(f"{name[:1].upper()}{name[1:]}", schema)
            case "array":
                return self._list(schema["items"], f"List_{field}")
            case "bytes" if schema.get("name") == DECIMAL:
                self._inner.setdefault("Decimal", _DECIMAL)
                return "Decimal"
            case simple:
                return _SIMPLE[simple]

    def _defined(self, name: str, schema: Schema) -> str:
        self._inner.setdefault(name, _Message(name, schema, self._numbers).lines)
        return name

    def _list(self, items: Schema, name: str) -> str:
        item: Schema = {"name": "", "fields": [items | {"field": "value"}]}
        lines = _Message("Item", item, self._numbers).lines
        self._inner[name] = [f"message {name} {{", *(f"  {line}" for line in lines), "  repeated Item items = 1;", "}"]
        return name
