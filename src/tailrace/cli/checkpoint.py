"""`tailrace checkpoint`: where consumers of the embedded library have come to.

STORE is a folder, or a URL: sqlite:///file.db, postgresql://…, mysql://…, mariadb://…, s3://…, gs://…, abfss://…
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

from tailrace.cli.arguments import Commands
from tailrace.errors import CheckpointRefused, ConfigError, TailraceError

if TYPE_CHECKING:
    from tailrace.checkpoints.store import Store
    from tailrace.model.checkpoint import Checkpoint

COLUMNS = ("name", "kind", "position", "events", "age")
ACTIONS = {
    "list": "print the names in a store, each with its position",
    "show": "print all that one says",
    "seed": "put a position there by hand: a stream of that name begins behind it",
    "delete": "forget one: a stream of that name begins anew",
}


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser(
        "checkpoint",
        help="list, show, seed or delete checkpoints of embedded streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, help_ in ACTIONS.items():
        action = actions.add_parser(name, help=help_, description=help_)
        action.add_argument("store", metavar="STORE", help="a folder, or the URL of a database or an object store")
        action.set_defaults(run={"list": list_, "show": show, "seed": seed, "delete": delete}[name])
        if name != "list":
            action.add_argument("name", metavar="NAME", help="the stream's name")
        if name == "show":
            action.add_argument("--json", action="store_true", help="as JSON")
        if name == "seed":
            _add_position(action)


def _add_position(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--position",
        required=True,
        help="such as 16/B374D848, binlog.000042:1337, a GTID set of MySQL, or GTIDs of MariaDB such as 0-1-100",
    )
    action.add_argument("--kind", help="of the source, such as postgresql; needed where there is no checkpoint yet")
    action.add_argument("--events", type=int, help="how many are acknowledged (default: as many as before, or 0)")
    action.add_argument(
        "--replace",
        action="store_true",
        help="take the place of a checkpoint that is there: changes in between are skipped, or come again",
    )


def list_(args: argparse.Namespace) -> int:
    """Exit code 1 if one is refused."""
    with _opened(args) as store:
        found = {name: _told(store, name) for name in store.list()}
    if found:
        _print(COLUMNS, found.values())
    else:
        print("there are no checkpoints")
    return 1 if any(len(row) < len(COLUMNS) for row in found.values()) else 0


def show(args: argparse.Namespace) -> int:
    import msgspec

    with _opened(args) as store:
        found, age = store.load(args.name), store.age(args.name)
    if found is None:
        raise _absent(args.name)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print((), ([key, value] for key, value in _facts(found, age or 0.0).items() if value))
    return 0


def seed(args: argparse.Namespace) -> int:
    """What is known of the source and its consumer stays; a transaction that was begun, and snapshots, do not."""
    with _opened(args) as store:
        store.claim(args.name)
        present = store.load(args.name)
        if present is not None and not args.replace:
            raise CheckpointRefused(
                f"checkpoint {args.name} is there already, at {present.position}",
                hint="--replace takes its place: changes in between are skipped, or come again",
            )
        new = _seeded(args, present)
        store.seed(args.name, new)
    print(f"seeded {args.name} at {new.position}")
    return 0


def delete(args: argparse.Namespace) -> int:
    with _opened(args) as store:
        if not store.delete(args.name):
            raise _absent(args.name)
    print(f"deleted {args.name}")
    return 0


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[Store[Any]]:
    from tailrace.checkpoints import open_store

    with closing(cast("Store[Any]", open_store(args.store))) as store:
        yield store


def _seeded(args: argparse.Namespace, present: Checkpoint | None) -> Checkpoint:
    import msgspec

    from tailrace.model.checkpoint import Checkpoint
    from tailrace.model.positions import parse

    kind = _kind(args.kind or (present.kind if present else ""))
    position = str(parse(kind, args.position) or args.position)
    if present is None:
        return Checkpoint(kind, position, args.events or 0)
    events = present.events if args.events is None else args.events
    new = msgspec.structs.replace(
        present, position=position, events=events, skip=0, transaction="", copies=(), tables={}, memberships={}
    )
    return new if kind == _kind(present.kind) else msgspec.structs.replace(new, kind=kind, source=None)


def _kind(given: str) -> str:
    from tailrace.model.positions import FORMS, kind_of
    from tailrace.registry import SOURCES, schemes

    kind = kind_of(given)
    known = sorted({*FORMS, *map(kind_of, schemes(SOURCES))})
    if kind not in known:
        what = f"no source is of the kind {given}" if given else "--kind is missing"
        raise ConfigError(what, hint=f"known: {', '.join(known)}")
    return kind


def _told(store: Store[Any], name: str) -> list[str]:
    """A row of the list; a shorter one for what is refused."""
    try:
        found, age = store.load(name), store.age(name)
    except TailraceError as error:
        return [name, f"refused: {error}"]
    assert found is not None
    return [name, found.kind, found.position, f"{found.events:,}", _age(age or 0.0)]


def _facts(found: Checkpoint, age: float) -> dict[str, str]:
    source = found.source
    copies = (f"{copy.schema.table}: {copy.rows:,} rows, {len(copy.left):,} chunks left" for copy in found.copies)
    return {
        "kind": found.kind,
        "position": found.position,
        "events": f"{found.events:,}",
        "inside": f"{found.skip:,} events of transaction {found.transaction}" if found.skip else "",
        "server": source.system if source else "",
        "database": source.database if source else "",
        "slot": source.slot if source else "",
        "snapshots": "; ".join(copies),
        "age": _age(age),
        **{f"metadata {key}": value for key, value in found.metadata.items()},
    }


def _age(seconds: float) -> str:
    return f"{seconds:,.0f} s"


def _absent(name: str) -> ConfigError:
    return ConfigError(f"there is no checkpoint {name}", hint="`tailrace checkpoint list STORE` prints the names")


def _print(titles: tuple[str, ...], rows: Iterable[list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tailrace.cli.printing import console

    table = Table(*titles, box=None, pad_edge=False, show_header=bool(titles))
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)
