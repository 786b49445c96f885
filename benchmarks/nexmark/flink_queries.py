"""Nexmark's queries in the SQL of Apache Flink, and of DuckDB for the form of our results.

The queries read the tables of ``TABLES``. All windows close at the end of the input, for files come
in any order. Deduplication and the best rows are written as
Flink's planner knows them, by ``ROW_NUMBER``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.nexmark.queries import QUERIES, SIDE_ROWS

_MOMENT = ", ts AS CAST(`time` AS TIMESTAMP(3)), WATERMARK FOR ts AS ts - INTERVAL '1' HOUR"
TABLES = {
    "persons": f"id BIGINT, name STRING, city STRING, state STRING, `time` TIMESTAMP(6){_MOMENT}",
    "auctions": (
        "id BIGINT, item BIGINT, seller BIGINT, category BIGINT, opens TIMESTAMP(6), "
        f"expires TIMESTAMP(6), `time` TIMESTAMP(6){_MOMENT}"
    ),
    "bids": (
        "bid BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, "
        f"`time` TIMESTAMP(6){_MOMENT}"
    ),
    "side": "side BIGINT, `value` BIGINT",
}
"""The columns of the inputs, by their names."""
FILE_FORMAT = {"format": "parquet", "parquet.utc-timezone": "true"}

_TEN = "INTERVAL '10' SECOND"
_WINDOW = "window_start, window_end"
_TIMES = "window_start::TIMESTAMPTZ AS window_start, window_end::TIMESTAMPTZ AS window_end"
_IN_TIME = "bids b JOIN auctions a ON b.auction = a.id WHERE b.`time` BETWEEN a.opens AND a.expires"
_IN_MILLISECONDS = "SELECT * REPLACE (date_trunc('milliseconds', time) AS time) FROM bids"


class FlinkQuery(NamedTuple):
    """A query as Flink runs it."""

    sql: str
    form: str = "SELECT * FROM flink"
    """DuckDB's query that gives Flink's rows, the table ``flink``, the form of our results."""
    form_of_ours: str = "SELECT * FROM expected"
    """The same for the rows that are expected, the table ``expected``."""


def _first(columns: str, rows: str, by: str, order: str) -> str:
    """Return the query of the first row of each group."""
    return (
        f"SELECT {columns} FROM (SELECT *, ROW_NUMBER() OVER "
        f"(PARTITION BY {by} ORDER BY {order}) AS place FROM ({rows})) WHERE place = 1"
    )


def _windows(table: str, by: str, made: str) -> str:
    """Return the query of an aggregate by tumbling windows."""
    return (
        f"SELECT {by}, {_WINDOW}, {made} FROM TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(ts), {_TEN})) "
        f"GROUP BY {by}, {_WINDOW}"
    )


FLINK: Mapping[str, FlinkQuery] = {
    "q3": FlinkQuery(
        "SELECT a.id, p.name, p.city, p.state FROM auctions a JOIN persons p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
    ),
    "q4": FlinkQuery(
        "SELECT category, AVG(CAST(final AS DOUBLE)) AS price FROM ("
        f"SELECT a.id, a.category, MAX(b.price) AS final FROM {_IN_TIME} GROUP BY a.id, a.category"
        ") GROUP BY category"
    ),
    "q5": FlinkQuery(
        _first(
            f"{_WINDOW}, auction, bids",
            f"SELECT auction, {_WINDOW}, COUNT(*) AS bids FROM TABLE(HOP(TABLE bids, "
            f"DESCRIPTOR(ts), INTERVAL '2' SECOND, {_TEN})) GROUP BY auction, {_WINDOW}",
            by=_WINDOW,
            order="bids DESC, auction",
        ),
        f"SELECT {_TIMES}, [{{'auction': auction, 'bids': bids}}] AS hottest FROM flink "
        "WHERE window_end::TIMESTAMPTZ <= (SELECT max(time) FROM bids)",
    ),
    "q7": FlinkQuery(
        _first(
            f"{_WINDOW}, auction, price, bidder, bid",
            f"SELECT * FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), {_TEN}))",
            by=_WINDOW,
            order="price DESC, auction, bidder, bid",
        ),
        f"SELECT 1 AS everything, {_TIMES}, [{{'auction': auction, 'price': price, "
        "'bidder': bidder, 'bid': bid}] AS highest FROM flink",
    ),
    "q8": FlinkQuery(
        f"SELECT p.id, p.window_start, p.window_end, p.name, a.opened "
        f"FROM ({_windows('persons', 'id', 'LAST_VALUE(name) AS name')}) p "
        f"JOIN ({_windows('auctions', 'seller', 'COUNT(*) AS opened')}) a ON p.id = a.seller "
        "AND p.window_start = a.window_start AND p.window_end = a.window_end",
        f"SELECT * REPLACE ({_TIMES.replace(', window', ', flink.window')}) FROM flink",
    ),
    "q9": FlinkQuery(
        _first(
            "auction, bid, price, bidder",
            f"SELECT b.* FROM {_IN_TIME}",
            by="auction",
            order="price DESC, bid",
        ),
        "SELECT auction, [{'bid': bid, 'price': price, 'bidder': bidder}] AS winner FROM flink",
    ),
    "q11": FlinkQuery(
        f"SELECT bidder, {_WINDOW}, COUNT(*) AS bids FROM TABLE(SESSION(TABLE bids "
        f"PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '1' SECOND)) GROUP BY bidder, {_WINDOW}",
        # Flink's sessions end a gap after their last record.
        "SELECT bidder, window_start::TIMESTAMPTZ AS window_start, "
        "window_end::TIMESTAMPTZ - INTERVAL '1 second' AS window_end, bids FROM flink",
        # Its event times have milliseconds.
        QUERIES["q11"].sql.replace("FROM bids", f"FROM ({_IN_MILLISECONDS})"),
    ),
    "q13": FlinkQuery(
        "SELECT b.auction, b.bidder, b.price, s.`value` FROM bids b JOIN side s "
        f"ON MOD(b.auction, {SIDE_ROWS}) = s.side"
    ),
    "q17": FlinkQuery(
        "SELECT auction, DATE_FORMAT(ts, 'yyyy-MM-dd') AS `day`, COUNT(*) AS bids, "
        "COUNT(*) FILTER (WHERE price < 10000) AS low, "
        "COUNT(*) FILTER (WHERE price >= 1000000) AS high, MIN(price) AS least, "
        "MAX(price) AS most, AVG(CAST(price AS DOUBLE)) AS mean, SUM(price) AS total "
        "FROM bids GROUP BY auction, DATE_FORMAT(ts, 'yyyy-MM-dd')"
    ),
    "q18": FlinkQuery(
        _first(
            "bidder, auction, bid, price",
            "SELECT * FROM bids",
            by="bidder, auction",
            order="`time` DESC",
        )
    ),
    "q19": FlinkQuery(
        "SELECT auction, price, bid FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction "
        "ORDER BY price DESC, bid) AS place FROM bids) WHERE place <= 10",
        "SELECT auction, list({'price': price, 'bid': bid} ORDER BY price DESC, bid) AS highest "
        "FROM flink GROUP BY auction",
    ),
    "q20": FlinkQuery(
        "SELECT b.bid, b.auction, b.bidder, b.price, a.item, a.seller, a.category "
        "FROM bids b JOIN auctions a ON b.auction = a.id WHERE a.category = 10"
    ),
}
