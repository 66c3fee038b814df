"""What `tailrace check` tells of brokers: rights that are missing, limits below ours, topics that may lose messages.

Nothing is written: topics that are not there are made for trial (`validate_only`), rights are those that brokers say we
have. The right on the transactional id shows only in use: to ask for it is to fence the run that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Concern
from tailrace.sinks.kafka.client import FORBIDDEN, REFUSED, Right
from tailrace.sinks.kafka.settings import KafkaSettings
from tailrace.sinks.kafka.topics import POLICY, Found, Topics

NAMED = 3
TIMEOUT, LARGEST, COPIES = "transaction.max.timeout.ms", "message.max.bytes", "default.replication.factor"
INSYNC, UNCLEAN, TOPIC_LARGEST = "min.insync.replicas", "unclean.leader.election.enable", "max.message.bytes"

Settings = Mapping[str, str]


class Wanted(msgspec.Struct, frozen=True):
    """A topic that the sink will use; without a `table` it is one of the sink's own."""

    name: str
    partitions: int
    policy: str
    table: str = ""
    is_keyless: bool = False
    rights: tuple[str, ...] = ("Write",)


class Examination:
    """Looks at the brokers for one sink, once."""

    def __init__(self, topics: Topics, settings: KafkaSettings, group: str) -> None:
        self._topics, self._settings, self._group = topics, settings, group

    def concerns(self, wanted: Sequence[Wanted]) -> Iterator[Concern]:
        found, hidden = self._topics.seen([each.name for each in wanted])
        known = self._topics.settings_of(found)
        broker = self._topics.broker_settings()
        yield from _hidden([each for each in wanted if each.name in hidden])
        yield from _rights(wanted, found)
        yield from self._group_right()
        yield from self._creations([each for each in wanted if each.name not in found and each.name not in hidden])
        yield from self._limits(broker)
        yield from self._losses(found, known, broker, has_new=len(found) + len(hidden) < len(wanted))
        yield from self._differences([each for each in wanted if each.name in found], found, known)
        if not broker or len(known) < len(found):
            yield Concern(
                "settings",
                "the settings of brokers or topics can not be read, so limits and replicas are not compared with ours",
                "to have them compared, allow our user DescribeConfigs on the cluster and its topics",
            )

    def _group_right(self) -> Iterator[Concern]:
        allowed = self._topics.allowed_on_group(self._group)
        if allowed is not None and "Read" not in allowed:
            yield _missing(Right("Read", self._group, "group"))

    def _creations(self, wanted: Sequence[Wanted]) -> Iterator[Concern]:
        """Topics that are to be made. What is wrong with many is told once."""
        refused = self._topics.not_creatable({each.name: (each.partitions, each.policy) for each in wanted})
        reasons: dict[tuple[int, str], list[Wanted]] = {}
        for each in (each for each in wanted if each.name in refused):
            error = refused[each.name]
            reasons.setdefault((error.code(), error.str()), []).append(each)
        for (code, reason), those in reasons.items():
            names = _some([each.name for each in those])
            if code in FORBIDDEN:
                right = Right("Create", those[0].name)
                yield _missing(right, f"topics that are not there: {names}", _table_of(those))
            else:
                fix = REFUSED.get(code, "correct `partitions`, `replication` and `topic_settings`")
                yield Concern("topics", f"{names} can not be made: {reason}", fix, True, _table_of(those))

    def _limits(self, broker: Settings) -> Iterator[Concern]:
        ours_ms, ours = self._settings.transaction_timeout_seconds * 1000, self._settings.message_max_bytes
        longest = int(broker.get(TIMEOUT, ours_ms))
        if longest < ours_ms:
            message = f"brokers allow transactions of {longest / 1000:g} s, and ours may take {ours_ms / 1000:g} s"
            fix = f"set transaction_timeout_seconds to {max(longest // 1000, 10)}, or raise {TIMEOUT} of the brokers"
            yield Concern("brokers", message, fix, True)
        largest = int(broker.get(LARGEST, ours))
        if largest < ours:
            message = f"brokers take messages of {largest:,} bytes, and ours may have {ours:,}: a larger one sets its"
            fix = f"raise {LARGEST} of the brokers, or of the topics {TOPIC_LARGEST}, or lower message_max_bytes"
            yield Concern("brokers", f"{message} table aside", fix)

    def _losses(
        self, found: Mapping[str, Found], known: Mapping[str, Settings], broker: Settings, *, has_new: bool
    ) -> Iterator[Concern]:
        """What brokers have acknowledged, and may lose with one of them."""
        alone = [name for name, topic in found.items() if topic.replicas == 1]
        copies = self._settings.replication or int(broker.get(COPIES, 3))
        if alone or (has_new and copies == 1):
            those = _some(alone) if alone else "topics that are to be made"
            yield Concern(
                "topics", f"one replica: {those}: what its broker loses is lost", "three replicas; `replication: 3`"
            )
        several = [name for name, topic in found.items() if topic.replicas > 1]
        thin = [name for name in several if known.get(name, {}).get(INSYNC) == "1"]
        if thin or (has_new and copies > 1 and broker.get(INSYNC) == "1"):
            those = _some(thin) if thin else "topics that are to be made"
            fix = f"set {INSYNC} to 2, or `topic_settings: {{{INSYNC}: 2}}`"
            yield Concern("topics", f"{INSYNC} is 1: {those}: one broker alone acknowledges, and may lose it", fix)
        unclean = [name for name, own in known.items() if own.get(UNCLEAN) == "true"]
        if unclean:
            message = f"{UNCLEAN} is true: {_some(unclean)}: a broker that lacks messages may become their leader"
            yield Concern("topics", message, f"set {UNCLEAN} to false")

    def _differences(
        self, wanted: Sequence[Wanted], found: Mapping[str, Found], known: Mapping[str, Settings]
    ) -> Iterator[Concern]:
        """Topics that are there, and are used as they are."""
        others = [each for each in wanted if found[each.name].partitions != each.partitions]
        if others:
            told = [f"{each.name} ({found[each.name].partitions})" for each in others]
            message = f"topics have other partitions than the file says: {_some(told)}: they are used as they are"
            yield Concern("topics", message)
        policies = {name: own[POLICY] for name, own in known.items() if POLICY in own}
        odd = [each for each in wanted if policies.get(each.name, each.policy) != each.policy]
        if odd:
            told = [f"{each.name} ({policies[each.name]})" for each in odd]
            yield Concern("topics", f"topics have another {POLICY} than the file says: {_some(told)}")
        for each in wanted:
            if each.is_keyless and "compact" in policies.get(each.name, ""):
                message = f"it has no key, and its topic {each.name} is compacted, where each message needs one"
                fix = "give it a key in `keys`, or another topic in `tables`"
                yield Concern(each.table, message, fix, True, each.table)


def wanted_of(schema: TableSchema, name: str, settings: KafkaSettings, *, is_keyless: bool) -> Wanted:
    policy = str(settings.topic_settings.get(POLICY, settings.cleanup_policy))
    return Wanted(name, settings.partitions, policy, schema.table, is_keyless)


def _hidden(wanted: Iterable[Wanted]) -> Iterator[Concern]:
    """Brokers do not even say whether these are there."""
    for each in wanted:
        yield _missing(Right("Describe", each.name), table=each.table)


def _rights(wanted: Iterable[Wanted], found: Mapping[str, Found]) -> Iterator[Concern]:
    for each in wanted:
        topic = found.get(each.name)
        if topic is not None and topic.allowed:
            missing = [right for right in each.rights if right not in topic.allowed]
            yield from (_missing(Right(right, each.name), table=each.table) for right in missing)


def _missing(right: Right, about: str = "", table: str = "") -> Concern:
    told = f"our user lacks {right.on}"
    return Concern(table or "rights", f"{told}: {about}" if about else told, right.command, True, table)


def _table_of(those: Sequence[Wanted]) -> str:
    return those[0].table if len(those) == 1 else ""


def _some(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
