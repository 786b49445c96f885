"""The check: what was streamed is what a join of the finished tables and whole streams gives.

Nothing here uses dovetail, nor Spark's joins: each log is read as a whole and joined by polars, a
table's after it is reduced to the last row of each key. A changelog adds up to its table; a
stream has exactly the expected rows, each as often, with their timestamps.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NO_VALUES = ("offset", "time", "deleted", "_change", "_timestamp", "_position")


def expected(history: Path, query: str) -> pl.DataFrame:
    """A query's final table or all rows of its stream, from the logs that it reads."""
    return _EXPECTED[query](history)


def streamed(changes: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """A query's final table, or with no ``key`` its stream, from the changelog that it wrote."""
    if not key:
        return changes.drop("_position")
    return last_rows(changes, key, order="_position", deleted=pl.col("_change") == "delete")


def last_rows(log: pl.DataFrame, key: Sequence[str], order: str, deleted: pl.Expr) -> pl.DataFrame:
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


def _log(history: Path, name: str) -> pl.DataFrame:
    return pl.read_parquet(history / name / "*.parquet")


def _table(history: Path, name: str, key: str) -> pl.DataFrame:
    return last_rows(_log(history, name), [key], order="offset", deleted=pl.col("deleted"))


def _flights(history: Path) -> pl.DataFrame:
    schedule = _table(history, "schedule", "flight_id")
    actuals = _table(history, "actuals", "flight_id")
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


def _network(history: Path) -> pl.DataFrame:
    found = _flights(history)
    for name, key, foreign_key in (
        ("planes", "tailnum", "tailnum"),
        ("airlines", "carrier", "carrier"),
        ("airports", "airport", "dest"),
    ):
        table = _table(history, name, key)
        found = found.join(table, left_on=foreign_key, right_on=key, how="left")
    return found


def _carriers(history: Path) -> pl.DataFrame:
    operations = _table(history, "operations", "carrier")
    airlines = _table(history, "airlines", "carrier")
    cancellations = _table(history, "cancellations", "carrier")
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


def _weather(history: Path) -> pl.DataFrame:
    """The last observation up to each departure; the departures of the last six hours wait."""
    departures = _log(history, "departures").sort("time")
    observations = _log(history, "weather").sort("time").drop("offset", "deleted")
    found = departures.join_asof(observations, on="time", by="origin", check_sortedness=False)
    return found.filter(pl.col("time") + timedelta(hours=6) <= pl.col("time").max()).select(
        *("flight_id", "carrier", "origin", "dep_delay"),
        *("temp", "wind_speed", "precip", "visib"),
        pl.lit("upsert").alias("_change"),
        pl.col("time").alias("_timestamp"),
    )


def _trips(history: Path) -> pl.DataFrame:
    """Landings within twelve hours; the departures without one and younger than thirteen wait."""
    departures = _log(history, "departures").drop("offset", "deleted")
    landings = _log(history, "landings").drop("offset", "deleted").rename({"time": "landed"})
    end = pl.concat([departures["time"], landings["landed"]]).max()
    left = departures.join(landings, on="flight_id")
    hours = pl.col("landed") - pl.col("time")
    landed = left.filter((hours >= timedelta()) & (hours <= timedelta(hours=12)))
    closed = departures.filter(pl.col("time") + timedelta(hours=13) < end)
    missing = closed.join(landed, on="flight_id", how="anti")
    return pl.concat([landed, missing], how="diagonal").select(
        *("flight_id", "carrier", "origin", "dest", "dep_delay", "arr_delay", "air_time"),
        (pl.col("dep_delay") - pl.col("arr_delay")).alias("minutes_made_up"),
        pl.lit("upsert").alias("_change"),
        pl.max_horizontal("time", "landed").alias("_timestamp"),
    )


def _fleet(history: Path) -> pl.DataFrame:
    schedule, planes = (
        _table(history, "schedule", "flight_id"),
        _table(history, "planes", "tailnum"),
    )
    return schedule.join(planes, on="tailnum", how="left").select(
        "flight_id", "carrier", "tailnum", "manufacturer", "seats"
    )


def _hours(history: Path) -> pl.DataFrame:
    """Counted by the hour of the departure, then joined with itself a week later."""
    start = pl.col("time").dt.truncate("1h").alias("window_start")
    hourly = (
        _log(history, "departures")
        .group_by("carrier", start)
        .agg(
            pl.len().cast(pl.Int64).alias("departures"),
            pl.mean("dep_delay").alias("minutes_late"),
        )
    )
    before = hourly.select(
        "carrier",
        pl.col("window_start") + timedelta(days=7),
        pl.col("departures").alias("week_before"),
    )
    airlines = _table(history, "airlines", "carrier")
    return (
        hourly.join(before, on=["carrier", "window_start"], how="left")
        .join(airlines, on="carrier", how="left")
        .select(
            *("carrier", "window_start"),
            (pl.col("window_start") + timedelta(hours=1)).alias("window_end"),
            *("departures", "minutes_late", "week_before", "name"),
        )
    )


_EXPECTED = {
    "flights": _flights,
    "network": _network,
    "carriers": _carriers,
    "weather": _weather,
    "trips": _trips,
    "fleet": _fleet,
    "hours": _hours,
}
