"""The indexes of documents: made with their mapping, reached by aliases, put in each other's place, dropped.

Each has its memory beside it (`memory`), which is made, fenced and dropped with it, and is part of what it is.

An index belongs to the pipeline whose name is in its mapping's `_meta`, and to the deployment whose prefix its name
begins with; no other is ever changed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.opensearch.client import Client
from tailrace.sinks.opensearch.memory import MAPPING
from tailrace.sinks.opensearch.naming import Names, claim_of, generation_of, is_generation, memory_of
from tailrace.sinks.opensearch.sending import Target
from tailrace.sinks.opensearch.settings import AS_SENT, OpenSearchSettings

DOCUMENT = "document"
KEEP_DELETES = "1h"
"""How long a deleted document's version is remembered: so long an old write that comes late can not bring it back."""
ALL: dict[str, object] = {"expand_wildcards": "all"}
"""Generations are hidden from patterns that do not ask for them."""
SEEDING = {"refresh_interval": "-1", "number_of_replicas": 0}


class Generations:
    """Of one pipeline's sink."""

    def __init__(self, client: Client, names: Names, settings: OpenSearchSettings) -> None:
        self._client, self._names, self._settings = client, names, settings

    # --- making

    def create(self, target: Target, schema: TableSchema, generation: int) -> None:
        """An empty index and its memory, fit to be filled, with the aliases of their writer."""
        made = _description(schema)
        owned = {"owner": self._names.owner, "table": schema.table, "generation": generation}
        mappings = {"dynamic": "strict"} | made.get("mappings", {})
        mappings["_meta"] = mappings.get("_meta", {}) | {"tailrace": owned}
        self._make(target.index, target.alias, made.get("settings", {}), mappings, schema.table)
        self._make(memory_of(target.index), target.memory, {}, MAPPING, schema.table)

    def _make(self, index: str, alias: str, settings: dict[str, Any], mappings: Mapping[str, Any], table: str) -> None:
        own = {"number_of_shards": self._settings.shards, "hidden": True, "gc_deletes": KEEP_DELETES}
        whole = settings | {"index": settings.get("index", {}) | own | SEEDING | AS_SENT}
        body = {"settings": whole, "mappings": mappings, "aliases": {alias: {"is_hidden": True}}}
        answer = self._client.ask("PUT", index, body, doing=f"making an index for {table}", allow=(400,))
        if "error" in answer:
            raise SinkRejected(f"the index of {table} can not be made: {answer['error']['reason']}", table=table)

    def restore(self, index: str) -> None:
        """The settings of an index that is seeded; its documents can be searched. Its memory is refreshed when read."""
        ours: dict[str, object] = {"number_of_replicas": self._settings.replicas}
        doing = f"ending the seed of {index}"
        self._client.ask("PUT", f"{memory_of(index)}/_settings", {"index": ours}, doing=doing)
        ours["refresh_interval"] = self._settings.refresh_interval
        self._client.ask("PUT", f"{index}/_settings", {"index": ours}, doing=doing)
        self.refresh(index)

    def refresh(self, index: str) -> None:
        self._client.ask("POST", f"{index}/_refresh", doing=f"refreshing {index}")

    # --- aliases

    def readers_alias(self, schema: TableSchema) -> str:
        return self._names.readers_alias(schema)

    def fence(self, targets: Iterable[Target], epoch: int) -> None:
        """Let these aliases be the only ones of this claim or an earlier one to write to their indexes, in one step.

        Indexes that are gone are left out: whoever writes to them finds out.
        """
        wanted: dict[str, str] = {}
        for target in targets:
            wanted |= {target.index: target.alias, memory_of(target.index): target.memory}
        present = self.aliases() if wanted else {}
        actions: list[dict[str, Any]] = []
        for index, alias in ((i, a) for i, a in wanted.items() if i in present):
            former = [name for name in present[index] if name != alias and _is_before(name, epoch)]
            actions += [{"remove": {"index": index, "alias": name}} for name in former]
            actions.append({"add": {"index": index, "alias": alias, "is_hidden": True}})
        self._change_aliases(actions, "taking over its indexes")

    def unfence(self) -> None:
        """Nobody writes to the pipeline's indexes any more."""
        mine = self.owned()
        held = [(index, names) for index, names in self.aliases().items() if generation_of(index) in mine]
        former = [(index, alias) for index, names in held for alias in names]
        actions = [{"remove": {"index": i, "alias": a}} for i, a in former if claim_of(a) is not None]
        self._change_aliases(actions, "giving up its indexes")

    def show(self, index: str, schema: TableSchema) -> None:
        """Let readers see this index, and no other, by the document's name, in one step."""
        alias = self._names.readers_alias(schema)
        former = [name for name in self.seen_by_readers(schema) if name != index]
        actions: list[dict[str, Any]] = [{"remove": {"index": name, "alias": alias}} for name in former]
        actions.append({"add": {"index": index, "alias": alias}})
        self._change_aliases(actions, f"putting the new index of {schema.table} in its place")

    def seen_by_readers(self, schema: TableSchema) -> list[str]:
        """The indexes behind the alias of a document, all of them ours; raises if the name is another's."""
        alias = self._names.readers_alias(schema)
        doing = f"looking at the index of {schema.table}"
        found = self._client.ask("GET", f"{alias}/_mapping", doing=doing, allow=(404,), parameters=ALL)
        if "error" in found:
            return []
        foreign = [index for index, each in found.items() if not self._is_own(index, each["mappings"])]
        if foreign:
            what = "an index of that name" if alias in foreign else f"an alias of that name, of index {foreign[0]}"
            raise SinkRejected(
                f"{schema.table} would be {alias} in the sink, where there is {what} that is not this pipeline's",
                hint="choose another `prefix` for the sink, or remove what is there",
                table=schema.table,
            )
        return list(found)

    def aliases(self) -> dict[str, list[str]]:
        """Of all generations that there are, and their memories: the names of their aliases."""
        found = self._client.ask(
            "GET",
            f"{self._names.generations}/_alias",
            doing="looking at its indexes",
            allow=(404,),
            parameters=ALL,
        )
        return {index: list(each["aliases"]) for index, each in found.items() if generation_of(index) is not None}

    def identities(self) -> dict[str, str]:
        """Of all generations that there are: what the server itself calls them and their memories.

        One that was restored has a new history; of one whose memory is gone, that is missing.
        """
        found = self._client.ask(
            "GET",
            f"{self._names.generations}/_settings",
            doing="looking at its indexes",
            allow=(404,),
            parameters=ALL | {"filter_path": "*.settings.index.uuid,*.settings.index.history"},
        )
        named = {index: _identity(each) for index, each in found.items()}
        both = {index: [named[index], named.get(memory_of(index), "")] for index in named if is_generation(index)}
        return {index: " ".join(parts).strip() for index, parts in both.items()}

    # --- dropping

    def owned(self) -> list[str]:
        """All generations of this pipeline's sink, in this deployment."""
        found = self._client.ask(
            "GET",
            f"{self._names.generations}/_mapping",
            doing="looking at its indexes",
            allow=(404,),
            parameters=ALL | {"filter_path": "*.mappings._meta"},
        )
        return [
            index for index, each in found.items() if is_generation(index) and self._is_own(index, each["mappings"])
        ]

    def drop(self, indexes: Iterable[str]) -> None:
        """One by one: a name too much in a request, and the server refuses all of it. An index is known by itself,
        so it goes after its memory.
        """
        for index in (each for generation in indexes for each in (memory_of(generation), generation)):
            self._client.ask("DELETE", index, doing=f"dropping index {index}", allow=(404,))

    def _change_aliases(self, actions: list[dict[str, Any]], doing: str) -> None:
        if actions:
            self._client.ask("POST", "_aliases", {"actions": actions}, doing=doing)

    def _is_own(self, index: str, mapping: Mapping[str, Any]) -> bool:
        made: Mapping[str, Any] = mapping.get("_meta", {}).get("tailrace", {})
        return self._names.is_own(index, str(made.get("owner", "")), str(made.get("table", "")))


def _identity(settings: Mapping[str, Any]) -> str:
    index = settings["settings"]["index"]
    return f"{index['uuid']} {index.get('history', {}).get('uuid', '')}".strip()


def _is_before(alias: str, epoch: int) -> bool:
    claim = claim_of(alias)
    return claim is not None and claim[0] <= epoch


def _description(schema: TableSchema) -> dict[str, Any]:
    """The mapping and the settings that come with a virtual table."""
    labels = next((column.type.labels for column in schema.columns if column.name == DOCUMENT), ())
    if not labels:
        raise SinkRejected(f"{schema.table} is no document: it has no mapping", table=schema.table)
    found: dict[str, Any] = msgspec.json.decode(labels[0])
    return found if "mappings" in found else {"mappings": found}
