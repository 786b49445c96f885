"""Nexmark's queries, each as a topology and as the SQL of its result at rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import functions as F

import dovetail as dt

WINDOW = "10 seconds"
SIDE_ROWS = 10_000
"""The rows of the table that query 13 looks up."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of all queries."""

    side: dt.Table
    """``SIDE_ROWS`` rows that do not change: the key ``side`` and a ``value``."""
    persons: dt.Table
    auctions: dt.Table
    bids: dt.Stream
    bid_rows: dt.Table
    """The bids as a table, by their numbers."""


Topology: TypeAlias = "Callable[[Inputs], dt.Table | dt.Stream]"


@dataclass(frozen=True)
class Query:
    """A query of the benchmark."""

    title: str
    topology: Topology
    sql: str
    """DuckDB's query for the rows at rest. Its columns are those of the topology, in any order."""


def local_sellers(inputs: Inputs) -> dt.Table:
    """Query 3: auctions of a category, with sellers from three states."""
    local = inputs.persons.where("state IN ('OR', 'ID', 'CA')")
    auctions = inputs.auctions.where("category = 10")
    return auctions.join(local, on="seller", select=["name", "city", "state"])


def bids_in_time(inputs: Inputs) -> dt.Table:
    """Bids that came while their auctions were open, with the category of the auction."""
    columns = {
        "at": "left.time",
        **{name: f"left.{name}" for name in ("auction", "bidder", "price")},
        **{name: f"right.{name}" for name in ("category", "opens", "expires")},
    }
    bids = inputs.bid_rows.join(inputs.auctions, on="auction", select=columns)
    return bids.where("at BETWEEN opens AND expires")


def average_price(inputs: Inputs) -> dt.Table:
    """Query 4: the mean of the highest bids of all auctions in a category."""
    final = bids_in_time(inputs).group_by("auction", "category").agg(final=dt.max("price"))
    return final.group_by("category").agg(price=dt.mean("final"))


def hot_auctions(inputs: Inputs) -> dt.Table:
    """Query 5: the auctions with the most bids in each hopping window."""
    windows = dt.windows.hopping(WINDOW, advance="2 seconds")
    counts = inputs.bids.group_by("auction").window(windows).agg(bids=dt.count())
    return (
        counts.to_table(windows="on_close")
        .group_by("window_start", "window_end")
        .agg(hottest=dt.top(1, ["auction", "bids"], by="bids"))
    )


def highest_bid(inputs: Inputs) -> dt.Table:
    """Query 7: the highest bid of each window."""
    bids = inputs.bids.with_columns(everything=F.lit(1))
    windows = dt.windows.tumbling(WINDOW)
    highest = dt.top(1, ["auction", "price", "bidder", "bid"], by="price")
    return bids.group_by("everything").window(windows).agg(highest=highest).to_table()


def new_sellers(inputs: Inputs) -> dt.Table:
    """Query 8: people who came and opened auctions in the same window."""
    windows = dt.windows.tumbling(WINDOW)
    came = inputs.persons.to_stream().group_by("id").window(windows).agg(name=dt.last("name"))
    opened = inputs.auctions.to_stream().group_by("seller").window(windows).agg(opened=dt.count())
    return came.join(opened, on={"id": "seller"}).to_table()


def winning_bids(inputs: Inputs) -> dt.Table:
    """Query 9: the winning bid of each auction."""
    winner = dt.top(1, ["bid", "price", "bidder"], by="price")
    return bids_in_time(inputs).group_by("auction").agg(winner=winner)


def bidding_sessions(inputs: Inputs) -> dt.Table:
    """Query 11: the bids of each bidder's sessions."""
    sessions = inputs.bids.group_by("bidder").window(dt.windows.session("1 second"))
    return sessions.agg(bids=dt.count()).to_table()


def with_side(inputs: Inputs) -> dt.Stream:
    """Query 13: bids, each with a row of a table that does not change."""
    bids = inputs.bids.with_columns(side=F.col("auction") % SIDE_ROWS)
    return bids.join(inputs.side, on="side", select=["auction", "bidder", "price", "value"])


def auction_days(inputs: Inputs) -> dt.Table:
    """Query 17: each auction's bids by day."""
    bids = inputs.bids.with_columns(
        day=F.date_format("time", "yyyy-MM-dd"),
        low=F.when(F.col("price") < 10_000, 1),
        high=F.when(F.col("price") >= 1_000_000, 1),
    )
    return bids.group_by("auction", "day").agg(
        bids=dt.count(),
        low=dt.count("low"),
        high=dt.count("high"),
        least=dt.min("price"),
        most=dt.max("price"),
        mean=dt.mean("price"),
        total=dt.sum("price"),
    )


def last_bids(inputs: Inputs) -> dt.Table:
    """Query 18: each bidder's last bid on each auction."""
    return inputs.bids.group_by("bidder", "auction").agg(bid=dt.last("bid"), price=dt.last("price"))


def top_bids(inputs: Inputs) -> dt.Table:
    """Query 19: the ten highest bids on each auction."""
    return inputs.bids.group_by("auction").agg(highest=dt.top(10, ["price", "bid"], by="price"))


