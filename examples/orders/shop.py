"""The shop's database: its tables, what happens in them, and the join that PostgreSQL computes."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg

TABLES = {"customers": "customer_id", "products": "product_id", "orders": "order_id"}
"""The tables and their primary keys. No foreign key is declared: customers and products may go."""

MARK = "finished"
"""A table of which a row says that no more changes come."""

SCHEMA = f"""
CREATE SCHEMA shop;
CREATE TABLE shop.customers (customer_id bigint PRIMARY KEY, name text NOT NULL, city text);
CREATE TABLE shop.products
  (product_id bigint PRIMARY KEY, title text NOT NULL, price numeric(10,2) NOT NULL);
CREATE TABLE shop.orders
  (order_id bigint PRIMARY KEY, customer_id bigint, product_id bigint, quantity int NOT NULL,
   placed_at timestamptz NOT NULL);
CREATE TABLE shop.{MARK} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
CREATE SCHEMA reports;
"""
COLUMNS = "order_id, customer_id, product_id, quantity, placed_at, name, city, title, price, amount"
JOIN = f"""
SELECT {COLUMNS} FROM (
  SELECT *, price * quantity AS amount FROM shop.orders
  LEFT JOIN shop.customers USING (customer_id) LEFT JOIN shop.products USING (product_id)) AS rows
"""
CITIES = ("Oslo", "Łódź", "Lima", "東京", "Accra", None)
_ADD_CUSTOMER = "INSERT INTO shop.customers VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_ADD_PRODUCT = "INSERT INTO shop.products VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_ADD_ORDER = "INSERT INTO shop.orders VALUES (%s, %s, %s, %s, now())"


class Trade(threading.Thread):
    """What happens in the shop: once it is ``opened``, so many rows change, a few in each
    transaction, at a pace that can be watched.
    """

    def __init__(self, dsn: str, changes: int, per_second: int) -> None:
        super().__init__(daemon=True)
        self._dsn, self._wanted, self._pause_s = dsn, changes, 1 / per_second
        self._random = random.Random(20)
        self._orders = 0
        self._people, self._goods = max(changes // 30, 5), max(changes // 60, 5)
        self.changed = 0
        self.opened = threading.Event()

    def run(self) -> None:
        """Trade until all has happened."""
        with psycopg.connect(self._dsn) as connection:
            for number in range(self._people):
                self._do(connection, _ADD_CUSTOMER, number, f"customer {number}", self._city())
            for number in range(self._goods):
                self._do(connection, _ADD_PRODUCT, number, f"product {number}", self._price())
            connection.commit()
            self.opened.wait()
            while self.changed < self._wanted:
                before = self.changed
                for _ in range(self._random.randint(1, 5)):
                    self._do(connection, *self._event())
                connection.commit()
                time.sleep(self._pause_s * (self.changed - before))

    def _do(self, connection: Any, statement: str, *values: Any) -> None:
        self.changed += connection.execute(statement, values).rowcount

    def _event(self) -> tuple[Any, ...]:
        person, good = self._of(self._people), self._of(self._goods)
        order, count = self._of(self._orders), self._of(9) + 1
        (kind,) = self._random.choices(range(9), weights=(40, 20, 6, 6, 10, 10, 2, 2, 4))
        if kind == 0:
            self._orders += 1
            return _ADD_ORDER, self._orders, person, good, count
        return (
            ("UPDATE shop.orders SET quantity = %s WHERE order_id = %s", count, order),
            ("UPDATE shop.orders SET customer_id = %s WHERE order_id = %s", person, order),
            ("DELETE FROM shop.orders WHERE order_id = %s", order),
            ("UPDATE shop.customers SET city = %s WHERE customer_id = %s", self._city(), person),
            ("UPDATE shop.products SET price = %s WHERE product_id = %s", self._price(), good),
            ("DELETE FROM shop.customers WHERE customer_id = %s", person),
            ("DELETE FROM shop.products WHERE product_id = %s", good),
            (_ADD_CUSTOMER, person, f"customer {person}, again", self._city()),
        )[kind - 1]

    def _of(self, count: int) -> int:
        return self._random.randrange(max(count, 1))

    def _city(self) -> str | None:
        return self._random.choice(CITIES)

    def _price(self) -> str:
        return f"{self._random.randint(100, 99_999) / 100:.2f}"
