"""The demo's shop in MySQL and MariaDB: the same tables and the same trade as in `shop`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection

from tailrace.demo.workload import Driver, LiveWorkload

DATABASE = "shop"
SCHEMA = (
    """
CREATE TABLE customers (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    email varchar(60) NOT NULL UNIQUE,
    name varchar(60) NOT NULL,
    address json,
    wants_mail tinyint(1) NOT NULL DEFAULT 0,
    created_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    deleted_at timestamp(6) NULL
)""",
    """
CREATE TABLE products (
    sku varchar(20) PRIMARY KEY,
    name varchar(60) NOT NULL,
    description text,
    price decimal(12,2) NOT NULL,
    stock int unsigned NOT NULL,
    updated_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
)""",
    """
CREATE TABLE orders (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    customer_id bigint NOT NULL,
    status enum('new','paid','packed','shipped','delivered','cancelled') NOT NULL DEFAULT 'new',
    total decimal(12,2) NOT NULL DEFAULT 0,
    note text,
    placed_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    FOREIGN KEY (customer_id) REFERENCES customers (id)
)""",
    """
CREATE TABLE order_items (
    order_id bigint NOT NULL,
    line smallint NOT NULL,
    sku varchar(20) NOT NULL,
    quantity int unsigned NOT NULL,
    price decimal(12,2) NOT NULL,
    PRIMARY KEY (order_id, line),
    FOREIGN KEY (order_id) REFERENCES orders (id)
)""",
)
NUMBERS = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) "
LOAD_CUSTOMERS = """
INSERT INTO customers (id, email, name, address, wants_mail, created_at, deleted_at)
{numbers} SELECT n, concat('customer', n, '@example.com'), concat('Customer ', n),
    IF(n % 7 > 0, json_object('street', concat(n % 250, ' Mill Lane'), 'town', concat('Weir ', n % 40)), NULL),
    n % 3 = 0, timestamp('2024-01-01') + INTERVAL n * 37 MINUTE + INTERVAL n MICROSECOND,
    IF(n % 50 = 0, timestamp('2025-06-01 12:00:00') + INTERVAL n SECOND, NULL) FROM s
"""
LOAD_PRODUCTS = """
INSERT INTO products (sku, name, description, price, stock, updated_at)
{numbers} SELECT concat('SKU-', lpad(n, 6, '0')), concat('Product ', n, ' 青'),
    IF(n % 5 > 0, repeat(concat('A fine product, no. ', n, '. '), n % 12), NULL),
    n * 7919 % 100000 / 100, 1000000 + n % 500, timestamp('2025-01-01') + INTERVAL n HOUR FROM s
"""
LOAD_ORDERS = """
INSERT INTO orders (id, customer_id, status, total, note, placed_at)
{numbers} SELECT n, 1 + n * 31 % {customers}, 1 + n % 6, n * 104729 % 1000000 / 100,
    CASE n % 20 WHEN 0 THEN 'Please leave it\\nwith the miller' WHEN 1 THEN '' END,
    timestamp('2025-01-01') + INTERVAL n * 11 MINUTE + INTERVAL 1 MICROSECOND FROM s
"""
LOAD_ITEMS = """
INSERT INTO order_items (order_id, line, sku, quantity, price)
{numbers} SELECT n, line, concat('SKU-', lpad(1 + (n * 17 + line * 7) % {products}, 6, '0')), 1 + (n + line) % 4,
    (n + line) * 7919 % 100000 / 100
FROM s JOIN (SELECT 1 AS line UNION SELECT 2 UNION SELECT 3) l ON line <= 1 + n % 3
"""


def connected(url: str) -> Connection[Any]:
    """A session in UTC that commits by itself."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        charset="utf8mb4",
        autocommit=True,
        init_command="SET time_zone = '+00:00', sql_mode = 'TRADITIONAL'",
    )


