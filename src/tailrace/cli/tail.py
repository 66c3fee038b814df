"""`tailrace tail`: print the changes of a table as they arrive in Kafka, one line each, committed ones only.

Envelopes, flat records and CloudEvents are understood as they are, in JSON, and with --registry in Avro and JSON
Schema. It reads without a group and leaves nothing behind. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tailrace.cli.arguments import Commands
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from tailrace.codecs.reading import Seen
    from tailrace.sinks.kafka.tailing import Message

COLOURS = {"insert": "green", "update": "yellow", "delete": "red", "tombstone": "red", "truncate": "magenta"}


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("tail", help="print changes as they arrive in Kafka", description=__doc__)
    parser.add_argument("url", metavar="URL", help="the brokers: kafka://broker1:9092,broker2")
    parser.add_argument("table", metavar="TABLE", help="a table, as schema.table, or the name of a topic")
    parser.add_argument("--from-beginning", action="store_true", help="begin with the oldest message that is kept")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after so many messages")
    parser.add_argument("--json", action="store_true", help="print each message as a line of JSON")
    parser.add_argument("--registry", metavar="URL", help="the schema registry; user:password@ may stand in it")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the client, as librdkafka has it",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.limit is not None and args.limit < 1:
        raise ConfigError("--limit has to be 1 or more")
    if not args.url.startswith("kafka://"):
        raise ConfigError("tail reads topics of Kafka", hint="tailrace tail kafka://broker:9092 schema.table")
    settings = _settings(args.option)

    from tailrace.codecs.reading import MessageReader
    from tailrace.sinks.kafka.tailing import Tail

    reader, tail = MessageReader(_registry(args.registry)), Tail(args.url, settings)
    try:
        topic, count = tail.topic_of(args.table), 0
        for message in tail.messages(topic, from_beginning=args.from_beginning):
            if message is None:
                continue
            show(message, reader.read(message.key, message.value), is_json=args.json)
            count += 1
            if count == args.limit:
                break
    finally:
        tail.close()
    return 0


def show(message: Message, seen: Seen, *, is_json: bool) -> None:
    if is_json:
        import msgspec

        told = {"partition": message.partition, "offset": message.offset, "at_ms": message.at_ms}
        print(msgspec.json.encode(told | msgspec.to_builtins(seen, builtin_types=(bytes,))).decode(), flush=True)
        return
    from tailrace.cli.printing import console

    console().print(line(message, seen), soft_wrap=True)


def line(message: Message, seen: Seen) -> Text:
    from datetime import UTC, datetime

    from rich.text import Text

    at = datetime.fromtimestamp(message.at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    found = Text.assemble(
        (at, "dim"),
        " ",
        (f"{message.partition}:{message.offset}", "dim"),
        " ",
        (seen.op or "?", COLOURS.get(seen.op, "")),
    )
    if seen.key is not None:
        found.append(f" {_fields(seen.key)}", "bold")
    return found.append(f" {_change(seen)}".rstrip())


def _change(seen: Seen) -> str:
    """The row; of an update whose old row is known, what changed of it."""
    if seen.op == "update" and isinstance(seen.before, dict) and isinstance(seen.after, dict):
        changed = {name: value for name, value in seen.after.items() if seen.before.get(name) != value}
        return " ".join(f"{name}={_word(seen.before.get(name))}→{_word(value)}" for name, value in changed.items())
    row = seen.before if seen.after is None else seen.after
    if isinstance(row, dict) and isinstance(seen.key, dict):
        row = {name: value for name, value in row.items() if name not in seen.key}
    return "" if row is None or row == {} else _fields(row)


def _fields(row: Any) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in row.items()) if isinstance(row, dict) else _word(row)


def _word(value: Any) -> str:
    """On one line, whatever is in it."""
    import msgspec

    if isinstance(value, str) and value.isprintable() and value and " " not in value:
        return value
    return "∅" if value is None else msgspec.json.encode(value).decode()


def _settings(options: list[str]) -> Any:
    from tailrace.sinks.kafka.settings import KafkaSettings

    own: dict[str, str | int | bool] = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign:
            raise ConfigError(f"--option {name} has no value", hint="write --option security.protocol=ssl")
        own[name] = value
    return KafkaSettings(options=own)


def _registry(url: str | None) -> Any:
    if url is None:
        return None
    from urllib.parse import unquote, urlsplit

    from tailrace.codecs.registry.client import open_registry
    from tailrace.codecs.registry.settings import RegistrySettings

    parts = urlsplit(url)
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return open_registry(RegistrySettings(place, user=user, password=password))
