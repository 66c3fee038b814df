"""Requests to an OpenSearch server, and what their failures mean for the pipeline.

What passes by itself is SinkUnavailable: a connection that fails, a server that is busy, or one whose indexes are
read-only because its disk is full. All else that a server refuses is SinkRejected. A server's own words are said of
requests that hold no rows only: they may quote values.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import ConnectionTimeout, SerializationError, SSLError, TransportError

from tailrace.errors import ConfigError, SinkError, SinkRejected, SinkUnavailable
from tailrace.sinks.opensearch.settings import OpenSearchSettings

DEFAULT_PORT = 9200
BUSY = frozenset({429, 502, 503, 504})
BLOCKED = "cluster_block_exception"
SECONDS = 30.0

logging.getLogger("opensearch").addHandler(logging.NullHandler())  # what fails is ours to tell

Answer = dict[str, Any]


class Busy(SinkUnavailable):
    """The server answered that it can not do that at this moment. Worth another try at once, or a little later."""


class BodyRefused(SinkRejected):
    """The server does not take a bulk request as such: it is too large, or a document in it is no document."""


class Address(msgspec.Struct, frozen=True):
    """Where a server is, or several nodes of one cluster, and who we are there."""

    hosts: tuple[tuple[str, int], ...]
    is_encrypted: bool
    user: tuple[str, str] | None

    @classmethod
    def parse(cls, url: str, name: str) -> Address:
        parts = urlsplit(url)
        user, _, hosts = parts.netloc.rpartition("@")
        places = [urlsplit(f"//{host}") for host in hosts.split(",")]
        if not all(place.hostname for place in places) or parts.path not in ("", "/") or parts.query:
            raise ConfigError(f"sinks.{name}.url is not the address of a server", hint="opensearch://user@host:9200")
        login, _, password = user.partition(":")
        return cls(
            tuple((str(place.hostname), place.port or DEFAULT_PORT) for place in places),
            parts.scheme.lower() == "opensearchs",
            (unquote(login), unquote(password)) if user else None,
        )

    def __str__(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)


class Client:
    """The connections of one sink in one process, for any number of threads. Pickles without them."""

    def __init__(self, url: str, settings: OpenSearchSettings, name: str) -> None:
        self._address, self._settings, self._name = Address.parse(url, name), settings, name
        self._lock = threading.Lock()
        self._opened: OpenSearch | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock(), "_opened": None}

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        doing: str,
        allow: tuple[int, ...] = (),
        seconds: float = SECONDS,
        parameters: Mapping[str, object] | None = None,
    ) -> Answer:
        """The server's answer; one of a status in `allow` is returned as well (it has `error` and `status`)."""
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        given = parameters or {}
        found: Answer = self._request(method, path, data, given, doing, allow, seconds, is_about_rows=False)
        return found

    def bulk(self, alias: str, body: bytes, *, doing: str) -> Answer:
        """Statuses, errors and indexes of a bulk request's items, in order. It reaches an alias and nothing else.

        A server heeds that for documents and not for deletions: for these it makes an index of the alias's name.
        """
        told = "errors,items.*.status,items.*.error.type,items.*.error.reason"
        parameters = {"require_alias": "true", "filter_path": f"{told},items.delete._index"}
        seconds = self._settings.bulk_timeout_seconds
        path = f"{alias}/_bulk"
        found: Answer = self._request("POST", path, body, parameters, doing, (), seconds, is_about_rows=True)
        return found

    def exists(self, name: str, *, doing: str) -> bool:
        """Whether there is an index or an alias of this name."""
        return bool(self._request("HEAD", name, None, {}, doing, (), SECONDS, is_about_rows=False))

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _request(
        self,
        method: str,
        path: str,
        data: bytes | None,
        parameters: Mapping[str, object],
        doing: str,
        allow: tuple[int, ...],
        seconds: float,
        *,
        is_about_rows: bool,
    ) -> Any:
        given = {key: str(value).lower() if isinstance(value, bool) else value for key, value in parameters.items()}
        try:
            return self._open().transport.perform_request(
                method, f"/{path}", params=given, body=data, timeout=seconds, ignore=allow
            )
        except (TransportError, SerializationError) as error:
            raise self._explained(error, doing, is_about_rows=is_about_rows) from _without_rows(error, is_about_rows)

    def _open(self) -> OpenSearch:
        with self._lock:
            if self._opened is None:
                self._opened = self._connection()
            return self._opened

    def _connection(self) -> OpenSearch:
        address, settings = self._address, self._settings
        secure: dict[str, Any] = {"use_ssl": False}
        if address.is_encrypted:
            secure = {
                "use_ssl": True,
                "verify_certs": settings.verify_certificate,
                "ssl_assert_hostname": None if settings.verify_certificate else False,
                "ssl_show_warn": False,
                "ca_certs": settings.ca_file,
            }
        try:
            return OpenSearch(
                hosts=[{"host": host, "port": port} for host, port in address.hosts],
                http_auth=address.user,
                max_retries=len(address.hosts) - 1,
                pool_maxsize=8,
                **secure,
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"sinks.{self._name}.ca_file can not be read: {error}") from error

    def _explained(self, error: Exception, doing: str, *, is_about_rows: bool) -> SinkError:
        server = f"sink {self._name}: OpenSearch at {self._address}"
        if isinstance(error, SSLError):
            return self._untrusted(error, server)
        if isinstance(error, ConnectionTimeout):
            return SinkUnavailable(f"{server} did not answer in time while {doing}")
        if isinstance(error, NoConnection) or not isinstance(error, TransportError):
            return SinkUnavailable(f"{server} can not be reached for {doing}: {_cause(error)}")
        kind, reason = _words(error)
        if kind == BLOCKED:
            return blocked(server, doing, reason)
        if error.status_code in BUSY:
            return Busy(f"{server} is too busy for {doing}: {kind} (status {error.status_code})")
        if error.status_code in (401, 403):
            hint = "give a user and a password that may create, write and delete indexes of this prefix, and aliases"
            return SinkRejected(f"{server} does not allow {doing}: {kind}", hint=hint)
        if is_about_rows and error.status_code in (400, 413):
            return BodyRefused(f"the server says {kind or 'that it is too large'} (status {error.status_code})")
        words = kind if is_about_rows or not reason else f"{kind}: {reason}"
        return SinkRejected(f"{server} refused {doing}: {words} (status {error.status_code})")

    def _untrusted(self, error: SSLError, server: str) -> SinkError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return SinkRejected(
                f"{server} has a certificate that is not trusted", hint="name those who signed it in `ca_file`"
            )
        return SinkUnavailable(f"{server} can not be reached over TLS: {_first_line(error)}")


def blocked(server: str, doing: str, reason: str) -> Busy:
    """Indexes that nobody may write to: the server itself sets that when its disk is full, and takes it back."""
    hint = "free disk space on the server; a block that somebody set is removed with `index.blocks.…: null`"
    return Busy(f"{server} lets nobody write, while {doing}: {reason}", hint=hint)


def _words(error: TransportError) -> tuple[str, str]:
    """The kind of an error, and the server's words for it."""
    info = error.info
    if isinstance(info, dict) and isinstance(info.get("error"), dict):
        return str(info["error"].get("type", "")), str(info["error"].get("reason", ""))
    return _first_line(error.error), ""


def _cause(error: Exception) -> str:
    """Why there is no connection, in the system's own words where there are any: the driver's name its layers."""
    words = _first_line(error)
    _, is_there, system = words.partition("[Errno ")
    return system.partition("] ")[2].partition(")")[0].lower() if is_there else words


def _first_line(error: object) -> str:
    return (str(error).splitlines() or ["no reason given"])[0][:200]


def _without_rows(error: Exception, is_about_rows: bool) -> Exception | None:
    """The cause of an error of ours, unless it may quote rows."""
    is_plain = isinstance(error, NoConnection)
    return error if is_plain or not is_about_rows else None
