"""In what MySQL and MariaDB differ."""

from __future__ import annotations

import re

import msgspec


class Flavor(msgspec.Struct, frozen=True):
    name: str
    collation: str  # binary, and without padding
    oldest: tuple[int, int, int]
    has_negative_zero: bool  # otherwise -0.0 becomes 0.0, which is equal
    own_types: frozenset[str]  # that the other one has not
    foreign_collations: str  # of the other one, as a pattern

    def has_collation(self, name: str) -> bool:
        return re.search(self.foreign_collations, name) is None


MYSQL = Flavor(
    "MySQL",
    "utf8mb4_0900_bin",
    (8, 0, 23),
    has_negative_zero=True,
    own_types=frozenset({"json", "vector"}),
    foreign_collations="uca1400|nopad|mysql561|myanmar|thai_520",
)
MARIADB = Flavor(
    "MariaDB",
    "utf8mb4_nopad_bin",
    (10, 5, 0),
    has_negative_zero=False,
    own_types=frozenset({"uuid", "inet4", "inet6"}),
    foreign_collations="_0900_|gb18030",
)
