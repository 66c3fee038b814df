"""Objects of a store that can refuse a write: S3 and what speaks its language, Google Cloud Storage, Azure.

Through obstore: each call is one request, and a write may have a condition, which pyarrow's file systems can not say.

Guarantee: of several who `swap` the same version of an object, one succeeds, and the others are told so. An object
appears whole, or not at all.

Why so. A conditional create of the segment itself would not do: its name has offsets that only its writer knows, so two
writers' names would differ. With a marker a segment readers would list twice as much, and a small object is cheaper to
ask than a listing. pyarrow needs three to five requests for what is one here (multipart uploads, directory markers);
boto3 is three packages for one of the three stores, obstore one wheel without dependencies for all of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tailrace.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss"}
INSTALL = "pip install 'tailrace[store]'"
PIECE_BYTES = 16 << 20
"""What is asked for at a time."""
SINGLE_BYTES = 64 << 20
"""What is larger is uploaded in parts."""

_SECONDS = datetime.timedelta(seconds=1)
_CLIENT: dict[str, Any] = {"timeout": 30 * _SECONDS, "connect_timeout": 5 * _SECONDS}
_RETRIES: Any = {"max_retries": 3, "retry_timeout": 15 * _SECONDS}
"""A store that does not answer for longer is the supervisor's to try again."""

Version = dict[str, str]
"""What a store calls one state of an object."""


class Objects:
    """Those below one address. Names are relative to it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._root = parts._replace(path="").geturl()
        self._prefix = unquote(parts.path).strip("/")
        self.path = f"{parts.netloc.rpartition('@')[2]}/{self._prefix}".rstrip("/")

    def read(self, name: str) -> tuple[bytes, Version]:
        """Raises FileNotFoundError."""
        obstore = _library()

        with _system_errors():
            found = obstore.get(self._store, self._key(name))
            return bytes(found.bytes()), _version(found.meta)

    def open(self, name: str, first_bytes: int) -> ObjectFile:
        """To be read from its beginning to its end, `first_bytes` of it at first. Raises FileNotFoundError."""
        return ObjectFile(self._store, self._key(name), first_bytes)

    def put(self, name: str, file: IO[bytes], size: int) -> None:
        obstore = _library()

        with _system_errors():
            obstore.put(self._store, self._key(name), file, use_multipart=size > SINGLE_BYTES)

    def swap(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """Put `data` in place of `version`, or where nothing is yet; None if somebody else was first."""
        obstore = _library()
        refused = (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)

        mode: Any = "create" if version is None else version
        with _system_errors():
            try:
                return _version(obstore.put(self._store, self._key(name), data, mode=mode, use_multipart=False))
            except refused:
                return None

    def delete(self, *names: str) -> None:
        obstore = _library()

        with _system_errors():
            obstore.delete(self._store, [self._key(name) for name in names])

    def files(self) -> dict[str, tuple[int, float]]:
        """The size of each, and the time when it was written, in seconds since 1970."""
        obstore = _library()

        with _system_errors():
            found = obstore.list_with_delimiter(self._store, self._prefix)["objects"]
        return {each["path"].rpartition("/")[2]: (each["size"], each["last_modified"].timestamp()) for each in found}

    def exists(self) -> bool:
        obstore = _library()

        with _system_errors():
            return any(page for page in obstore.list(self._store, f"{self._prefix}/", chunk_size=1))

    def remove(self) -> None:
        """All of them, also those in folders."""
        obstore = _library()

        with _system_errors():
            for page in obstore.list(self._store, f"{self._prefix}/"):
                obstore.delete(self._store, [each["path"] for each in page])

    @property
    def _store(self) -> ObjectStore:
        return _connect(self._root)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


class ObjectFile:
    """An object, a piece at a time: most are one request."""

    def __init__(self, store: ObjectStore, key: str, first_bytes: int) -> None:
        self._store, self._key = store, key
        self._at, self._size = 0, 1
        self._ahead = memoryview(b"")
        self._fetch(first_bytes)

    def __enter__(self) -> ObjectFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        parts = [self._take(size)]
        while (size := size - len(parts[-1])) and self._at < self._size:
            self._fetch(PIECE_BYTES)
            parts.append(self._take(size))
        return b"".join(parts)

    def _take(self, size: int) -> memoryview:
        taken, self._ahead = self._ahead[:size], self._ahead[size:]
        return taken

    def _fetch(self, size: int) -> None:
        obstore = _library()

        with _system_errors():
            found = obstore.get(self._store, self._key, options={"range": (self._at, self._at + size)})
            self._ahead, self._size = memoryview(found.bytes()), found.meta["size"]
        self._at += len(self._ahead)


def _library() -> Any:
    """obstore, which only those need who have their state on a store."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise MissingExtra(INSTALL, hint=f"a state directory on an object store needs {error.name}") from error
    return obstore


@lru_cache(maxsize=16)
def _connect(root: str) -> ObjectStore:
    """A client, with its connections. What the URL does not say of the credentials, the environment does."""
    obstore = _library()
    address, config, client = _settings(root)
    try:
        store: ObjectStore = obstore.store.from_url(
            address, config=config, client_options=client, retry_config=_RETRIES
        )
        return store
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{address} can not be a state directory: {reason}") from error


def _settings(root: str) -> tuple[str, Any, Any]:
    """The address, and what stands in it besides: for S3 user and password are the key and its secret.

    Parameters are named as pyarrow names them, or as obstore does.
    """
    parts = urlsplit(root)
    config, client = dict(parse_qsl(parts.query)), dict(_CLIENT)
    scheme = config.pop("scheme", "https")
    if endpoint := config.pop("endpoint_override", None):
        config["endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if config.get("endpoint", "").startswith("http://"):
        client["allow_http"] = True
    user, at, host = parts.netloc.rpartition("@")
    if parts.scheme.startswith("s3") and at:
        key, _, secret = user.partition(":")
        config |= {"access_key_id": unquote(key), "secret_access_key": unquote(secret)}
    netloc = host if parts.scheme.startswith("s3") else parts.netloc
    name = {"s3a": "s3", "gcs": "gs"}.get(parts.scheme, parts.scheme)
    return f"{name}://{netloc}", config, client


def _version(told: Any) -> Version:
    return {key: told[key] for key in ("e_tag", "version") if told[key] is not None}


@contextmanager
def _system_errors() -> Iterator[None]:
    """The store's errors as the operating system's, of which the first words are enough."""
    errors = _library().exceptions
    try:
        yield
    except errors.BaseError as error:
        words = str(error).partition("\n")[0].partition(" - Server returned")[0]
        raise OSError(words) from error
