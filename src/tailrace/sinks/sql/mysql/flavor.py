"""In what MySQL and MariaDB differ."""

from __future__ import annotations

import msgspec


class Flavor(msgspec.Struct, frozen=True):
    name: str
    collation: str  # binary, and without padding
    oldest: tuple[int, int, int]
    has_negative_zero: bool  # otherwise -0.0 becomes 0.0, which is equal


MYSQL = Flavor("MySQL", "utf8mb4_0900_bin", (8, 0, 23), has_negative_zero=True)
MARIADB = Flavor("MariaDB", "utf8mb4_nopad_bin", (10, 5, 0), has_negative_zero=False)
