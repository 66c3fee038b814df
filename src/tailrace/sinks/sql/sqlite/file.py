"""The file that a SQLite sink is, and the folder of what is staged for it."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote as quote_path

import msgspec

from tailrace.errors import SinkRejected


class SqliteFile(msgspec.Struct, frozen=True):
    """The file of a sink, and the folder in which its tasks stage, which is the sink's alone."""

    sink: str
    path: Path
    scratch: Path

    def check_folder(self) -> None:
        """SQLite makes files beside the one it is given."""
        folder = self.path.parent
        if not folder.is_dir():
            raise SinkRejected(
                f"sink {self.sink}: the folder {folder} of the SQLite file does not exist", hint=f"mkdir -p {folder}"
            )
        if not os.access(folder, os.W_OK):
            raise SinkRejected(f"sink {self.sink}: the folder {folder} of the SQLite file cannot be written")

    def staged(self, name: str) -> Path:
        """The staging file that is attached under a (quoted) name."""
        return self.scratch / (name.strip('"') + ".db")

    def inode(self) -> tuple[int, int] | None:
        """Which file that is at present; None if there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def address(self) -> str:
        return f"file:{quote_path(str(self.path))}?mode=rwc"

    def address_to_read(self) -> str:
        """Any reader of a file in WAL mode makes a -wal and a -shm if there are none, unless it says `immutable`."""
        path = self.path.absolute()
        if not path.exists():
            return ":memory:"
        is_open = Path(f"{path}-wal").exists()
        return f"{path.as_uri()}?{'mode=ro' if is_open else 'mode=ro&immutable=1'}"
