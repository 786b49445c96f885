"""Sessions: what ``configure`` gives a new one, and what ``doctor`` finds in those without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_session
from drivers import reported
from parquet_rows import rows_of
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.platform import delta_tables, local_disk
from dovetail.spark import class_path, driver_workers
from dovetail.spark.log_lines import HARMLESS, QUIET
from dovetail.spark.task import MAPPED_BYTES_MAX

STARTED = "Starting Streaming TransformWithStateInPandas Python worker"
"""What a driver worker prints, unless it is forked."""


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def options(builder: SparkSession.Builder) -> dict[str, str]:
    return dict(builder._options)


def test_what_a_builder_has_is_kept() -> None:
    builder = SparkSession.builder.master("local[1]")
    builder = builder.config("spark.sql.extensions", "own.Extension")
    builder = builder.config("spark.driver.extraJavaOptions", "-Xss4m")
    builder = builder.config("spark.sql.session.timeZone", "Europe/Paris")
    builder = builder.config("spark.jars.packages", "own:jar:1")
    builder = builder.config("spark.driver.extraClassPath", "own.jar")
    found = options(dt.configure(builder, kafka=True, delta=True, memory="2g"))
    assert found["spark.sql.extensions"] == f"own.Extension,{delta_tables.EXTENSION}"
    java_options = found["spark.driver.extraJavaOptions"].split()
    assert "-XX:+UseParallelGC" in java_options
    assert java_options[-1] == "-Xss4m"
    assert found[QUIET] == "true"
    assert options(dt.configure(SparkSession.builder.config(QUIET, "false")))[QUIET] == "false"
    assert options(dt.configure(SparkSession.builder, quiet=False))[QUIET] == "false"
    assert found["spark.sql.session.timeZone"] == "Europe/Paris"
    packages = found["spark.jars.packages"].split(",")
    assert packages[0] == "own:jar:1"
    assert packages[1].startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:4.")
    assert packages[2:] == [delta_tables.JAR]
    assert found["spark.driver.memory"] == "2g"
    assert found["spark.python.daemon.module"] == "dovetail.spark.worker_daemon"
    own, *jars = found["spark.driver.extraClassPath"].split(os.pathsep)
    assert own == "own.jar"
    assert jars == [str(jar) for jar in class_path.driver_jars()]


def test_what_sparks_file_has_is_kept(tmp_path: Path) -> None:
    """A builder's settings replace those of the file, so they begin with them."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.jars.packages no:jar:1\n\n"
        "spark.jars.packages   file:jar:1\n"
        " spark.sql.extensions=file.Extension \n"
        "spark.driver.extraJavaOptions -Dkey=a:b -XX:+UseG1GC\n"
        "spark.sql.session.timeZone:Europe/Paris\n"
        "spark.driver.memory 9g\n"
        "spark.master spark://host:7077\n"
    )
    os.environ["SPARK_CONF_DIR"] = str(tmp_path)
    new = SparkSession.builder.__class__
    found = options(dt.configure(new(), delta=True))
    assert found["spark.jars.packages"] == f"file:jar:1,{delta_tables.JAR}"
    assert found["spark.sql.extensions"] == f"file.Extension,{delta_tables.EXTENSION}"
    assert found["spark.driver.extraJavaOptions"].endswith(" -Dkey=a:b -XX:+UseG1GC")
    assert "ParallelGC" not in found["spark.driver.extraJavaOptions"]
    kept = {"spark.sql.session.timeZone", "spark.driver.memory", "spark.python.daemon.module"}
    assert kept.isdisjoint(found)
    own = new().config("spark.sql.extensions", "own.Extension").master("local[1]")
    found = options(dt.configure(own, delta=True, memory="2g"))
    assert found["spark.sql.extensions"] == f"own.Extension,{delta_tables.EXTENSION}"
    assert found["spark.driver.memory"] == "2g"
    assert "spark.python.daemon.module" in found


@pytest.mark.parametrize("name", ["extraJavaOptions", "defaultJavaOptions"])
def test_a_builders_garbage_collector_is_the_only_one(name: str) -> None:
    """The JVM does not start with two."""
    builder = SparkSession.builder.__class__()
    own = "-XX:+UseG1GC -XX:-UseTransparentHugePages"
    found = options(dt.configure(builder.config(f"spark.driver.{name}", own)))
    java_options = found["spark.driver.extraJavaOptions"]
    if name == "defaultJavaOptions":  # Spark puts them in front
        java_options = f"{own} {java_options}"
    command = ["java", *java_options.split(), "-XX:+PrintFlagsFinal", "-version"]
    flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = re.findall(r"bool Use((?:G1|Parallel|Serial)GC) += true", flags)
    assert used == ["G1GC"]
    if name == "extraJavaOptions":
        assert re.search(r"UseTransparentHugePages += false", flags)


