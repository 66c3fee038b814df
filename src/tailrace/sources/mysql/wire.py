"""Reading answers in large pieces. A server sends 16 KB at a time, and a cipher gives no more.

To look at each of them, or to wake another process for it, costs more than it takes to wait for the next.
"""

from __future__ import annotations

import ssl
from typing import Any

from tailrace.sources.readiness import readable

RECORD_BYTES = 1 << 14
"""The most that is deciphered at once: with less room some of it would stay behind, which no waiting shows."""
_FLOWING_BYTES = 1 << 13
"""Who sends less has nothing more to send, most of the time."""
_PAUSE_SECONDS = 0.002


def taken(wire: Any, room: memoryview) -> int:
    """Wait for something on a socket, and take what follows without a pause, as far as it fits; 0 at the end."""
    count = last = int(wire.recv_into(room))
    while last >= _FLOWING_BYTES and len(room) - count >= RECORD_BYTES and _follows(wire):
        last = int(wire.recv_into(room[count:]))
        count += last
    return count


def _follows(wire: Any) -> bool:
    if isinstance(wire, ssl.SSLSocket) and wire.pending():
        return True
    return bool(readable([wire], _PAUSE_SECONDS))
