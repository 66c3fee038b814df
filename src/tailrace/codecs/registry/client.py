"""A small client of a schema registry: numbers of schemas, each asked for once in a process.

Guarantee: a schema has the number that the registry gave it. What the registry refuses is an error that names the
subject and what to do about it; what it does not answer is one to retry. Nothing here retries.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec

from tailrace.codecs.registry.likeness import is_alike
from tailrace.codecs.registry.settings import Register, RegistrySettings
from tailrace.errors import MissingExtra, SinkRejected, SinkUnavailable

_TYPE = "application/vnd.schemaregistry.v1+json"
_COMPATIBILITY = 'curl -X PUT {url}/config/{subject} -d \'{{"compatibility": "NONE"}}\''


class RegistrySchema(msgspec.Struct, frozen=True):
    """`kind` is AVRO, JSON or PROTOBUF; `text` is what is registered."""

    kind: str
    text: str


class Registry:
    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self._url = settings.url.rstrip("/")
        self._pool = _pool(settings)
        self._ids: dict[tuple[str, RegistrySchema], int] = {}
        self._schemas: dict[int, tuple[str, str]] = {}

    def id_of(self, subject: str, schema: RegistrySchema) -> int:
        found = self._ids.get((subject, schema))
        if found is None:
            is_auto = self.settings.register is Register.AUTO
            found = self._registered(subject, schema) if is_auto else self._present(subject, schema)
            self._ids[subject, schema] = found
        return found

    def schema_of(self, number: int) -> tuple[str, str]:
        """The kind and the text of the schema with this number."""
        found = self._schemas.get(number)
        if found is None:
            status, answer = self._ask("GET", f"/schemas/ids/{number}")
            if status != 200:
                raise self._refusal(status, answer, f"schema {number}")
            found = self._schemas[number] = (answer.get("schemaType") or "AVRO", answer["schema"])
        return found

    def ping(self) -> None:
        """Raise what stands in the way of using it."""
        status, answer = self._ask("GET", "/subjects")
        if status != 200:
            raise self._refusal(status, answer, "its subjects")

    def _registered(self, subject: str, schema: RegistrySchema) -> int:
        status, answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", _body(schema))
        if status != 200:
            raise self._refusal(status, answer, f"subject {subject}")
        return int(answer["id"])

    def _present(self, subject: str, schema: RegistrySchema) -> int:
        """The very schema, or the latest one if bytes mean the same in it."""
        path = f"/subjects/{quote(subject, safe='')}"
        status, answer = self._ask("POST", path, _body(schema))
        if status == 200:
            return int(answer["id"])
        if status not in (404, 422):
            raise self._refusal(status, answer, f"subject {subject}")
        status, answer = self._ask("GET", f"{path}/versions/latest")
        hint = "register the schema, or set registry.register: auto"
        if status == 404:
            raise SinkRejected(f"the schema registry has no schema for subject {subject}", hint=hint)
        if status != 200:
            raise self._refusal(status, answer, f"subject {subject}")
        kind = answer.get("schemaType", "AVRO")
        if kind != schema.kind or not is_alike(kind, answer["schema"], schema.text):
            raise SinkRejected(
                f"the latest schema of subject {subject} in the registry is not the one that the table has now",
                hint=hint,
            )
        return int(answer["id"])

    def _refusal(self, status: int, answer: Any, what: str) -> SinkRejected | SinkUnavailable:
        said = str(answer.get("message", ""))[:300] if isinstance(answer, dict) else ""
        if status in (401, 403):
            return SinkRejected(
                f"the schema registry does not let us use {what} (HTTP {status})",
                hint="correct registry.user and registry.password, or registry.token, or grant it",
            )
        if status == 409:
            return SinkRejected(
                f"the schema registry refuses the new schema for {what}: it is not compatible with the one before",
                hint="choose a compatibility that allows the change of the table, for instance "
                + _COMPATIBILITY.format(url=self._url, subject=what.removeprefix("subject "))
                + ", or give the table another topic",
            )
        if status == 429 or status >= 500:
            return SinkUnavailable(f"the schema registry answers HTTP {status} for {what}: {said}")
        return SinkRejected(
            f"the schema registry refuses {what} (HTTP {status}): {said}",
            hint="is registry.url the one of Confluent's interface?",
        )

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        http = importlib.import_module("urllib3")
        try:
            response = self._pool.request(method, self._url + path, body=body, headers=self._headers())
        except http.exceptions.HTTPError as error:
            raise SinkUnavailable(f"the schema registry does not answer: {type(error).__name__}") from error
        try:
            return int(response.status), msgspec.json.decode(response.data)
        except msgspec.DecodeError:
            return int(response.status), {}

    def _headers(self) -> dict[str, str]:
        own, http = self.settings, importlib.import_module("urllib3")
        found = {"Content-Type": _TYPE, "Accept": f"{_TYPE}, application/json"}
        if own.user:
            found |= http.make_headers(basic_auth=f"{own.user}:{own.password}")
        if own.token:
            found["Authorization"] = f"Bearer {own.token}"
        return found


def _body(schema: RegistrySchema) -> bytes:
    kind = {} if schema.kind == "AVRO" else {"schemaType": schema.kind}
    return msgspec.json.encode({"schema": schema.text} | kind)


def _pool(settings: RegistrySettings) -> Any:
    try:
        http = importlib.import_module("urllib3")
    except ImportError as error:
        raise MissingExtra("pip install 'tailrace[kafka]'") from error
    tls: dict[str, str] = {}
    if settings.ca:
        tls["ca_certs"] = settings.ca
    if settings.certificate:
        tls |= {"cert_file": settings.certificate, "key_file": settings.key}
    return http.PoolManager(timeout=settings.timeout_seconds, retries=False, **tls)


@lru_cache(maxsize=64)
def open_registry(settings: RegistrySettings) -> Registry:
    """The same for each call in a process."""
    return Registry(settings)
