"""Queries that run at once, started and stopped again and again: of a stopped one nothing is left
but what Spark itself keeps of each start.

Run as a script, this module is the process that a test watches.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import small_session
import test_leaks
from bench.parameters import slow_after
from drivers import reported
from pyspark.sql import SparkSession

import dovetail as dt

CYCLES, STAGES = 3, 4
POOLS = ("block-manager", "process reaper", "Executor task", "dispatcher", "rpc", "netty")
"""Threads that Spark and the JVM share between all there is to do."""
SPARK_KEEPS = {
    "listeners": 1,
    "driver's threads": 1,
    "sockets": STAGES,
    "open_files": 3 * STAGES,
}
"""Of each start of a query with state, in 4.2.1: a listener of its session; the driver's thread
that its ``foreachBatch`` called; for each stage a socket on which a Python process asked for the
state's names, and two files by which it was watched."""
OF_A_WORKER = {"sockets": 1, "open_files": 9}
"""What each Python worker holds, of which Spark keeps one more or less for the next query."""
SPARK_THREADS = {"Idle Worker Monitor": STAGES}


def threads(spark: SparkSession) -> Counter[str]:
    """The JVM's, by what their names begin with."""
    context: Any = spark.sparkContext
    names = (t.getName() for t in context._jvm.java.lang.Thread.getAllStackTraces().keySet())
    return Counter(re.split(r" for |[-#]?[0-9a-f]*\d|\[", name)[0] for name in names)


def left(spark: SparkSession) -> dict[str, Any]:
    """What there is once nothing changes any more."""
    context: Any = spark.sparkContext
    found: dict[str, Any] = {}
    for _ in range(40):
        gc.collect()
        context._jvm.java.lang.System.gc()
        before, held = found, test_leaks.held(spark)
        found = {
            "open_files": held.open_files,
            "sockets": held.sockets,
            "processes": held.processes,
            "driver's threads": threading.active_count(),
            "views": len(spark.catalog.listTables()),
            "queries": len(spark.streams.active),
            "listeners": context._jsc.sc().listenerBus().listeners().size(),
        }
        if found == before:
            break
        time.sleep(1.5)
    found["threads"] = {
        name: count for name, count in threads(spark).items() if not name.startswith(POOLS)
    }
    return found


def cycle(spark: SparkSession, folder: Path, count: int) -> None:
    """Start the queries, let each read what there is, and stop them."""
    folder.mkdir()
    queries = [
        test_leaks.topology(spark, folder.parent).write_stream(
            dt.to_parquet(str(folder / f"out-{number}")),
            checkpoint=folder / f"checkpoint-{number}",
            buckets=1,
        )
        for number in range(count)
    ]
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        query.stop()


def main(folder: Path, queries: int) -> None:
    """Print what is left after each cycle of so many queries, but the first one."""
    builder = small_session.builder().config("spark.sql.shuffle.partitions", "1")
    # State that nobody uses is closed by Spark's maintenance.
    builder = builder.config("spark.sql.streaming.stateStore.maintenanceInterval", "500ms")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    test_leaks.write(folder, 1)
    found = []
    for number in range(CYCLES):
        cycle(spark, folder / f"cycle-{number}", queries)
        if number > 0:
            found.append(left(spark))
    print(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize("queries", slow_after(1, [3, 10]))
def test_stopped_queries_leave_nothing_behind(tmp_path: Path, queries: int) -> None:
    found = reported(__file__, tmp_path, queries)
    first, last = found[0], found[-1]
    starts = queries * (CYCLES - 2)
    workers = last["processes"] - first["processes"]
    assert workers <= 2
    for what in first.keys() - {"threads", "processes"}:
        most = first[what] + SPARK_KEEPS.get(what, 0) * starts
        most += OF_A_WORKER.get(what, 0) * max(workers, 0)
        assert last[what] <= most, f"{what}: {first[what]}, then {last[what]}"
    for name in last["threads"]:
        before = first["threads"].get(name, 0)
        most = before + SPARK_THREADS.get(name, 0) * starts + 1
        assert last["threads"][name] <= most, f"{name}: {before}, then {last['threads'][name]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
