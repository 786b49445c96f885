"""A step of a join over snapshots whose driver is killed at any moment of its commit: from what is
left the next run goes on, and is exact.

Run as a script, this module is the driver. What a kill leaves is what is on disk, so the driver is
stopped at many moments, its tables are copied, and it goes on; in the end it is killed itself.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import drivers
import pytest
import small_session
from delta_rows import rows_of
from pyspark.sql import SparkSession
from snapshot_model import counted, naive
from test_snapshot_delta import Lake

import dovetail as dt
from dovetail.platform import delta_tables
from dovetail.snapshots.commit_records import Commit
from dovetail.snapshots.costs import Way
from dovetail.snapshots.plan import distinct_sources
from dovetail.snapshots.target import SnapshotTarget

STEPS, IMAGES_EACH = 3, 4
ORDERS, CUSTOMERS = 300, 20


@pytest.mark.slow
@pytest.mark.parametrize("way", ["changes", "all"])
def test_what_a_kill_within_a_commit_leaves_is_gone_on_with(
    delta_spark: SparkSession, tmp_path: Path, way: Way
) -> None:
    """A merge, or an overwrite of the whole target."""
    rng = random.Random()
    folder, images = tmp_path / "tables", []
    prepare(Lake(delta_spark, folder))
    (folder / "steps").mkdir()
    jars = delta_spark.conf.get("spark.jars") or ""
    with drivers.running(__file__, str(folder), jars, way, folder=tmp_path) as driver:
        for step in range(1, STEPS + 1):
            length_s = begun(folder, step, driver)
            moments = sorted(rng.uniform(0, length_s) for _ in range(IMAGES_EACH))
            for before, moment in zip([0, *moments], moments, strict=False):
                time.sleep(moment - before)
                images.append(tmp_path / f"image {len(images)}")
                with stopped(driver):
                    shutil.copytree(folder, images[-1])
    images.append(folder)

    again = [goes_on(delta_spark, image) for image in images]
    assert any(again), "no step was interrupted"


def goes_on(spark: SparkSession, folder: Path) -> bool:
    """Whether the next run has anything to do; then the target is the join of its sources."""
    joined = located(spark, folder)
    path = str(folder / "target")
    commits = joined.refresh(path)
    (latest, *_) = joined.commits(path)
    sources = distinct_sources(joined.plan)
    inputs = {one.table_id: rows_of(one.path, latest.covered[one.name]) for one in sources}
    stored = rows_of(path, latest.version)
    assert counted(stored, joined.plan.columns) == counted(
        naive(joined.plan, inputs), joined.plan.columns
    )
    assert joined.refresh(path) == []
    return bool(commits)


def begun(folder: Path, step: int, driver: drivers.Driver) -> float:
    """Wait for a step's commit to begin. Return how long the one before it took, in seconds."""
    begun = folder / "steps" / f"{step} begun"
    drivers.wait_until(begun.exists, driver, f"step {step}", within_s=240)
    ends = [folder / "steps" / f"{step - 1} {end}" for end in ("begun", "done")]
    return ends[1].stat().st_mtime - ends[0].stat().st_mtime


@contextmanager
def stopped(driver: drivers.Driver) -> Iterator[None]:
    """All its processes stand still."""
    os.killpg(driver.pid, signal.SIGSTOP)
    time.sleep(0.05)
    yield
    os.killpg(driver.pid, signal.SIGCONT)


def prepare(tables: Lake) -> None:
    """Orders and their customers."""
    tables.write("orders", [(n, n % CUSTOMERS, f"o{n}") for n in range(ORDERS)])
    tables.write("customers", [(n, n % 3, f"c{n}") for n in range(CUSTOMERS)])


def located(spark: SparkSession, folder: Path) -> dt.SnapshotTable:
    return Lake(spark, folder).located("outer")


def main(folder: Path, jars: str, way: Way) -> None:
    """Make step after step. Each one writes files as its commit begins and is done."""
    builder = small_session.builder().config("spark.jars", jars)
    for name, value in small_session.RECORDING_CHANGES.items():
        builder = builder.config(name, value)
    spark = (
        builder.config("spark.sql.extensions", delta_tables.EXTENSION)
        .config("spark.sql.catalog.spark_catalog", delta_tables.CATALOG)
        .getOrCreate()
    )
    own, joined = Lake(spark, folder), located(spark, folder)
    joined.refresh(str(folder / "target"))
    name = {"changes": "merge", "all": "replace"}[way]
    commit, step = getattr(SnapshotTarget, name), 0

    def committing(*arguments: Any) -> Commit:
        (folder / "steps" / f"{step} begun").touch()
        made: Commit = commit(*arguments)
        (folder / "steps" / f"{step} done").touch()
        return made

    setattr(SnapshotTarget, name, committing)
    for step in range(STEPS + 100):
        changes = {n: (n, step, f"step {step}") for n in range(step % 3, CUSTOMERS, 3)}
        own.change("customers", changes | {(step + 1) % CUSTOMERS: None})
        joined.refresh(str(folder / "target"), way=way)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], cast(Way, sys.argv[3]))
