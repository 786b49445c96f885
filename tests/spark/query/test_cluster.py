"""More than one machine: executors of a standalone cluster die between and within micro-batches and
a worker joins, and tables are what they are on one machine.

Run as a script, this module is the driver.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import drivers
import log_queries
import pytest
from bench.parameters import slow_after
from pyspark.sql import SparkSession

import dovetail as dt
from benchmarks.standalone import HOME, SETTINGS, bare, cluster

ROOT = Path(__file__).parents[3]
KILLS = [("foreign key", "offsets", 1), ("tree", "commits", 4), ("foreign key", "offsets", 7)]
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of a JVM with a short life."""
JOINS = ("tree", "commits", 2)
"""When a worker joins."""


def session(master: str) -> SparkSession:
    """A driver's, of executors of a core each."""
    builder = dt.configure(SparkSession.builder.master(master).appName("cluster"))
    settings = {
        **SETTINGS,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def joins(spark: SparkSession, folder: Path) -> None:
    """Two queries at once, on two buckets: one for each of the first workers."""
    queries = [
        log_queries.start(spark, folder / kind, dt.to_parquet(folder / kind / "out"), kind)
        for kind in log_queries.KINDS
    ]
    for query in queries:
        query.awaitTermination()


def one_join(spark: SparkSession, folder: Path) -> None:
    """One query, by foreign key."""
    log_queries.start(
        spark, folder, dt.to_parquet(folder / "out"), "foreign key"
    ).awaitTermination()


def flights(spark: SparkSession, folder: Path) -> None:
    """The demo, with its check."""
    from examples.flights.demo import run

    equal = run(spark, folder, rows=3000, slices=9)
    (folder / "checked").write_text(json.dumps(equal))


TASKS = {"one join": one_join, "joins": joins, "flights": flights}


@pytest.mark.long
def test_executors_need_nothing_of_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """Jars that ``configure`` puts on the driver's class path do not reach them."""
    given = log_queries.batches(1, 6)
    log_queries.write(tmp_path, given)
    master = "local-cluster[1,1,1024]"
    with drivers.running(__file__, "one join", master, str(tmp_path), folder=tmp_path) as driver:
        assert driver.wait(480) == 0, driver.log.read_text()
    log_queries.refuse_other_changes(spark, tmp_path, "foreign key", given[0])


@pytest.mark.slow
@pytest.mark.parametrize("times", slow_after(1, [2, 3]))
def test_executors_die_and_a_worker_joins(spark: SparkSession, tmp_path: Path, times: int) -> None:
    given = log_queries.batches(4 * times, 6)
    for kind in log_queries.KINDS:
        (tmp_path / kind).mkdir()
        log_queries.write(tmp_path / kind, given)
    random_ = random.Random()
    with (
        cluster(tmp_path / "cluster", workers=2) as machines,
        drivers.running(__file__, "joins", machines.url, str(tmp_path), folder=tmp_path) as driver,
    ):
        for kind, log, number in sorted([*KILLS[:times], JOINS], key=lambda event: event[2]):
            path = tmp_path / kind / "checkpoint" / log / str(number)
            drivers.wait_until(path.exists, driver, str(path))
            if (kind, log, number) == JOINS:
                machines.add_worker()
                continue
            time.sleep(random_.uniform(0, 0.4))
            machines.kill_executor()
        assert driver.wait(300) == 0
    for kind in log_queries.KINDS:
        log_queries.refuse_other_changes(
            spark, tmp_path / kind, kind, [r for records in given for r in records]
        )


@pytest.mark.slow
def test_the_flights_are_joined_while_an_executor_dies(tmp_path: Path) -> None:
    random_ = random.Random()
    with (
        cluster(tmp_path / "cluster", workers=2) as machines,
        drivers.running(
            __file__, "flights", machines.url, str(tmp_path), folder=tmp_path
        ) as driver,
    ):
        drivers.wait_until(lambda: len(machines.executors()) == 2, driver, "executors")
        for _ in range(2):
            time.sleep(random_.uniform(8, 20))
            machines.kill_executor()
        assert driver.wait(300) == 0
    assert json.loads((tmp_path / "checked").read_text()) is True


APPLICATION = """
import json
import sys

import dovetail
import dovetail as dt
from pyspark.sql import SparkSession

wheel, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
if wheel:
    spark.addArtifact(wheel, pyfile=True)
schema = "id long, customer string, at timestamp"
orders = dt.Table.from_changelog(
    spark.readStream.schema(schema).json("orders"), key="id", timestamp="at", name="orders"
)
totals = orders.group_by("customer").agg(n=dt.count())
named = orders.join(totals, on="customer", select=["n"])
named.write_stream(
    dt.to_foreach_batch(lambda changes, _: changes.write.mode("append").parquet("changes")),
    checkpoint="checkpoint",
    trigger={"availableNow": True},
).awaitTermination()
rows = spark.read.parquet("changes").groupBy("id").max("n").collect()
json.dump([dovetail.__file__, sorted(map(list, rows))], open(out, "w"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--py-files", "addArtifact"])
def test_workers_get_the_library_as_a_wheel(tmp_path: Path, way: str) -> None:
    """The Python of the workers, and of the driver where it is submitted with the application, has
    what dovetail needs and not dovetail. Spark takes archives by their names.
    """
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = tmp_path.glob("*.whl")
    wheel = built.rename(tmp_path / "dovetail.zip")
    python = hollow(tmp_path / "hollow")
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "orders").mkdir()
    lines = [{"id": n, "customer": "ab"[n % 2], "at": "2024-05-01T10:00:00Z"} for n in range(4)]
    (tmp_path / "orders" / "1.json").write_text("\n".join(map(json.dumps, lines)))
    submitted = way == "--py-files"
    settings = {**SETTINGS, "spark.executor.memory": "700m"}
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    with cluster(tmp_path / "cluster", workers=1) as machines:
        ran = subprocess.run(
            [
                str(HOME / "bin" / "spark-submit"),
                *("--master", machines.url),
                *given,
                *(("--py-files", wheel.name) if submitted else ()),
                "application.py",
                "" if submitted else wheel.name,
                "answer",
            ],
            cwd=tmp_path,
            env=bare()
            | {
                "SPARK_HOME": str(HOME),
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python) if submitted else sys.executable,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert ran.returncode == 0, ran.stdout[-4000:]
    place, rows = json.loads((tmp_path / "answer").read_text())
    assert (wheel.name in place) == submitted
    assert rows == [[n, 2] for n in range(4)]


def hollow(folder: Path) -> Path:
    """A Python with all that is installed but what is read from elsewhere, as dovetail is here."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin" / "python"
    asked = [python, "-c", "import pyarrow, dovetail"]
    lacks = subprocess.run(asked, env=bare(), capture_output=True, text=True, check=False)
    assert "No module named 'dovetail'" in lacks.stderr
    return python


def main() -> None:
    task, master, folder = sys.argv[1:]
    spark = session(master)
    TASKS[task](spark, Path(folder))
    spark.stop()


if __name__ == "__main__":
    main()
