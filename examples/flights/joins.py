"""The tables, the streams and their joins: this is all there is to write with dovetail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from examples.flights.history import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Log:
    """A log to read: its name and key, as a table or as a stream; ``versioned``: the table's
    history; ``stored``: whether the table's rows are also in the database, by which of its
    ``indexes`` they are found there.
    """

    name: str
    key: str
    stream: bool = False
    versioned: str | None = None
    stored: bool = False
    indexes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Query:
    """A topology to run: the logs it reads, how it joins them, which changes it emits.

    ``key``: what the resulting table is keyed by, nothing for a stream, each row of which counts.
    ``files``: how many files of each log a micro-batch reads. Its fixed cost is about a second, so
    queries over little data take several at a time.
    """

    name: str
    reads: tuple[Log, ...]
    topology: Callable[..., dt.Table | dt.Stream]
    key: tuple[str, ...] = ()
    emit: Literal["change", "batch"] = "change"
    files: int = 1


def read(spark: SparkSession, history: Path, log: Log, files_a_batch: int) -> dt.Table | dt.Stream:
    """A table or a stream from its files, of which each micro-batch reads so many."""
    files = str(history / log.name)
    frame = (
        spark.readStream.schema(spark.read.parquet(files).schema)
        .option("maxFilesPerTrigger", files_a_batch)
        .parquet(files)
    )
    columns: dict[str, Any] = {
        "key": log.key,
        "timestamp": "time",
        "deleted": "deleted",
        "sequence": "offset",
    }
    if log.stream:
        return dt.Stream.from_changelog(frame, **columns, name=log.name)
    table = dt.Table.from_changelog(frame, **columns, versioned=log.versioned, name=log.name)
    if not log.stored:
        return table
    indexes = [dt.lookups.index(column) for column in log.indexes]
    return table.with_lookup(
        dt.lookups.sqlite(str(history / DATABASE), log.name, key=log.key, indexes=indexes)
    )


def flights(schedule: dt.Table, actuals: dt.Table) -> dt.Table:
    """Every scheduled flight with what is known of it so far; a cancelled one disappears."""
    return schedule.join(
        actuals,
        how="left",
        select=[
            "carrier",
            "flight",
            "origin",
            "dest",
            "tailnum",
            "scheduled",
            "departed",
            "landed",
            F.coalesce("arr_delay", "dep_delay").alias("minutes_late"),
            (F.col("dep_delay") - F.col("arr_delay")).alias("minutes_made_up"),
            F.when(F.col("right.landed").isNotNull(), "landed")
            .when(F.col("right.departed").isNotNull(), "departed")
            .otherwise("scheduled")
            .alias("status"),
        ],
    )


def network(
    schedule: dt.Table,
    actuals: dt.Table,
    planes: dt.Table,
    airlines: dt.Table,
    airports: dt.Table,
) -> dt.Table:
    """Every flight with its plane, its airline and where it goes, whichever of them changes: the
    table of flights above, joined by one foreign key after another.
    """
    return (
        flights(schedule, actuals)
        .join(planes, how="left", on="tailnum")
        .join(airlines, how="left", on="carrier")
        .join(airports, how="left", on="dest")
    )


def carriers(operations: dt.Table, cancellations: dt.Table, airlines: dt.Table) -> dt.Table:
    """Every airline's year so far: three tables on one key, so one stage and one shuffle."""
    flown = F.col("flown")
    cancelled = F.coalesce("cancelled", F.lit(0))
    counted = operations.join(
        cancellations,
        how="left",
        select=[
            "flown",
            "late",
            cancelled.alias("cancelled"),
            (100 * cancelled / (flown + cancelled)).alias("percent_cancelled"),
        ],
    )
    return counted.join(
        airlines,
        how="left",
        select=["name", "flown", "late", "cancelled", "percent_cancelled"],
    )


def weather(departures: dt.Stream, weather: dt.Table) -> dt.Stream:
    """Every departure with the weather of its hour at its airport.

    An observation may be six hours late, so a departure waits for six hours.
    """
    return departures.join(
        weather,
        how="left",
        on="origin",
        grace="6 hours",
        select=["carrier", "origin", "dep_delay", "temp", "wind_speed", "precip", "visib"],
    )


def trips(departures: dt.Stream, landings: dt.Stream) -> dt.Stream:
    """Every departure with its landing; without one, once thirteen hours have shown none."""
    return departures.join(
        landings,
        how="left",
        within=dt.within(after="12 hours", grace="1 hour"),
        unmatched="on_close",
        select=[
            "carrier",
            "origin",
            "dest",
            "dep_delay",
            "arr_delay",
            "air_time",
            (F.col("dep_delay") - F.col("arr_delay")).alias("minutes_made_up"),
        ],
    )


def hours(departures: dt.Stream, airlines: dt.Table) -> dt.Table:
    """Every airline's departures by the hour, beside those of the same hour a week before.

    Both sides and the names meet in the stage of the airline. What comes late corrects the hour and
    the one a week after; a name corrects all hours of the year.
    """
    hourly = departures.group_by("carrier").window(
        dt.windows.tumbling("1 hour", grace="1 hour", retention="400 days")
    )
    counted = hourly.agg(departures=dt.count(), minutes_late=dt.mean("dep_delay"))
    beside = counted.join(
        counted,
        how="left",
        shift="-7 days",
        select={
            "departures": "left.departures",
            "minutes_late": "left.minutes_late",
            "week_before": "right.departures",
        },
    )
    return beside.join(airlines, how="left").to_table()


def fleet(schedule: dt.Table, planes: dt.Table) -> dt.Table:
    """Every flight with its plane, and no state: each table's changes look the other's rows up in
    the database.
    """
    return schedule.join(
        planes,
        on="tailnum",
        how="left",
        select=["carrier", "tailnum", "manufacturer", "seats"],
        delta_join=dt.delta_join(strategy="force"),
    )


_DEPARTURES = Log("departures", "flight_id", stream=True)

QUERIES = (
    Query(
        "flights",
        reads=(Log("schedule", "flight_id"), Log("actuals", "flight_id")),
        topology=flights,
        key=("flight_id",),
        files=2,
    ),
    # A flight changes several times a micro-batch; here only the last of them is of interest.
    Query(
        "network",
        reads=(
            Log("schedule", "flight_id"),
            Log("actuals", "flight_id"),
            Log("planes", "tailnum"),
            Log("airlines", "carrier"),
            Log("airports", "airport"),
        ),
        topology=network,
        key=("flight_id",),
        emit="batch",
        files=3,
    ),
    Query(
        "carriers",
        reads=tuple(Log(name, "carrier") for name in ("operations", "cancellations", "airlines")),
        topology=carriers,
        key=("carrier",),
        files=3,
    ),
    Query(
        "weather",
        reads=(_DEPARTURES, Log("weather", "origin", versioned="2 days")),
        topology=weather,
        files=3,
    ),
    Query(
        "trips",
        reads=(_DEPARTURES, Log("landings", "flight_id", stream=True)),
        topology=trips,
        files=3,
    ),
    Query(
        "fleet",
        reads=(
            Log("schedule", "flight_id", stored=True, indexes=("tailnum",)),
            Log("planes", "tailnum", stored=True),
        ),
        topology=fleet,
        key=("flight_id",),
        files=4,
    ),
    Query(
        "hours",
        reads=(_DEPARTURES, Log("airlines", "carrier")),
        topology=hours,
        key=("carrier", "window_start"),
        emit="batch",
        files=3,
    ),
)
