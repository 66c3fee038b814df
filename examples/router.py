"""Changes by their table's name, the first pattern that fits: `python router.py postgresql://user@host/shop`."""

import sys
from collections.abc import Callable
from fnmatch import fnmatchcase

import tailrace
from tailrace.model.event import Event


def say(where: str) -> Callable[[Event], None]:
    return lambda event: print(where, event.op, event.table, event.key, flush=True)


ROUTES: dict[str, Callable[[Event], None]] = {
    "public.order*": say("orders"),
    "public.audit_*": lambda _: None,  # nobody wants them
    "*": say("others"),
}


def route(event: Event) -> None:
    """A table that no pattern has is an error: then nothing is acknowledged, and nothing is lost."""
    handle = next(handle for pattern, handle in ROUTES.items() if fnmatchcase(event.table, pattern))
    handle(event)


with tailrace.capture(sys.argv[1], "public.*", checkpoint="checkpoints") as stream:
    for batch in stream:
        for event in batch.events():
            route(event)
        batch.ack()
