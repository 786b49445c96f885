"""What changes under a checkpoint: folders that are moved, deleted or in each other's way, a second
query, the time zone, a frame that two inputs share.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from bench.parameters import slow_after
from parquet_rows import rows_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from small_session import applied
from timed_files import timed_file

import dovetail as dt
from dovetail.api.topology import Topology
from dovetail.command.topologies import load_topology
from dovetail.errors import (
    CheckpointError,
    ConfigurationError,
    DovetailWarning,
    PlanError,
    TargetError,
)
from dovetail.platform.spark_errors import refuse_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Run = Callable[..., Any]


def put(folder: Path, *rows: dict[str, Any], age: float = 0) -> None:
    number = len([*folder.glob("*.json")])
    lines = [json.dumps({"at": "2024-01-01T00:00:00Z"} | row) + "\n" for row in rows]
    with timed_file(folder / f"{number:03}.json", time.time() - 1000 + number - age) as path:
        path.write_text("".join(lines))


def stream(
    spark: SparkSession, folder: Path, columns: str = "id long", **options: Any
) -> DataFrame:
    return spark.readStream.schema(f"{columns}, at timestamp").options(**options).json(str(folder))


def table(frame: DataFrame, name: str = "rows") -> dt.Table:
    return dt.Table.from_changelog(frame, key="id", timestamp="at", name=name)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    put(tmp_path / "in", {"id": 1})
    return tmp_path


def run(spark: SparkSession, home: Path, sink: Any = None, **changed: Any) -> list[int]:
    """Run a query to its end; the rows that the folder ``out`` has then."""
    folder = changed.pop("source", home / "in")
    query = table(stream(spark, folder)).write_stream(
        sink or dt.to_parquet(home / "out"),
        **{"checkpoint": home / "cp", "trigger": {"availableNow": True}, "buckets": 1} | changed,
    )
    query.awaitTermination()
    out = home / "out"
    return sorted(row["id"] for row in rows_of(out)) if out.exists() else []


@pytest.mark.parametrize(
    ("sink", "checkpoint"),
    [("in", "cp"), ("in/out", "cp"), ("", "cp"), ("cp", "cp"), ("cp/x", "cp"), ("out", "out/cp"),
     ("out", "in/cp"), ("out", "in")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_folders_in_each_other_are_refused(
    spark: SparkSession, home: Path, sink: str, checkpoint: str, kind: str
) -> None:
    made = dt.to_parquet(home / sink) if kind == "parquet" else dt.to_delta(home / sink)
    with pytest.raises(PlanError, match=r"the same or lie in each other.*Choose a"):
        run(spark, home, made, checkpoint=home / checkpoint)
    assert [path.name for path in (home / "in").rglob("*")] == ["000.json"]


def test_a_hidden_checkpoint_in_the_sinks_folder_serves(spark: SparkSession, home: Path) -> None:
    assert run(spark, home, checkpoint=home / "out/_checkpoint") == [1]


def test_a_deleted_folder_is_missed(spark: SparkSession, home: Path) -> None:
    run(spark, home)
    shutil.rmtree(home / "out")
    put(home / "in", {"id": 2})
    with pytest.raises(TargetError, match=r"out, which this checkpoint has written, is gone"):
        run(spark, home)
    # Another folder gets what comes from now on, and is missed in its turn.
    run(spark, home, dt.to_parquet(home / "other"))
    shutil.rmtree(home / "other")
    with pytest.raises(TargetError, match="other, which this checkpoint has written, is gone"):
        run(spark, home, dt.to_parquet(home / "other"))


def test_a_moved_checkpoint_goes_on(spark: SparkSession, home: Path) -> None:
    run(spark, home)
    shutil.move(home / "cp", home / "moved")
    put(home / "in", {"id": 2})
    assert run(spark, home, checkpoint=home / "moved") == [1, 2]
    shutil.move(home / "moved", home / "again")
    assert [
        r.id
        for r in dt.checkpoints.read_state(spark, home / "again", "rows").orderBy("id").collect()
    ] == [
        1,
        2,
    ]


def test_a_moved_source_is_refused(spark: SparkSession, home: Path) -> None:
    run(spark, home)
    shutil.move(home / "in", home / "moved")
    with pytest.raises(
        CheckpointError, match=r"rows was read from .*/in, and is read from .*/moved"
    ):
        run(spark, home, source=home / "moved")
    shutil.move(home / "moved", home / "in")
    put(home / "in", {"id": 2})
    assert run(spark, home) == [1, 2]


def test_a_second_query_on_a_checkpoint_is_refused(spark: SparkSession, home: Path) -> None:
    first = run_on(spark, home)
    try:
        first.processAllAvailable()
        with pytest.raises(CheckpointError, match=r"/cp is running. Stop it first"):
            run_on(spark, home)
        with pytest.raises(CheckpointError, match=r"/cp is running. Stop it first"):
            run_on(spark.newSession(), home)
        put(home / "in", {"id": 2})
        first.processAllAvailable()
        assert first.isActive
    finally:
        first.stop()


def run_on(spark: SparkSession, home: Path) -> Any:
    sink = dt.to_parquet(home / "out")
    return table(stream(spark, home / "in")).write_stream(sink, checkpoint=home / "cp", buckets=1)


@pytest.mark.parametrize("emits", slow_after(1, [True, False]))
def test_a_table_in_memory_begins_anew(spark: SparkSession, home: Path, emits: bool) -> None:
    initial = {"rows": spark.createDataFrame([(0, None)], "id long, _timestamp timestamp")}
    begun = {"initial": initial, "emit_initial": True} if emits else {}
    if emits:
        begun["initial"]["rows"] = begun["initial"]["rows"].withColumn(
            "_timestamp", F.timestamp_seconds(F.lit(0))
        )
    for first, ids in ((True, [0, 1] if emits else [1]), (False, [2])):
        if not first:
            put(home / "in", {"id": 2})
        run(spark, home, dt.to_memory("lasting"), **begun)
        assert sorted(row.id for row in spark.table("lasting").collect()) == ids


def test_a_table_in_memory_has_its_own_name(spark: SparkSession, home: Path) -> None:
    """The query's name is another one, and its next start makes the same table."""
    for name in ("first_query", "second_query"):
        run(spark, home, dt.to_memory("of_its_own"), query_name=name)
        assert not spark.catalog.tableExists(name)
        assert spark.catalog.dropTempView("of_its_own")


