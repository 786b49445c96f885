"""The tables and their joins: this is all there is to write with dovetail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Query:
    """A topology to run: the changelogs it reads, how it joins them, which changes it emits."""

    name: str
    key: str
    reads: tuple[str, ...]
    topology: Callable[..., dt.Table]
    emit: Literal["change", "batch"] = "change"


def changelog(spark: SparkSession, history: Path, name: str, key: str) -> dt.Table:
    """A table from its changelog files, of which each micro-batch reads one."""
    files = str(history / name)
    frame = (
        spark.readStream.schema(spark.read.parquet(files).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(files)
    )
    return dt.Table.from_changelog(
        frame,
        key=key,
        timestamp="time",
        deleted="deleted",
        sequence="offset",
        log_partition=F.lit(0),
        name=name,
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


def fleet(sightings: dt.Table, planes: dt.Table) -> dt.Table:
    """Every plane that was seen or is registered: neither table knows all of them."""
    return sightings.join(planes, how="outer")


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


QUERIES = (
    Query("flights", "flight_id", ("schedule", "actuals"), flights),
    # A plane changes many times a micro-batch; here only the last of them is of interest.
    Query("fleet", "tailnum", ("sightings", "planes"), fleet, emit="batch"),
    Query("carriers", "carrier", ("operations", "cancellations", "airlines"), carriers),
)
