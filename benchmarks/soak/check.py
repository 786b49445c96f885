"""Whether what has come out is what DuckDB makes of all that went in.

A customer's record gives its orders' results under its own time, so a result's time also says which
of the two came last. That DuckDB cannot know: the table and the files must tell the same.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks.soak import feed

PRESENT = """
    SELECT * EXCLUDE (number, last, _change)
    FROM (SELECT *, max(number) OVER (PARTITION BY {key}) AS last FROM {topic})
    WHERE number = last AND _change = 'upsert'
"""
EXPECTED = {
    "delta": """
        SELECT id, amount, city
        FROM present_orders o JOIN present_customers c ON o.customer = c.name""",
    "topic": """
        SELECT city, count(*) AS orders, sum(amount)::BIGINT AS amount
        FROM present_orders o JOIN present_customers c ON o.customer = c.name GROUP BY city""",
    "parquet": "SELECT id, amount, city FROM expected_delta",
    "times": "SELECT id, _timestamp FROM '{place}/delta.parquet'",
}
STORED = {
    "delta": "SELECT id, amount, city FROM '{place}/delta.parquet'",
    "topic": """
        SELECT * EXCLUDE (deleted) FROM (
            SELECT arg_max(city, _offset) AS city, arg_max(orders, _offset) AS orders,
                arg_max(amount, _offset) AS amount, arg_max(_deleted, _offset) AS deleted
            FROM '{place}/topic.parquet' GROUP BY city) WHERE NOT deleted""",
    "parquet": """
        SELECT id, arg_max(amount, _position) AS amount, arg_max(city, _position) AS city
        FROM '{place}/parquet.parquet' GROUP BY id
        HAVING arg_max(_change, _position) = 'upsert'""",
    "times": """
        SELECT id, arg_max(_timestamp, _position) AS _timestamp
        FROM '{place}/parquet.parquet' GROUP BY id
        HAVING arg_max(_change, _position) = 'upsert'""",
}


def differences(place: Path, size: feed.Size, batches: int) -> dict[str, int]:
    """Of each output, how many rows are missing, surplus or other ones than expected; and of the
    changes in Parquet, how many are there more than once.
    """
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        first, later = feed.beginning(size), feed.changes(size, batches)
        for topic, (key, _) in feed.COLUMNS.items():
            rows = pa.concat_tables([first[topic], later[topic]])
            numbered = rows.append_column("number", pa.array(range(len(rows))))
            database.register(topic, numbered)
            present = PRESENT.format(key=key, topic=topic)
            database.execute(f"CREATE TABLE present_{topic} AS {present}")
        found = {}
        for name, query in EXPECTED.items():
            sides = f"stored_{name}", f"expected_{name}"
            for side, made in zip(sides, (STORED[name], query), strict=True):
                database.execute(f"CREATE TABLE {side} AS {made.format(place=place)}")
            found[name] = sum(
                _count(database, f"SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b}")
                for a, b in (sides, sides[::-1])
            )
        changes = f"FROM '{place / 'parquet.parquet'}'"
        all_, apart = (
            _count(database, f"SELECT {distinct} id, _position {changes}")
            for distinct in ("", "DISTINCT")
        )
        return found | {"doubled": all_ - apart}


def _count(database: duckdb.DuckDBPyConnection, query: str) -> int:
    row = database.execute(f"SELECT count(*) FROM ({query})").fetchone()
    assert row is not None
    return int(row[0])
