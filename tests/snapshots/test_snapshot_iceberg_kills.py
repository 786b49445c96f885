"""A refresh of a join over Iceberg tables whose process is killed as it writes the target: in the
end the target has the commits of an unbroken one, with the same rows.

``DOVETAIL_KILLS=20 ./dev test -m slow tests/snapshots/test_snapshot_iceberg_kills.py`` is a
campaign. Run as a script, this module is the process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import drivers
import iceberg_tables as iceberg
import pytest
import small_session
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from test_snapshot_iceberg import TARGET, Lake

import dovetail as dt
from dovetail.iceberg import replacement

KILLS = int(os.environ.get("DOVETAIL_KILLS", "7"))
MOMENTS: dict[str, tuple[Any, str, bool]] = {
    "before the files": (replacement, "commit", True),
    "after the files": (SqlCatalog, "commit_table", True),
    "within the commit": (SqlCatalog, "_write_metadata", False),
    "after the commit": (SqlCatalog, "commit_table", False),
    "before the table": (SqlCatalog, "create_table", True),
    "after the table": (SqlCatalog, "create_table", False),
}
"""The functions before or behind whose calls a process kills itself."""
ANY = "any moment"
STEP = 2
"""The most versions of each source that a commit covers."""
Kill = tuple[str, int, float]
"""A moment, which of its turns in the process, and the seconds to wait for any moment."""


class Shop(Lake):
    """The tables of a lake that were made before, by their catalogs."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.catalogs = {
            name: iceberg.properties(folder / name) for name in ("orders", "customers")
        }
        self.targets = iceberg.properties(folder / "targets")

    def table(self, name: str) -> dt.SnapshotTable:
        catalog = self.catalogs[name]
        return dt.SnapshotTable.from_iceberg(
            self.spark, "shop.t", catalog=catalog, key="id", name=name
        )


def refresh(lake: Lake, table: str) -> None:
    joined = lake.joined("outer", {"v": "id"})
    joined.refresh(table=table, catalog=lake.targets, max_versions=STEP)


def killed(folder: Path, moment: str, turn: int, wait_s: float) -> None:
    """Refresh the target in a process that is killed at this moment."""
    begun = folder / "begun"
    begun.unlink(missing_ok=True)
    with drivers.running(__file__, str(folder), moment, str(turn), folder=folder) as process:
        if moment == ANY:
            drivers.wait_until(begun.exists, process, "a refresh")
            time.sleep(wait_s)
            process.kill()
        code = process.wait(timeout=240)
    assert code == -signal.SIGKILL, process.log.read_text(errors="replace")[-20_000:]


def commits(lake: Lake, table: str) -> list[tuple[dict[str, int], Counter[str]]]:
    """The versions that each commit covers and its rows, from the first one on."""
    opened = iceberg.opened(lake.targets).load_table(table)
    named = lake.joined("outer", {"v": "id"}).commits(table=table, catalog=lake.targets)
    assert len(named) == len(opened.metadata.snapshots)
    return [
        (
            dict(commit.covered),
            Counter(map(str, opened.scan(snapshot_id=commit.version).to_arrow().to_pylist())),
        )
        for commit in reversed(named)
    ]


def assert_exact(spark: SparkSession, seed: int, folder: Path, kills: list[Kill]) -> None:
    """Kill refreshes one after another, each after some changes. Compare the target with one that
    was refreshed at the same times.
    """
    lake = Lake(spark, seed, folder)
    lake.step(3)
    for moment, turn, wait_s in kills:
        killed(folder, moment, turn, wait_s)
        refresh(lake, TARGET)
        refresh(lake, "shop.unbroken")
        lake.step(4 * STEP)  # two commits at least
    refresh(lake, TARGET)
    refresh(lake, "shop.unbroken")
    expected = commits(lake, "shop.unbroken")
    assert commits(lake, TARGET) == expected
    assert len(expected) > len(kills)
    assert all(rows for _, rows in expected)


@pytest.mark.slow
def test_a_refresh_is_exact_whenever_its_process_is_killed(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """The table is made in the first one; the others are killed at each moment of a commit."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    later = [moment for moment in MOMENTS if "the table" not in moment]
    moments = [later[n % len(later)] if n % 3 else ANY for n in range(KILLS - 1)]
    draw.shuffle(moments)
    moments.insert(0, draw.choice([*MOMENTS]))
    kills = [
        (moment, 1 if n == 0 else draw.randrange(1, 3), draw.uniform(0, 5))
        for n, moment in enumerate(moments)
    ]
    assert_exact(delta_spark, seed, tmp_path, kills)
    print(kills)


def main(folder: Path, moment: str, turn: str) -> None:
    if moment != ANY:
        owner, name, first = MOMENTS[moment]
        drivers.die_at([owner], name, int(turn), first=first)
    spark = small_session.builder().config("spark.sql.shuffle.partitions", "1").getOrCreate()
    lake = Shop(spark, folder)
    (folder / "begun").touch()
    refresh(lake, TARGET)
    time.sleep(600)  # it was too fast for the kill, which then finds it idle


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
