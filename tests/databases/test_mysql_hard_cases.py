"""What has broken replicas of MySQL and MariaDB before: whole schemas, odd keys, and too much of everything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.mysql_sources import Logging, start_mysql
from support.pipelines import RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace.sources.mysql.connection import connect, database_of, rows
from tailrace.testing.plugin import requires

pytestmark = [pytest.mark.spark, pytest.mark.server]

SHOP = Path(__file__).with_name("mysql_shop.sql").read_text()
MIB = 1 << 20
MANY = 2_000_000 if os.environ.get("TAILRACE_LARGE") else 400_000  # `make large`
ODD = (
    "CREATE TABLE folded (k varchar(40) COLLATE utf8mb4_general_ci PRIMARY KEY, v varchar(40))",
    "CREATE TABLE exact (k varchar(40) COLLATE utf8mb4_bin PRIMARY KEY, v int)",
    "CREATE TABLE latin (k char(20) CHARACTER SET latin1 PRIMARY KEY, v text CHARACTER SET latin1)",
    "CREATE TABLE nobody (v varchar(20), w int)",
    "CREATE TABLE `semi;colon ``quoted` (`order` int PRIMARY KEY, `sel``ect` text, `ünï` int)",
)
ODD_ROWS = (
    "INSERT INTO folded VALUES ('a', '😀'), ('B ', 'blank'), ('ß', 'sharp')",
    "INSERT INTO exact VALUES ('a', 1), ('A', 2), ('😀', 4)",
    "INSERT INTO latin VALUES ('é', 'ÿ€'), ('z', NULL)",
    "INSERT INTO nobody VALUES ('twice', 1), ('twice', 1), (NULL, NULL), ('😀', 3)",
    "INSERT INTO `semi;colon ``quoted` VALUES (1, 'a\\tb\\\\', 2)",
)
ODD_CHANGES = (
    "UPDATE folded SET k = upper(k)",
    "UPDATE folded SET k = 'b' WHERE k = 'B'",
    "UPDATE exact SET k = 'b' WHERE k = 'A'",
    "DELETE FROM exact WHERE k = 'a'",
    "INSERT INTO exact VALUES ('A', 9)",
    "UPDATE latin SET k = 'É' WHERE k = 'é'",
    "DELETE FROM nobody WHERE v = 'twice' LIMIT 1",
    "UPDATE nobody SET w = 7 WHERE v IS NULL",
    "UPDATE `semi;colon ``quoted` SET `sel``ect` = '🙈' WHERE `order` = 1",
)
FILMS = """
INSERT INTO film (film_id, title, release_year, length, rating, special_features) VALUES
    (1, 'ACADEMY', 2006, 86, 'PG', 'Trailers,Deleted Scenes'),
    (2, 'ACE', 1901, 48, 'NC-17', ''),
    (3, 'ÉTÉ', NULL, NULL, NULL, NULL)
"""
CUSTOMERS = """
INSERT INTO customer VALUES
    (1, 'mary@example.org', 1, b'1', x'00ff', '1999-02-28'),
    (2, NULL, NULL, b'0', NULL, NULL)
"""
RENTALS = """
INSERT INTO rental VALUES
    (1, 1, 1, '2005-05-24 22:53:30.125', '-12:00:00.5'),
    (2, 2, 3, '9999-12-31 23:59:59', NULL)