def test_files_that_are_too_old_are_warned_of(spark: SparkSession, home: Path) -> None:
    put(home / "in", {"id": 2}, age=8 * 86400)
    with pytest.warns(DovetailWarning, match="maxFileAge"):
        run(spark, home)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DovetailWarning)
        frame = stream(spark, home / "in", maxFileAge="3650d")
        sink = dt.to_parquet(home / "other")
        query = table(frame).write_stream(
            sink, checkpoint=home / "cp2", trigger={"availableNow": True}
        )
        query.awaitTermination()


@pytest.mark.parametrize("pattern", ["{in,old,gone}", "{{ne,ol}d,i{n,m}}", "?[nl]{,d}"])
def test_files_of_a_pattern_with_alternatives_that_are_too_old_are_warned_of(
    spark: SparkSession, home: Path, pattern: str
) -> None:
    put(home / "data/in", {"id": 1})
    put(home / "data/old", {"id": 2}, age=8 * 86400)
    with pytest.warns(DovetailWarning, match="maxFileAge"):
        run(spark, home, source=home / "data" / pattern)


def test_a_query_keeps_its_time_zone(spark: SparkSession, home: Path) -> None:
    """What dovetail and Spark's readers compute is in the zone of the first start; what the frame
    has computed itself is refused in another.
    """

    def days(computed: str) -> list[tuple[int, str]]:
        frame = stream(spark, home / "in", "id long")
        hours = F.date_format("at", "HH:mm")
        if computed == "frame":
            frame = frame.withColumn("hour", hours)
        rows = table(frame)
        if computed == "view":
            rows = rows.with_columns(hour=F.date_format("_timestamp", "HH:mm"))
        out = home / computed
        query = rows.write_stream(
            dt.to_parquet(out),
            checkpoint=home / f"cp-{computed}",
            trigger={"availableNow": True},
            buckets=1,
        )
        query.awaitTermination()
        return sorted((row["id"], row["hour"]) for row in rows_of(out))

    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        assert days("view") == days("frame") == [(1, "09:00")]
        put(home / "in", {"id": 2})
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert days("view") == [(1, "09:00"), (2, "09:00")]
        with pytest.raises(CheckpointError, match=r"zone Asia/Tokyo, and date_format.* in UTC now"):
            days("frame")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_an_upgraded_query_keeps_the_time_zone(spark: SparkSession, home: Path) -> None:
    """What it has stored was computed in that zone, and so is what it begins with."""

    def days(checkpoint: str, **options: Any) -> list[Any]:
        rows = table(stream(spark, home / "in", "id long")).with_columns(
            day=F.date_format("_timestamp", "dd HH")
        )
        query = (
            rows.group_by("day")
            .agg(rows=dt.count())
            .write_stream(
                dt.to_parquet(home / f"out-{checkpoint}"),
                checkpoint=home / checkpoint,
                trigger={"availableNow": True},
                **options,
            )
        )
        query.awaitTermination()
        current = dt.read_current(spark, home / f"out-{checkpoint}")
        return sorted((row["day"], row["rows"]) for row in current.collect())

    with applied(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"}):
        assert days("old", buckets=1) == [("01 09", 1)]
    put(home / "in", {"id": 2})
    begin = {"initial": home / "old", "emit_initial": True}
    assert days("same", **begin) == days("more", buckets=2, **begin) == [("01 09", 2)]
    with applied(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"}):
        computed = table(stream(spark, home / "in", "id long").withColumn("h", F.hour("at")))
        once = {"availableNow": True}
        query = computed.write_stream(
            dt.to_parquet(home / "out-hours"), checkpoint=home / "hours", trigger=once, buckets=1
        )
        query.awaitTermination()
    other = table(stream(spark, home / "in", "id long").withColumn("h", F.hour("at")))
    with pytest.raises(CheckpointError, match=r"zone Asia/Tokyo, and hour.*UTC now"):
        dt.checkpoints.upgrade(spark, home / "hours", home / "no", other, dry_run=True)


@pytest.mark.slow
def test_an_upgrade_does_not_go_on_in_another_folder(spark: SparkSession, home: Path) -> None:
    """Spark would read both folders, and fail for good. A pattern may become wider."""
    run(spark, home)
    upgrade = partial(dt.checkpoints.upgrade, spark, home / "cp", home / "no", dry_run=True)
    assert upgrade(table(stream(spark, home / "i*"))).count() == 1
    dt.checkpoints.upgrade(spark, home / "cp", home / "begun", table(stream(spark, home / "in")))
    (home / "in").rename(home / "moved")
    with pytest.raises(CheckpointError, match=r"rows was read from .*in, and is read from .*moved"):
        run(spark, home, dt.to_memory("m"), source=home / "moved", checkpoint=home / "begun")
    with pytest.raises(CheckpointError, match=r"rows is read from .*moved, and .* elsewhere"):
        upgrade(table(stream(spark, home / "moved")))


def test_a_stopped_session_is_named() -> None:
    """What Spark says of it is that something has no attribute."""
    stopped = Mock(spec=SparkSession)
    stopped.sparkContext._jsc = None
    with pytest.raises(ConfigurationError, match="rows: the Spark session was stopped"):
        refuse_stopped("rows", stopped)
    with pytest.raises(PlanError, match="Give a SparkSession that was not stopped"):
        dt.checkpoints.read_state(stopped, "checkpoint")


def test_the_command_line_names_a_functions_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.py").write_text("def topology(version, *, of): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"made:topology takes an argument, version, of"):
        load_topology("made:topology", Topology)


@pytest.mark.slow
def test_inputs_that_share_a_frame_are_upgraded(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "a", {"id": 1})
    put(tmp_path / "b", {"id": 1})

    def results(version: int) -> dict[dt.Table, Any]:
        shared = stream(spark, tmp_path / "a")
        other = stream(spark, tmp_path / "b")
        one, two = table(shared, "one"), table(shared.where("id > 0"), "two")
        first = one.join(two, how="left")
        second = table(other, "three")
        if version == 2:
            second = second.with_columns(two=F.lit(2)).materialize()
        nodes = (first, second.join(table(other, "four"), how="left"))
        return {n: dt.to_parquet(tmp_path / f"{i}-{version}") for i, n in enumerate(nodes)}

    dt.run(
        results(1), checkpoint=tmp_path / "1", trigger={"availableNow": True}, buckets=1
    ).awaitTermination()
    put(tmp_path / "a", {"id": 2})
    put(tmp_path / "b", {"id": 3})
    options = {"initial": tmp_path / "1", "trigger": {"availableNow": True}, "buckets": 1}
    dt.run(results(2), checkpoint=tmp_path / "2", **options).awaitTermination()
    read = [rows_of(tmp_path / f"{i}-2") for i in (0, 1)]
    assert [{row["id"] for row in rows} for rows in read] == [{2}, {3}]


def test_an_old_row_of_another_partition_does_not_win(spark: SparkSession, tmp_path: Path) -> None:
    """A log of two partitions, read a file at a time: the newest row of a key comes first."""
    columns = "id long, v string, log int, place long"

    def at(second: int) -> str:
        return f"2024-01-01T00:00:{second:02}Z"

    put(tmp_path / "in", {"id": 1, "v": "new", "log": 1, "place": 0, "at": at(9)})
    for place in range(3):
        put(tmp_path / "in", {"id": 1, "v": "old", "log": 0, "place": place, "at": at(place)})
    put(tmp_path / "in", {"id": 1, "v": "last", "log": 0, "place": 3, "at": at(10)})
    frame = stream(spark, tmp_path / "in", columns, maxFilesPerTrigger=1)
    rows = dt.Table.from_changelog(
        frame, key="id", timestamp="at", sequence="place", log_partition="log", name="rows"
    )
    query = rows.write_stream(
        dt.to_parquet(tmp_path / "out"),
        checkpoint=tmp_path / "cp",
        trigger={"availableNow": True},
        buckets=1,
    )
    query.awaitTermination()
    assert [row["v"] for row in rows_of(tmp_path / "out", "_position")] == ["new", "last"]
    counted = [
        row["records"]
        for p in query.recentProgress
        if (row := p["observedMetrics"].get("rows.replaced"))
    ]
    assert sum(counted) == 3
