"""In what MariaDB and MySQL differ as servers for tests, and the settings that both run with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SETTINGS: dict[str, object] = {
    "bind_address": "127.0.0.1",
    "skip_name_resolve": True,  # so that a user's host is 127.0.0.1, and never what a machine calls it
    "socket": "server.sock",  # in the data folder; its full path may be longer than a socket's may be
    "character_set_server": "utf8mb4",
    "sql_mode": "TRADITIONAL",
    "local_infile": True,
    "secure_file_priv": "",
}


class Flavor(msgspec.Struct, frozen=True):
    """In what the two families differ."""

    name: str
    scheme: str
    package: str
    suite: str
    program: str
    settings: dict[str, object | None]
    install: str
    """The option that makes a new data folder."""
    install_sql: tuple[str, ...]
    """What that option reads from its standard input: files of the folder with messages."""


MARIADB = Flavor(
    name="MariaDB",
    scheme="mariadb",
    package="mariadb-server-core",
    suite="bookworm",
    program="usr/sbin/mariadbd",
    settings={},
    install="--bootstrap",
    install_sql=(
        "mysql_system_tables.sql",
        "mysql_performance_tables.sql",
        "mysql_system_tables_data.sql",
        "maria_add_gis_sp_bootstrap.sql",
        "mysql_sys_schema.sql",
    ),
)

MYSQL = Flavor(
    name="MySQL",
    scheme="mysql",
    package="mysql-server-core",
    suite="sid",
    program="usr/sbin/mysqld",
    settings={"mysqlx": False, "disable_log_bin": None},
    install="--initialize-insecure",
    install_sql=(),
)


def option_file(settings: Mapping[str, object | None]) -> str:
    """Settings as the servers read them. `None` is an option without a value."""
    return "[mysqld]\n" + "".join(_as_line(name, value) for name, value in settings.items())


def _as_line(name: str, value: object | None) -> str:
    if value is None:
        return f"{name}\n"
    text = ("ON" if value else "OFF") if isinstance(value, bool) else str(value)
    return f'{name} = "{text}"\n' if text else f"{name} =\n"
