"""Named readers of the change log: the place that each has durably passed, a small file a reader.

The log keeps what lies behind the slowest of them. A place belongs to one log: once that is gone, it holds nothing.
"""

from __future__ import annotations

import re
import time

import msgspec

from tailrace.errors import ConfigError
from tailrace.state.storage import Storage

SUFFIX = ".json"
_NAME = re.compile("[a-z0-9_]{1,40}")


class ReaderPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader has all up to `offset` of the log `log`, and needs the rest.

    `owner` is the stream that writes it at present, `moved_at` when it last did, in seconds since 1970.
    """

    log: str
    offset: int
    table: str
    owner: str
    moved_at: float
    version: int = 1


NOWHERE = ReaderPlace(log="", offset=0, table="", owner="", moved_at=0.0)
"""What a file that can not be read stands for: it holds all, until somebody looks."""


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} can not be the name of a reader", hint="it has up to 40 lower case letters, digits and _"
        )
    return name


class Readers:
    """The readers of one log, in the folder `storage`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def all(self) -> dict[str, ReaderPlace]:
        names = sorted(name.removesuffix(SUFFIX) for name in self.storage.sizes(SUFFIX))
        places = {name: self.get(name) for name in names}
        return {name: place for name, place in places.items() if place is not None}

    def get(self, name: str) -> ReaderPlace | None:
        """None if there is no such reader."""
        try:
            return self.storage.decode(name + SUFFIX, ReaderPlace)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            return NOWHERE
        except OSError as error:
            raise self.storage.trouble(error) from error

    def put(self, name: str, log: str, offset: int, table: str, owner: str) -> None:
        place = ReaderPlace(log, offset, table, owner, time.time())
        self.storage.create()
        self.storage.publish(check_name(name) + SUFFIX, msgspec.json.encode(place))

    def drop(self, name: str) -> None:
        """Forget a reader: the log need not wait for it any more."""
        if self.get(check_name(name)) is None:
            known = ", ".join(self.all()) or "none"
            raise ConfigError(f"there is no reader {name} in {self.storage.path}", hint=f"there are: {known}")
        self.storage.delete(name + SUFFIX)
