"""The check: a streamed changelog adds up to the same table as a join of the finished tables.

Nothing here uses dovetail, nor Spark's joins: each changelog is read as a whole, reduced to the
last row of each key, and joined by polars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NO_VALUES = ("offset", "time", "deleted", "_change", "_timestamp", "_position")


def expected(history: Path, query: str) -> pl.DataFrame:
    """A query's final table, from the final states of the tables it reads."""

    def table(name: str, key: str) -> pl.DataFrame:
        log = pl.read_parquet(history / name / "*.parquet")
        return last_rows(log, key, order="offset", deleted=pl.col("deleted"))

    return _EXPECTED[query](table)


def streamed(changes: pl.DataFrame, key: str) -> pl.DataFrame:
    """A query's final table, from the changelog that it wrote."""
    return last_rows(changes, key, order="_position", deleted=pl.col("_change") == "delete")


def last_rows(log: pl.DataFrame, key: str, order: str, deleted: pl.Expr) -> pl.DataFrame:
    """The last row of each key, but for those that are tombstones."""
    last = log.sort(order).unique(key, keep="last").filter(~deleted)
    return last.drop(_NO_VALUES, strict=False)


def differences(streamed: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """The rows that one table has more often than the other, with ``found_in``.

    Compares all columns; a null equals a null.
    """
    columns = expected.columns
    sides = [
        streamed.with_columns(surplus=pl.lit(1)),
        expected.with_columns(surplus=pl.lit(-1)),
    ]
    surplus = pl.concat(sides).group_by(columns).agg(pl.sum("surplus"))
    found_in = pl.when(pl.col("surplus") > 0).then(pl.lit("streamed")).otherwise(pl.lit("expected"))
    differing = surplus.filter(pl.col("surplus") != 0)
    return differing.select(found_in.alias("found_in"), *columns).sort(columns[0], "found_in")


def _flights(table: Callable[[str, str], pl.DataFrame]) -> pl.DataFrame:
    schedule, actuals = table("schedule", "flight_id"), table("actuals", "flight_id")
    status = (
        pl.when(pl.col("landed").is_not_null())
        .then(pl.lit("landed"))
        .when(pl.col("departed").is_not_null())
        .then(pl.lit("departed"))
        .otherwise(pl.lit("scheduled"))
    )
    return schedule.join(actuals, on="flight_id", how="left").select(
        *("flight_id", "carrier", "flight", "origin", "dest", "tailnum"),
        *("scheduled", "departed", "landed"),
        pl.coalesce("arr_delay", "dep_delay").alias("minutes_late"),
        (pl.col("dep_delay") - pl.col("arr_delay")).alias("minutes_made_up"),
        status.alias("status"),
    )


def _fleet(table: Callable[[str, str], pl.DataFrame]) -> pl.DataFrame:
    sightings, planes = table("sightings", "tailnum"), table("planes", "tailnum")
    return sightings.join(planes, on="tailnum", how="full", coalesce=True).select(
        *("tailnum", "flight_id", "carrier", "airport", "flown"),
        *("built", "manufacturer", "model", "seats"),
    )


def _carriers(table: Callable[[str, str], pl.DataFrame]) -> pl.DataFrame:
    operations, airlines = table("operations", "carrier"), table("airlines", "carrier")
    cancellations = table("cancellations", "carrier")
    cancelled = pl.col("cancelled").fill_null(0)
    return (
        operations.join(cancellations, on="carrier", how="left")
        .join(airlines, on="carrier", how="left")
        .select(
            *("carrier", "name", "flown", "late"),
            cancelled.alias("cancelled"),
            (100 * cancelled / (pl.col("flown") + cancelled)).alias("percent_cancelled"),
        )
    )


_EXPECTED = {"flights": _flights, "fleet": _fleet, "carriers": _carriers}
