"""What the demo shows: progress on stderr while a query runs, and a report on stdout."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.metrics import Progress

_POLL_S = 1
_WIDTH_WITHOUT_TERMINAL = 320


@dataclass(frozen=True)
class Run:
    """One finished query in numbers."""

    name: str
    rows_in: int
    changes_out: int
    batches: int
    seconds: float
    state_bytes: int
    progress: Sequence[Progress]
    """The figures of its micro-batches with rows."""


def follow(query: StreamingQuery, rows: int) -> int:
    """Wait until a query has read its ``rows``, showing how far it is; the number of micro-batches.

    On a terminal a bar, elsewhere a line per look at it that finds something new.
    """
    console = Console(stderr=True)
    bar = Bar(
        TextColumn("{task.description:8}"),
        BarColumn(),
        TextColumn("{task.completed:9,.0f} of {task.total:9,.0f} records"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    batches: list[int] = []
    with bar:
        task = bar.add_task(query.name or "query", total=rows)
        running = True
        while running:
            running = not query.awaitTermination(_POLL_S)
            seen = len(batches)
            batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
            bar.update(task, completed=sum(batches))
            if len(batches) > seen and not console.is_terminal:
                line = f"{query.name}: {sum(batches):,} of {rows:,} records, {len(batches)} batches"
                print(line, file=sys.stderr, flush=True)
    return len(batches)


def print_runs(runs: Iterable[Run]) -> None:
    """A line per query."""
    lines = [
        {
            "query": run.name,
            "records in": run.rows_in,
            "changes out": run.changes_out,
            "batches": run.batches,
            "seconds": run.seconds,
            "records/s": round(run.rows_in / run.seconds),
            "state, MB": run.state_bytes / 1e6,
        }
        for run in runs
    ]
    print_table("Queries", pl.DataFrame(lines))


def print_flights(changes: pl.DataFrame) -> None:
    """The histories of a flight that flew and of a cancelled one, and all changes by kind."""
    tombstones = changes.filter(pl.col("_change") == "delete").sort("_timestamp", "flight_id")
    landed = changes.filter(pl.col("status") == "landed")
    latest = landed.sort("minutes_late", "flight_id", descending=[True, False])
    for title, flights in (("The latest arrival", latest), ("The first cancellation", tombstones)):
        for flight in flights["flight_id"].head(1):
            history = changes.filter(pl.col("flight_id") == flight).sort("_position")
            shown = (
                "_timestamp",
                "_change",
                "status",
                "tailnum",
                "minutes_late",
                "minutes_made_up",
            )
            print_table(f"{title}: {flight}", history.select(shown))
    kinds = changes.group_by(pl.col("status").fill_null("cancelled (tombstone)")).agg(
        pl.len().alias("changes")
    )
    print_table("Changes of flights", kinds.sort("changes", descending=True))


def print_growing_row(changes: pl.DataFrame) -> None:
    """The flight whose row changed in most micro-batches, as its plane, its airline and its
    destination became known and changed.
    """
    counted = changes.group_by("flight_id").agg(pl.len().alias("changes"))
    most = counted.sort("changes", "flight_id", descending=[True, False])
    for flight in most["flight_id"].head(1):
        history = changes.filter(pl.col("flight_id") == flight).sort("_position")
        print_table(
            f"The row that changed most, one change a micro-batch: {flight}",
            history.select(
                *("_timestamp", "status", "tailnum", "manufacturer", "seats"),
                *("name", "destination", "altitude"),
            ),
        )


def print_makers(network: pl.DataFrame) -> None:
    """What the joined table can be asked: how late whose planes landed, and how far up."""
    landed = network.filter(pl.col("status") == "landed")
    maker = pl.col("manufacturer").fill_null("not registered")
    lines = landed.group_by(maker.alias("maker of the plane")).agg(
        pl.len().alias("flights landed"),
        pl.col("name").n_unique().alias("airlines"),
        pl.col("destination").n_unique().alias("destinations"),
        pl.mean("seats").alias("seats"),
        pl.mean("minutes_late").alias("minutes late"),
    )
    print_table(
        "Landed flights by the maker of their plane",
        lines.sort("flights landed", "maker of the plane", descending=[True, False]).head(5),
    )


def print_carriers(carriers: pl.DataFrame) -> None:
    """The airlines that cancelled most."""
    worst = carriers.sort("percent_cancelled", "carrier", descending=[True, False]).head(3)
    print_table(
        "The airlines that cancelled most",
        worst.select("carrier", "name", "flown", "late", "cancelled", "percent_cancelled"),
    )


def conditions() -> pl.Expr:
    """The weather of a departure in words."""
    return (
        pl.when(pl.col("visib").is_null())
        .then(pl.lit("not observed"))
        .when(pl.col("precip") > 0)
        .then(pl.lit("rain or snow"))
        .when(pl.col("visib") < 3)
        .then(pl.lit("fog, below 3 miles"))
        .when(pl.col("wind_speed") > 20)
        .then(pl.lit("dry, wind above 20 mph"))
        .otherwise(pl.lit("fair"))
    )


def print_weather(found: pl.DataFrame, departures: int) -> None:
    """How late flights departed in which weather, and how many of them still wait for it."""
    delays = found.group_by(conditions().alias("weather")).agg(
        pl.len().alias("departures"), pl.mean("dep_delay").alias("minutes late")
    )
    waiting = pl.DataFrame(
        {"weather": "waiting at the end", "departures": departures - found.height},
        schema_overrides={"departures": delays.schema["departures"]},
    )
    lines = delays.sort("minutes late", descending=True)
    lines = pl.concat([lines, waiting], how="diagonal")
    print_table("Departures by the weather of their hour", lines)


def print_trips(found: pl.DataFrame, departures: int) -> None:
    """How many departures have landed, have not, and may yet."""
    landed = pl.col("air_time").is_not_null()
    ends = found.select(
        landed.sum().alias("landed"),
        (~landed).sum().alias("not landed within 12 hours"),
        pl.lit(departures - found.height).alias("waiting at the end"),
        pl.mean("minutes_made_up").alias("minutes made up in the air"),
    )
    print_table("Departures and their landings", ends)


def print_hours(hours: pl.DataFrame) -> None:
    """The hours in which an airline's departures fell or rose most against the week before."""
    change = pl.col("departures") - pl.col("week_before").fill_null(0)
    changed = hours.select(
        *("window_start", "name", "departures", "week_before"),
        change.alias("change"),
        "minutes_late",
    ).filter(pl.col("week_before").is_not_null())
    order = changed.sort("change", "window_start", "name")
    if order.height:
        print_table(
            "Hours that differ most from the same hour a week before",
            pl.concat([order.head(3), order.tail(3)]),
        )


def print_table(title: str, frame: pl.DataFrame) -> None:
    """A frame's rows under a title."""
    table = Table(box=None, pad_edge=False)
    for column in frame:
        table.add_column(column.name, justify="right" if column.dtype.is_numeric() else "left")
    for row in frame.iter_rows():
        table.add_row(*(shown(value) for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_WITHOUT_TERMINAL)
    console.print(f"\n[bold]{title}[/bold]", table, sep="\n", highlight=False)


def shown(value: Any) -> str:
    """A cell's text."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
