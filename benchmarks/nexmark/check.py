"""The rows at rest of Nexmark's queries by DuckDB, and how others differ from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.nexmark.queries import Query


def rows_at_rest(query: Query, inputs: Mapping[str, pa.Table]) -> pa.Table:
    """Return the result of a query's SQL. ``inputs``: persons, auctions, bids and side."""
    return queried(query.sql, inputs)


def queried(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return what DuckDB makes of tables by SQL, with times in UTC."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            database.register(name, table)
        return database.sql(sql).to_arrow_table()


def differences(rows: pa.Table, expected: pa.Table) -> dict[str, list[tuple[Any, ...]]]:
    """Return up to three rows that only one of two tables has, in the columns of ``expected``; an
    empty mapping if they have the same rows.
    """
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("expected", expected)
        database.register("actual", rows.select(expected.column_names))
        extra = {
            f"in {left} alone": database.sql(
                f"(FROM {left}) EXCEPT ALL (FROM {right}) LIMIT 3"
            ).fetchall()
            for left, right in (("actual", "expected"), ("expected", "actual"))
        }
    return {where: differing for where, differing in extra.items() if differing}
