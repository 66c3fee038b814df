"""Which checkpoint may take the place of which: one of the same source that is not behind it."""

from __future__ import annotations

from tailrace.errors import CheckpointRefused, ConfigError
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.positions import Order, compare, kind_of, parse
from tailrace.model.watermark import SourceIdentity

BEGIN_ANEW = "give this stream another name; or begin anew: `tailrace checkpoint delete STORE NAME`"
BEHIND = "is another consumer at work? `tailrace checkpoint seed --replace` moves a checkpoint back on purpose"


def check_succession(name: str, present: Checkpoint | None, new: Checkpoint) -> None:
    """Raises CheckpointRefused unless `new` may be saved in place of `present`."""
    check_sound(name, new)
    if present is None:
        return
    check_source(name, present, new.kind, new.source)
    if new.events < present.events:
        raise _refused(name, f"counts {present.events} events, and would count {new.events}", BEHIND)
    order = compare(new.kind, new.position, present.position)
    if order is Order.APART:
        raise _refused(
            name, f"is at {present.position}, and {new.position} is neither before nor after that", BEGIN_ANEW
        )
    if order is Order.BEFORE or (order is Order.SAME and new.skip < present.skip):
        raise _refused(name, f"is at {_place(present)}, and would go back to {_place(new)}", BEHIND)
    if order is Order.SAME and present.skip and new.transaction != present.transaction:
        raise _refused(
            name, f"is inside transaction {present.transaction}, and {new.transaction} is another one", BEGIN_ANEW
        )


def check_sound(name: str, checkpoint: Checkpoint) -> None:
    """Raises CheckpointRefused for what no consumer can have reached."""
    try:
        parse(checkpoint.kind, checkpoint.position)
    except ConfigError as error:
        raise CheckpointRefused(f"checkpoint {name}: {error}", hint=error.hint) from error
    if checkpoint.events < 0 or checkpoint.skip < 0:
        raise _refused(name, "counts fewer than no events")
    if checkpoint.skip and not checkpoint.transaction:
        raise _refused(name, "is inside a transaction that it does not name")


def check_source(name: str, present: Checkpoint, kind: str, source: SourceIdentity | None) -> None:
    """Raises CheckpointRefused if `present` is of another source. One that was seeded by hand may be any server's."""
    if kind_of(present.kind) != kind_of(kind):
        raise _refused(name, f"belongs to a {present.kind} source, and this one is {kind}", BEGIN_ANEW)
    known = present.source
    if known is None:
        return
    if source is None:
        raise _refused(name, f"belongs to {_told(known)}, and it is not known which source this is", BEGIN_ANEW)
    if _ours(present, known) != _ours(present, source):
        raise _refused(name, f"belongs to {_told(known)}, and this is {_told(source)}", BEGIN_ANEW)


def _ours(present: Checkpoint, source: SourceIdentity) -> tuple[str, ...]:
    """What has to be the same. The rest of an identity changes with time, and the source itself compares it.

    A position that means the same on every server of a group goes on after a failover.
    """
    position = parse(present.kind, present.position)
    same = (source.database, source.slot)
    return same if position is not None and position.is_global else (source.system, *same)


def _told(source: SourceIdentity) -> str:
    slot = f", slot {source.slot}" if source.slot else ""
    return f"database {source.database} of server {source.system}{slot}"


def _place(checkpoint: Checkpoint) -> str:
    events = "event" if checkpoint.skip == 1 else "events"
    return f"{checkpoint.position} and {checkpoint.skip} {events}" if checkpoint.skip else checkpoint.position


def _refused(name: str, why: str, hint: str | None = None) -> CheckpointRefused:
    return CheckpointRefused(f"checkpoint {name} {why}", hint=hint)
