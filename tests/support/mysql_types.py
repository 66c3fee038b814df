"""Every type of MySQL and MariaDB, with values that are easily damaged."""

from __future__ import annotations

import random

from tailrace.sources.mysql.connection import connect

TYPES = {
    "tinyint": ["-128", "127", "0"],
    "tinyint unsigned": ["255", "0"],
    "smallint": ["-32768", "32767"],
    "smallint unsigned": ["65535"],
    "mediumint": ["-8388608", "8388607", "-1"],
    "mediumint unsigned": ["16777215"],
    "int": ["-2147483648", "2147483647"],
    "int unsigned zerofill": ["4294967295", "7"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "bigint unsigned": ["18446744073709551615", "0"],
    "decimal(10,2)": ["-99999999.99", "0.01", "-0.01", "0"],
    "decimal(38,0)": ["9" * 38, "-1"],
    "decimal(9,9)": ["0.123456789", "-0.000000001"],
    "decimal(65,30)": ["-" + "9" * 35 + "." + "9" * 30, "1.5"],
    "float": ["0.1", "-3.4028234e38", "1.17549435e-38", "16777217"],
    "double": ["0.1", "-1.7976931348623157e308", "2.2250738585072014e-308", "1e22"],
    "bit(1)": ["b'1'", "b'0'"],
    "bit(5)": ["b'10101'", "b'0'"],
    "bit(63)": [f"b'{'1' * 63}'"],
    "bit(64)": [f"b'{'1' * 64}'", "b'1'"],
    "year": ["1901", "2155", "2024"],
    "date": ["'1000-01-01'", "'9999-12-31'", "'2024-02-29'"],
    "datetime": ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"],
    "datetime(1)": ["'2024-02-29 12:34:56.7'"],
    "datetime(3)": ["'2024-02-29 12:34:56.789'"],
    "datetime(6)": ["'1969-12-31 23:59:59.999999'"],
    "timestamp": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"],
    "timestamp(2)": ["'2024-03-31 02:30:00.25'"],
    "timestamp(6)": ["'2024-03-31 02:30:00.123456'"],
    "time": ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'12:34:56'"],
    "time(1)": ["'-00:00:00.1'", "'12:00:00.5'"],
    "time(3)": ["'-12:34:56.789'"],
    "time(6)": ["'-838:59:58.000001'", "'00:00:00.000001'"],
    "char(5)": ["'ab'", "'日本'", "''"],
    "char(255)": ["'😀'", "repeat('ü', 255)"],
    "varchar(20) character set latin1": ["'é ÿ€'", "'blanks  '"],
    "varchar(300) character set utf8mb3": ["'ü 日本'", "repeat('x', 300)"],
    "varchar(20) character set ucs2": ["'ü 日本'"],
    "varchar(20) character set cp1251": ["'Привет'"],
    "text character set sjis": ["'日本'"],
    "text": ["'it''s \\\\ \\n \\t 😀'", "repeat('long ', 13000)", "''"],
    "mediumtext": ["repeat('ü', 40000)"],
    "binary(4)": ["x'00ff'", "x'01020300'", "x'00000000'"],
    "varbinary(300)": ["x'00ff5c0a00'", "repeat(x'00', 300)"],
    "blob": ["x''", "x'deadbeef00'"],
    "longblob": ["repeat(x'00ff', 40000)"],
    "enum('a','it''s','x\\\\y','ü') character set latin1": ["'a'", "'it''s'", "'x\\\\y'", "'ü'"],
    "set('a','b','c d')": ["'a,c d'", "''", "'b'"],
    "json": [
        """'{"b": [1, 2.5, null, true, "ü\\\\n"], "a": {"c": -1e100}}'""",
        "'[]'",
        "'\"text\"'",
        "'18446744073709551615'",
        "'-9223372036854775808'",
    ],
    "geometry": ["st_geomfromtext('POINT(1 2)')", "st_geomfromtext('LINESTRING(0 0,1 1)')"],
    "point": ["st_geomfromtext('POINT(-1 2.5)')"],
}
"""By type: literals of values that are easily damaged."""
OWN = {
    "mysql": {"vector(3)": ["string_to_vector('[1,-2.5,1e-7]')"]},
    "mariadb": {
        "uuid": ["'6ccd780c-baba-1026-9564-5b8c656024db'", "'00000000-0000-0000-0000-000000000000'"],
        "inet4": ["'10.0.0.255'", "'0.0.0.0'"],
        "inet6": ["'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:10.0.0.1'"],
    },
}


def fill(url: str, types: dict[str, list[str]], seed: int, table: str = "every_type") -> None:
    """Each value in a row at least, all of them mixed by chance, and a row of nothing."""
    chance = random.Random(seed)
    count = max(map(len, types.values()))
    lines = [[values[row % len(values)] for values in types.values()] for row in range(count)]
    lines += [[chance.choice([*values, "NULL"]) for values in types.values()] for _ in range(20)]
    lines.append(["NULL"] * len(types))
    with connect(url) as connection:
        for number, line in enumerate(lines):
            connection.query(f"INSERT INTO {table} VALUES ({number}, {', '.join(line)})")
        connection.query(f"UPDATE {table} SET id = id + 1000 WHERE id % 3 = 0")
