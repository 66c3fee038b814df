"""Where the tables of a document are stored, as one fact."""

from __future__ import annotations

from tailrace.model.lifecycle import StoredAs
from tailrace.model.schema import TableSchema
from tailrace.tasks.merged import is_part, merged


def table(name: str, relation: int) -> TableSchema:
    return TableSchema("public", name, (), relation=relation)


def test_a_table_is_a_part_of_a_document_by_its_name_and_its_number() -> None:
    orders = StoredAs({"7": 7}, "3:1", {"7": "d:1"})
    leaves = StoredAs({"21": 21, "22": 22}, "3:1", {"20": "d:1", "21": "", "22": ""})
    stored = merged({"public.orders": orders, "public.split": leaves})
    assert is_part(stored, table("orders", 7))
    assert is_part(stored, table("split", 20))
    assert not is_part(stored, table("orders", 8))  # it was dropped and made again
    assert not is_part(stored, table("new", 9))