"""
SHOP_ROWS = (
    "INSERT INTO country VALUES (1, 'Österreich'), (2, '日本')",
    "INSERT INTO city VALUES (1, 'Wien', 1, ST_GeomFromText('POINT(16.37 48.2)')), (2, '東京', 2, NULL)",
    FILMS,
    CUSTOMERS,
    RENTALS,
    "INSERT INTO film_actor VALUES ('Penelope', 1), ('NICK', 1)",
)
SHOP_CHANGES = (
    "UPDATE film SET length = length + 1, rating = 'R' WHERE film_id < 3",
    "UPDATE country SET country = 'Austria' WHERE country_id = 1",
    "UPDATE film_actor SET actor = lower(actor)",
    "DELETE FROM rental WHERE rental_id = 1",
    "REPLACE INTO customer VALUES (1, 'm@example.org', 2, b'0', NULL, NULL)",
    "INSERT INTO film (title, length) VALUES ('NEW', 100)",
)


def run(url: str, *statements: str) -> None:
    with connect(url) as connection:
        for statement in statements:
            rows(connection, statement)


def verify(file: Path) -> str:
    ended = tailrace("verify", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def other_url(logging: Logging, logged_url: str) -> Iterator[str]:
    """A second database of the same server."""
    name = f"{database_of(logged_url)}_other"
    yield logging.create_database(name)
    logging.drop_database(name)


@pytest.mark.parametrize("logging", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)], indirect=True)
def test_whole_schemas_of_two_databases_end_equal_in_every_sql_sink(
    logging: Logging,
    logged_url: str,
    other_url: str,
    postgres_url: str,
    mysql_url: str,
    mariadb_url: str,
    tmp_path: Path,
) -> None:
    run(logged_url, *SHOP.split(";\n"), *SHOP_ROWS)
    run(other_url, *ODD, *ODD_ROWS)
    sinks = {
        "replica": f"sqlite:///{tmp_path}/replica.db",
        "postgres": postgres_url,
        "mysql": mysql_url,
        "mariadb": mariadb_url,
    }
    tables = [f"{database_of(url)}.*" for url in (logged_url, other_url)]
    file = write_pipeline(tmp_path, logged_url, sinks, tables=tables)
    run_until_current(file)
    assert verify(file).count(" yes ") == 4 * 11
    run(logged_url, *SHOP_CHANGES)
    run(other_url, *ODD_CHANGES)
    run_until_current(file)
    verify(file)


@pytest.mark.long
@pytest.mark.parametrize("logging", ["mysql"], indirect=True)
def test_three_hundred_tables_are_copied_and_followed(logging: Logging, logged_url: str, tmp_path: Path) -> None:
    names = [f"t{number:03d}" for number in range(300)]
    run(logged_url, *(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))" for name in names))
    run(logged_url, *(f"INSERT INTO {name} VALUES (1, '{name}'), (2, NULL)" for name in names))
    file = write_pipeline(tmp_path, logged_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    run_until_current(file)
    run(logged_url, *(f"UPDATE {name} SET v = 'changed' WHERE id = 2" for name in names))
    run_until_current(file)
    assert verify(file).count(" yes ") == 300


@pytest.mark.long
def test_a_value_of_64_mib_goes_from_end_to_end(tmp_path: Path) -> None:
    with requires(start_mysql, settings={"max_allowed_packet": 512 * MIB, "innodb_log_file_size": 512 * MIB}) as server:
        url, target = server.create_database("large"), server.create_database("copy")
        run(url, "CREATE TABLE large (id int PRIMARY KEY, b longblob, t longtext)")
        value = f"repeat('x', {64 * MIB})"
        run(url, f"INSERT INTO large VALUES (1, {value}, 'short')")
        sinks = {"replica": f"sqlite:///{tmp_path}/replica.db", "copy": {"url": target, "schemas": {"large": "copy"}}}
        file = write_pipeline(tmp_path, url, sinks, tables=["large.*"])
        run_until_current(file)
        run(url, f"INSERT INTO large VALUES (2, 'short', {value})", "UPDATE large SET t = 'other' WHERE id = 1")
        run_until_current(file)
        verify(file)


def peak_of(process: psutil.Process) -> int:
    """The most memory that a process has held, in bytes, as Linux counts it (VmHWM)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024


@pytest.mark.long
@pytest.mark.parametrize("logging", ["mysql"], indirect=True)
def test_a_transaction_of_very_many_rows_goes_through_in_bounded_memory(
    logging: Logging, logged_url: str, tmp_path: Path
) -> None:
    run(logged_url, "CREATE TABLE big (id bigint PRIMARY KEY, n int, t text)", "INSERT INTO big VALUES (0, 0, 'old')")
    file = write_pipeline(tmp_path, logged_url, {"replica": f"sqlite:///{tmp_path}/replica.db"}, name="big")
    series = f"WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {MANY})"
    many = f"{series} SELECT n, n % 1000, concat('row ', n) FROM s"
    with RunningPipeline(file) as pipeline:
        pipeline.wait_until_live(f"{database_of(logged_url)}.big")
        driver, capture = psutil.Process(pipeline.process.pid), pipeline.capture_process()
        small = peak_of(driver)
        run(logged_url, f"SET SESSION cte_max_recursion_depth = {MANY + 1}", f"INSERT INTO big {many}")
        pipeline.wait_for(lambda: applied(pipeline) >= MANY, "the replica to have it", seconds=900)
        assert not pipeline.said("capture-restart"), pipeline.output
        assert peak_of(capture) < 300 * MIB
        assert peak_of(driver) < small + 200 * MIB
        assert pipeline.stop() == 0, pipeline.output
    assert f"{MANY + 1:,}" in verify(file)


def applied(pipeline: RunningPipeline) -> int:
    told = pipeline.said("progress")
    return int(told[-1]["sinks"]["replica"]["applied"]) if told else 0