def test_jars_with_most_classes_are_searched_first() -> None:
    *first, own = class_path.driver_jars()
    assert own == local_disk.JAR
    assert [jar.is_file() for jar in first] == [True] * len(class_path.SEARCHED_FIRST)
    for jar, name in zip(first, class_path.SEARCHED_FIRST, strict=True):
        assert jar.name.startswith(name)


def test_a_limit_for_the_memory_of_all_processes() -> None:
    builder = SparkSession.builder.__class__().master("local[2]")
    mapped = f"spark.executorEnv.{MAPPED_BYTES_MAX}"
    found = options(dt.configure(builder, memory_limit="8g"))
    assert (found["spark.driver.memory"], found[mapped]) == ("4096m", str(1 << 30))
    builder = SparkSession.builder.__class__().master("local[4]")
    found = options(dt.configure(builder, memory="2g", memory_limit="4096M"))
    assert (found["spark.driver.memory"], found[mapped]) == ("2g", str(1 << 28))
    builder = SparkSession.builder.__class__().config("spark.driver.memory", "1g")
    found = options(dt.configure(builder, memory_limit="3gb"))
    assert (found["spark.driver.memory"], found[mapped]) == ("1g", str(1 << 30))
    with pytest.raises(dt.errors.ConfigurationError, match=r"Leave spark\.driver\.memory out"):
        dt.configure(builder.config("spark.driver.memory", "7g"), memory_limit="4g")


@pytest.mark.parametrize(
    ("master", "arguments", "message"),
    [
        ("local[2]", {"memory_limit": "eight"}, "memory_limit='eight' is no size. Write it as 6g"),
        ("local[2]", {"memory_limit": "1g"}, "memory_limit='1g' is less than the processes need"),
        ("local[2]", {"memory_limit": "4g", "memory": "7g"}, "memory='7g' leaves less than a"),
        ("local[2]", {"memory_limit": "4g", "memory": "a"}, "memory='a' is no size"),
        ("local[0]", {"memory_limit": "8g"}, "the master local[0] has no cores. Give it one or"),
        ("spark://host:7077", {"memory_limit": "4g"}, "the master is spark://host:7077. Set spark"),
    ],
)
def test_a_limit_that_is_none(master: str, arguments: dict[str, str], message: str) -> None:
    builder = SparkSession.builder.__class__().master(master)
    with pytest.raises(dt.errors.ConfigurationError, match=rf"^configure: .*{re.escape(message)}"):
        dt.configure(builder, **arguments)


def test_a_server_has_its_settings_from_its_start() -> None:
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"one of Spark Connect.* Leave configure out"
    ):
        dt.configure(SparkSession.builder.__class__().remote("sc://localhost"))


def test_a_cluster_keeps_its_own_workers() -> None:
    found = options(dt.configure(SparkSession.builder.master("spark://host:7077")))
    assert "spark.python.daemon.module" not in found
    assert "spark.driver.extraClassPath" not in found
    assert "spark.jars.packages" not in found


