"""Structs from bytes, in a process of its own: what goes wrong here goes wrong for the whole process."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tailrace.model import stored
from tailrace.model.chunk import Chunk

THREADS = """
import sys, threading, types
from tailrace.model.stored import from_json

STRUCTS = '''
from __future__ import annotations
import msgspec

class Type(msgspec.Struct, frozen=True):
    name: str
    element: Type | None = None

class Table(msgspec.Struct, frozen=True):
    columns: tuple[Type, ...]
    known: dict[str, Type] = {}
'''
DATA = b'{"columns": [{"name": "a", "element": {"name": "b"}}], "known": {"c": {"name": "d"}}}'

def decode(kind, barrier, found):
    barrier.wait()
    found.append(from_json(DATA, kind))

sys.setswitchinterval(1e-6)
for number in range(100):
    module = sys.modules[f"structs_{number}"] = types.ModuleType(f"structs_{number}")
    exec(STRUCTS, module.__dict__)
    barrier, found = threading.Barrier(3), []
    threads = [threading.Thread(target=decode, args=(module.Table, barrier, found)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and found[0] == found[1] == found[2]
"""


def test_threads_that_decode_the_first_struct_of_a_kind_at_the_same_time_leave_the_process_alive() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_what_is_stored_is_read_back_in_either_form() -> None:
    chunk = Chunk("public.items", 1, 100)
    assert stored.from_json(msgspec.json.encode(chunk), Chunk) == chunk
    assert stored.from_msgpack(msgspec.msgpack.encode(chunk), Chunk) == chunk
    with pytest.raises(msgspec.ValidationError):
        stored.from_json(b"[]", Chunk)
