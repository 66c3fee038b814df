"""Names in a sink: where a source table lands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.errors import SinkRejected


def flat_name(schema: str, name: str, schemas: Mapping[str, str]) -> str:
    """A table's name where there are no schemas: `public.orders` is `orders`, `billing.orders` `billing_orders`."""
    prefix = schemas.get(schema, "" if schema == "public" else schema)
    return f"{prefix}_{name}" if prefix else name


def refuse_collision(source: str, target: str, others: Iterable[tuple[str, str]], *, folds: bool = True) -> None:
    """Refuse a source table that would share a table of the sink with another one; most sinks fold case.

    `others` are pairs of a source table and its target.
    """
    for other, place in others:
        if other != source and (place.lower() == target.lower() if folds else place == target):
            raise SinkRejected(
                f"tables {other} and {source} would both be {target} in the sink",
                hint="give one of their schemas another name under sinks.<name>.schemas, or exclude one table",
            )