def test_jars_at_hand_are_named_in_place_of_coordinates(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "stamp"):
        (tmp_path / name).touch()
    found = options(dt.configure(SparkSession.builder, kafka=True, jars=tmp_path))
    assert found["spark.jars"] == f"{tmp_path / 'a.jar'},{tmp_path / 'b.jar'}"
    assert "spark.jars.packages" not in found
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"^configure: jars='.*none' is no jar and no"
    ):
        dt.configure(SparkSession.builder, jars=[tmp_path, tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(dt.errors.ConfigurationError, match=r"no folder of jars. Name them"):
        dt.configure(SparkSession.builder, jars=tmp_path / "empty")


def test_a_session_without_it_is_told_what_it_lacks(spark: SparkSession) -> None:
    report = dt.doctor(spark)
    lacking = {finding.what: finding for finding in report.missing}
    assert {"Unix sockets", "huge pages"} <= lacking.keys()
    assert not {"Spark", "workers' Python", "warm workers", "local disk"} & lacking.keys()
    assert str(lacking["huge pages"].lacks).startswith("off for the JVM")
    lines = str(report).splitlines()
    assert lines[0] == "Spark            ok"
    assert "Unix sockets     off" in lines
    remedy = "remedy: build the session with dt.configure(builder)"
    assert any(line.endswith(f"costs: a sixth more system time; {remedy}") for line in lines)
    assert repr(report) == str(report)
    shown = report._repr_html_()
    assert "<tr><td>Spark</td><td>ok</td><td></td><td></td></tr>" in shown
    assert "<td>Unix sockets</td><td>off</td><td>a sixth more system time</td>" in shown


def short_lived() -> SparkSession.Builder:
    """The builder of a user's session, which compiles little for a few rows."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return small_session.quick(builder, "-XX:TieredStopAtLevel=1")


def new_session(folder: str) -> None:
    """What ``doctor`` says of a session that ``configure`` has made; and two queries in it, one of
    which starts after the death of the server of driver workers.
    """
    os.dup2(os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    groups = [small_session.CACHE / "jars" / name for name in ("kafka", "delta")]
    jars = [path for path in groups if path.is_dir()]
    spark = dt.configure(short_lived(), delta=len(jars) == 2, jars=jars, memory="1g").getOrCreate()
    Path(folder, "in").mkdir()
    Path(folder, "in", "1.json").write_text('{"id": 1, "at": "2026-01-01T00:00:00"}', "utf-8")
    live = spark.readStream.schema("id long, at timestamp").json(f"{folder}/in")
    table = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders").materialize()

    def run(number: int) -> list[Any]:
        out = f"{folder}/out-{number}"
        table.write_stream(
            dt.to_parquet(out), checkpoint=f"{folder}/c-{number}", trigger={"availableNow": True}
        ).awaitTermination()
        return [
            [row["id"] for row in rows_of(Path(out))],
            STARTED in Path(folder, "log").read_text(),
        ]

    starts = [run(0)]
    missing = [finding.what for finding in dt.doctor(spark).missing]
    ((python, server),) = driver_workers._SERVERS.items()
    server.kill()
    while Path(python).with_name("requests").exists():
        time.sleep(0.01)
    starts.append(run(1))
    print(json.dumps({"starts": starts, "missing": missing, "jars": len(jars)}))


@pytest.mark.long
def test_a_session_lacks_nothing_with_it(tmp_path: Path) -> None:
    """Its driver workers are forked from a server; once that is gone, Spark itself starts them."""
    found = reported(__file__, tmp_path)
    assert found["starts"] == [[[1], False], [[1], True]]
    assert found["missing"] == ([] if found["jars"] == 2 else ["Kafka", "Delta Lake"])
    log = (tmp_path / "log").read_text()
    assert "WARN NativeCodeLoader" in log  # from before the session
    assert [line for line in HARMLESS if re.search(line, log)] == []


def test_lines_that_are_left_out_have_reasons() -> None:
    page = (Path(__file__).parents[2] / "docs" / "look.md").read_text()
    assert HARMLESS
    for line, why in HARMLESS.items():
        said = re.sub(r"\\(?=[.'])", "", line).replace(r"\w+", "…").replace(r"[-\w]+", "…")
        assert f"| `{said}` | {why} |" in page


def strange_workers(folder: str) -> None:
    """What a query's start says where the workers' Python cannot import the library."""
    spark = short_lived().getOrCreate()
    Path(folder, "in").mkdir()
    live = spark.readStream.schema("id long, at timestamp").json(f"{folder}/in")
    table = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders")
    try:
        table.write_stream(dt.to_parquet(f"{folder}/out"), checkpoint=f"{folder}/c")
    except dt.errors.ConfigurationError as error:
        print(json.dumps([str(error), Path(folder, "c").exists()]))


@pytest.mark.slow
def test_workers_without_the_library_are_found_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "dovetail").mkdir()
    (tmp_path / "dovetail" / "__init__.py").write_text("raise ImportError('not this one')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n', "utf-8")
    python.chmod(0o755)
    error, bound = reported(__file__, tmp_path, "strange", PYSPARK_PYTHON=str(python))
    assert error.startswith("write_stream: its workers cannot run it: ")
    assert "cannot import dovetail: not this one. Set PYSPARK_PYTHON to a Python that" in error
    assert not bound


if __name__ == "__main__":
    (strange_workers if sys.argv[2:] else new_session)(sys.argv[1])