def bids_on_category(inputs: Inputs) -> dt.Table:
    """Query 20: bids on the auctions of a category, with the auction's columns."""
    auctions = inputs.auctions.where("category = 10")
    return inputs.bid_rows.join(
        auctions, on="auction", select=["auction", "bidder", "price", "item", "seller", "category"]
    )


_IN_TIME = """
    SELECT b.*, a.category FROM bids b JOIN auctions a ON b.auction = a.id
    WHERE b.time BETWEEN a.opens AND a.expires
"""
_TUMBLING = f"time_bucket(INTERVAL '{WINDOW}', time)"

QUERIES: Mapping[str, Query] = {
    "q3": Query(
        "auctions of local sellers",
        local_sellers,
        """SELECT a.id, p.name, p.city, p.state FROM auctions a JOIN persons p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    ),
    "q4": Query(
        "mean price by category",
        average_price,
        f"""SELECT category, avg(final) AS price FROM (
            SELECT auction, category, max(price) AS final FROM ({_IN_TIME}) GROUP BY ALL
        ) GROUP BY category""",
    ),
    "q5": Query(
        "hot auctions",
        hot_auctions,
        f"""WITH counts AS (
            SELECT auction, s AS window_start, s + INTERVAL '{WINDOW}' AS window_end,
                count(*) AS bids
            FROM (
                SELECT auction, unnest(range(0, 10, 2)) AS back, time,
                    time_bucket(INTERVAL '2 seconds', time) - to_seconds(back) AS s
                FROM bids
            ) GROUP BY ALL
        ), ended AS (SELECT * FROM counts WHERE window_end <= (SELECT max(time) FROM bids))
        SELECT window_start, window_end,
            [first({{'auction': auction, 'bids': bids}} ORDER BY bids DESC, auction)] AS hottest
        FROM ended GROUP BY ALL""",
    ),
    "q7": Query(
        "highest bid of a window",
        highest_bid,
        f"""SELECT 1 AS everything, s AS window_start, s + INTERVAL '{WINDOW}' AS window_end,
            [first(
                {{'auction': auction, 'price': price, 'bidder': bidder, 'bid': bid}}
                ORDER BY price DESC, auction, bidder, bid
            )] AS highest
        FROM (SELECT *, {_TUMBLING} AS s FROM bids) GROUP BY s""",
    ),
    "q8": Query(
        "new sellers of a window",
        new_sellers,
        f"""SELECT p.id, p.s AS window_start, p.s + INTERVAL '{WINDOW}' AS window_end, p.name,
            a.opened
        FROM (SELECT *, {_TUMBLING} AS s FROM persons) p
        JOIN (SELECT seller, {_TUMBLING} AS s, count(*) AS opened FROM auctions GROUP BY ALL) a
        ON p.id = a.seller AND p.s = a.s""",
    ),
    "q9": Query(
        "winning bids",
        winning_bids,
        f"""SELECT auction, [first(
            {{'bid': bid, 'price': price, 'bidder': bidder}} ORDER BY price DESC, bid
        )] AS winner FROM ({_IN_TIME}) GROUP BY auction""",
    ),
    "q11": Query(
        "sessions of bidders",
        bidding_sessions,
        """SELECT bidder, min(time) AS window_start, max(time) AS window_end, count(*) AS bids
        FROM (
            SELECT *, sum(fresh) OVER (PARTITION BY bidder ORDER BY time) AS session FROM (
                SELECT *, coalesce(
                    time - lag(time) OVER (PARTITION BY bidder ORDER BY time)
                    > INTERVAL '1 second', false
                )::INT AS fresh FROM bids
            )
        ) GROUP BY bidder, session""",
    ),
    "q13": Query(
        "bids with a fixed table",
        with_side,
        f"""SELECT b.auction, b.bidder, b.price, s.value FROM bids b
        JOIN side s ON b.auction % {SIDE_ROWS} = s.side""",
    ),
    "q17": Query(
        "auctions by day",
        auction_days,
        """SELECT auction, strftime(time, '%Y-%m-%d') AS day, count(*) AS bids,
            count(*) FILTER (price < 10000) AS low, count(*) FILTER (price >= 1000000) AS high,
            min(price) AS least, max(price) AS most, avg(price) AS mean, sum(price) AS total
        FROM bids GROUP BY ALL""",
    ),
    "q18": Query(
        "last bids",
        last_bids,
        """SELECT bidder, auction, arg_max(bid, time) AS bid, arg_max(price, time) AS price
        FROM bids GROUP BY ALL""",
    ),
    "q19": Query(
        "ten highest bids",
        top_bids,
        """SELECT auction,
            list({'price': price, 'bid': bid} ORDER BY price DESC, bid)[:10] AS highest
        FROM bids GROUP BY auction""",
    ),
    "q20": Query(
        "bids on a category",
        bids_on_category,
        """SELECT b.bid, b.auction, b.bidder, b.price, a.item, a.seller, a.category
        FROM bids b JOIN auctions a ON b.auction = a.id WHERE a.category = 10""",
    ),
}