def load(url: str, rows: int = 100_000) -> int:
    """Make the shop, and fill its tables with about `rows` rows in all; how many they are."""
    customers, products = max(rows // 10, 1), max(rows // 50, 1)
    orders = max((rows - customers - products) // 3, 1)
    with connected(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for statement in SCHEMA:
            cursor.execute(statement)
        cursor.execute(f"SET SESSION {_recursion(cursor)} = {rows + 1}")
        loaded = 0
        for statement, count in (
            (LOAD_CUSTOMERS, customers),
            (LOAD_PRODUCTS, products),
            (LOAD_ORDERS, orders),
            (LOAD_ITEMS, orders),
        ):
            numbers = NUMBERS.format(count=count)
            loaded += cursor.execute(statement.format(numbers=numbers, customers=customers, products=products))
    return loaded


def _recursion(cursor: Any) -> str:
    """What the two servers call the limit of a recursive query."""
    cursor.execute("SELECT VERSION()")
    return "max_recursive_iterations" if "mariadb" in str(cursor.fetchone()).lower() else "cte_max_recursion_depth"


class MysqlWorkload(LiveWorkload):
    """Customers, clerks and the stock room at work, in a process of their own."""

    transactions = f"{__name__}:MysqlTransactions"

    @classmethod
    def start(cls, url: str, rate: float = 500, seed: int = 1) -> Self:
        """Begin to change the shop at `url`, at about `rate` row changes a second (0: as fast as it goes)."""
        return cls(url, rate, seed, {})


def in_shop(url: str) -> Connection[Any]:
    """The same, in the shop's database."""
    connection = connected(url)
    connection.select_db(DATABASE)
    return connection


class MysqlTransactions:
    """What happens in a shop, one transaction a step."""

    driver = Driver(in_shop, lost=(pymysql.OperationalError,), refused=(pymysql.IntegrityError, pymysql.DataError))

    def __init__(self, connection: Connection[Any], random: random.Random) -> None:
        self._connection, self._random = connection, random
        self._skus = [sku for (sku,) in self._ask("SELECT sku FROM products ORDER BY sku")]
        self._kinds: dict[Callable[[], int], int] = {
            self._place_order: 45,
            self._change_status: 25,
            self._restock: 8,
            self._delete_order: 8,
            self._change_email: 7,
            self._register: 4,
            self._abandon: 3,
        }

    def step(self) -> int:
        [kind] = self._random.choices(list(self._kinds), weights=list(self._kinds.values()))
        self._connection.begin()
        try:
            changes = kind()
        except BaseException:
            self._connection.rollback()
            raise
        if kind == self._abandon:
            self._connection.rollback()
            return 0
        self._connection.commit()
        return changes

    def _change(self, statement: str, *parameters: object) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement, parameters))

    def _ask(self, query: str, *parameters: object) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(query, parameters)
            return cursor.fetchall()

    def _some(self, table: str, until: float = 1) -> int:
        """The first id at or after a random point between the first and the last; gaps of deleted rows are skipped."""
        [(first, last)] = self._ask(f"SELECT min(id), max(id) FROM {table}")
        wanted = first + until * self._random.random() * (last - first)
        found = self._ask(f"SELECT id FROM {table} WHERE id >= %s ORDER BY id LIMIT 1", int(wanted))
        return int(found[0][0])

    def _place_order(self) -> int:
        lines = self._random.sample(self._skus, min(self._random.randint(1, 5), len(self._skus)))
        note = self._random.choice([None, "", "ring twice", "ätherisch 😀"])
        changes = self._change("INSERT INTO orders (customer_id, note) VALUES (%s, %s)", self._some("customers"), note)
        [(order,)] = self._ask("SELECT LAST_INSERT_ID()")
        for line, sku in enumerate(lines, 1):
            quantity = self._random.randint(1, 4)
            changes += self._change(
                "INSERT INTO order_items SELECT %s, %s, sku, %s, price FROM products WHERE sku = %s",
                *(order, line, quantity, sku),
            )
            changes += self._change("UPDATE products SET stock = stock - %s WHERE sku = %s", quantity, sku)
        total = "(SELECT sum(quantity * price) FROM order_items WHERE order_id = %s)"
        return changes + self._change(f"UPDATE orders SET total = {total} WHERE id = %s", order, order)

    def _abandon(self) -> int:
        """An order that is rolled back as a whole."""
        return self._place_order()

    def _change_status(self) -> int:
        status = self._random.choice(["paid", "packed", "shipped", "delivered", "cancelled"])
        return self._change("UPDATE orders SET status = %s WHERE id = %s", status, self._some("orders"))

    def _restock(self) -> int:
        skus = self._random.sample(self._skus, min(6, len(self._skus)))
        return self._change(
            "UPDATE products SET stock = stock + %s, updated_at = CURRENT_TIMESTAMP(6)"
            f" WHERE sku IN ({', '.join(['%s'] * len(skus))})",
            *(self._random.randint(50, 200), *skus),
        )

    def _delete_order(self) -> int:
        """An old order is deleted for good, with its items."""
        order = self._some("orders", until=0.5)
        items = self._change("DELETE FROM order_items WHERE order_id = %s", order)
        return items + self._change("DELETE FROM orders WHERE id = %s", order)

    def _change_email(self) -> int:
        address = f"moved{self._random.getrandbits(48):012x}@example.org"
        return self._change("UPDATE customers SET email = %s WHERE id = %s", address, self._some("customers"))

    def _register(self) -> int:
        email = f"new{self._random.getrandbits(48):012x}@example.org"
        name = f"Newcomer {self._random.randint(1, 10**6)}"
        return self._change("INSERT INTO customers (email, name) VALUES (%s, %s)", email, name)
