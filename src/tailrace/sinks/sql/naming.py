"""Names in a sink: where a source table lands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.errors import SinkRejected


def flat_name(schema: str, name: str, schemas: Mapping[str, str]) -> str:
    """A table's name where there are no schemas: `public.orders` is `orders`, `billing.orders` `billing_orders`."""
    prefix = schemas.get(schema, "" if schema == "public" else schema)
    return f"{prefix}_{name}" if prefix else name


def check_collisions(names: Iterable[tuple[str, str]], *, folds: bool = True) -> None:
    """Refuse two source tables that would share one table of a sink. Pairs are (source, sink); most sinks fold case."""
    seen: dict[str, str] = {}
    for source, target in names:
        other = seen.setdefault(target.lower() if folds else target, source)
        if other != source:
            raise SinkRejected(
                f"tables {other} and {source} would both be {target} in the sink",
                hint="give one of their schemas another name under sinks.<name>.schemas, or exclude one table",
            )
