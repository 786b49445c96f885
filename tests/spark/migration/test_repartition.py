"""Another number of partitions for a checkpoint's state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from pyspark.sql import SparkSession
from test_rewind import Emitted, joined, write
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli import app
from dovetail.spark.checkpoints.checkpoint import REPARTITIONING, CheckpointFile

BUCKETS, STEP = 6, 2


def totals(spark: SparkSession, folder: Path) -> dt.Table:
    """An aggregate of a join by foreign key: four stages with state."""
    return joined(spark, folder).group_by("city").agg(total=dt.sum("amount"), n=dt.count())


def run(table: dt.Table, checkpoint: Path, emitted: Emitted, **options: Any) -> None:
    table.write_stream(
        dt.to_foreach_batch(emitted),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        **options,
    ).awaitTermination()


def stored(spark: SparkSession, checkpoint: Path) -> list[list[Any]]:
    """The rows of both tables, read and looked up."""
    read = [
        sorted(dt.checkpoints.read_state(spark, checkpoint, name).collect())
        for name in ("orders", "customers")
    ]
    found = dt.checkpoints.lookup_state(checkpoint, "customers", keys=["a", "b", "c"])
    return [*read, sorted(map(str, found.to_pylist()))]


def folders(checkpoint: Path) -> set[str]:
    """The partitions of state that the last micro-batch has."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")) + 1
    return {path.parent.name for path in checkpoint.glob(f"state/*/*/{last}.*")}


@pytest.mark.slow
@pytest.mark.parametrize("numbers", slow_after(1, [[3, 1], [5, 3, 1]]))
def test_a_query_goes_on_with_another_number_of_partitions(
    spark: SparkSession, tmp_path: Path, numbers: list[int]
) -> None:
    """More, fewer and one, through the command line too; all that it emits is the same."""
    write(tmp_path, 0, STEP)
    table, checkpoint = totals(spark, tmp_path), tmp_path / "checkpoint"
    emitted, whole = Emitted(), Emitted()
    run(table, checkpoint, emitted, buckets=BUCKETS, partitions=2)
    for number, partitions in enumerate(numbers, start=1):
        before = stored(spark, checkpoint)
        if partitions == 3:
            command = ["repartition", str(checkpoint), "--partitions", "3"]
            assert CliRunner().invoke(app, command).output == f"{checkpoint} has 3 partitions\n"
        else:
            dt.checkpoints.repartition(spark, checkpoint, partitions=partitions)
        assert stored(spark, checkpoint) == before
        write(tmp_path, number * STEP, STEP)
        run(table, checkpoint, emitted)
        assert folders(checkpoint) == {*map(str, range(partitions))}
    run(table, tmp_path / "another", whole, buckets=BUCKETS, partitions=2)
    assert emitted.by_key() == whole.by_key()
    assert len(whole.batches) == (1 + len(numbers)) * STEP


@pytest.mark.slow
@pytest.mark.parametrize("lost", slow_after(1, ["the commit", "the binding"]))
def test_a_call_that_is_killed_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    write(tmp_path, 0, STEP)
    table, checkpoint = joined(spark, tmp_path), tmp_path / "checkpoint"
    emitted, whole = Emitted(), Emitted()
    run(table, checkpoint, emitted, buckets=BUCKETS, partitions=2)
    put = CheckpointFile.write

    def killed(file: CheckpointFile, binding: Any) -> None:
        if REPARTITIONING not in binding:
            raise KeyboardInterrupt
        put(file, binding)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFile, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            dt.checkpoints.repartition(spark, checkpoint, partitions=4)
    if lost == "the commit":
        for name in (str(STEP), f".{STEP}.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
    with pytest.raises(dt.errors.CheckpointError, match="--partitions 4"):
        run(table, checkpoint, emitted)
    with pytest.raises(dt.errors.CheckpointError, match="partitions=4 was killed"):
        dt.checkpoints.repartition(spark, checkpoint, partitions=3)
    dt.checkpoints.repartition(spark, checkpoint, partitions=4)
    write(tmp_path, STEP, STEP)
    run(table, checkpoint, emitted)
    assert folders(checkpoint) == {*"0123"}
    run(table, tmp_path / "another", whole, buckets=BUCKETS, partitions=2)
    assert emitted.by_key() == whole.by_key()


@pytest.mark.slow
def test_the_list_of_files_of_a_folder_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Spark puts the last ten micro-batches of it together, all of which must be there. What a
    kill leaves of one that was being listed lies beside them.
    """
    write(tmp_path, 0, STEP)
    table, target = joined(spark, tmp_path), tmp_path / "out"

    def go_on(**options: Any) -> None:
        table.write_stream(
            dt.to_parquet(target),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            **options,
        ).awaitTermination()

    go_on(buckets=2, partitions=1)
    dt.checkpoints.repartition(spark, tmp_path / "checkpoint", partitions=2)
    write(tmp_path, STEP, 8)
    for left in (".1.4c974cc9.tmp", ".9.compact.crc"):
        (target / "_spark_metadata" / left).touch()
    go_on()
    assert (target / "_spark_metadata" / "9.compact").exists()
    whole = Emitted()
    run(table, tmp_path / "another", whole)
    assert spark.read.parquet(str(target)).count() == sum(map(len, whole.batches.values()))


def test_what_cannot_be_repartitioned_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, 0, STEP)
    table, checkpoint = joined(spark, tmp_path), tmp_path / "checkpoint"
    with pytest.raises(dt.errors.CheckpointError, match="has no micro-batch"):
        dt.checkpoints.repartition(spark, checkpoint, partitions=2)
    query = table.write_stream(
        dt.to_foreach_batch(Emitted()), checkpoint=checkpoint, buckets=BUCKETS, partitions=2
    )
    query.processAllAvailable()
    with pytest.raises(dt.errors.CheckpointError, match="is running"):
        dt.checkpoints.repartition(spark, checkpoint, partitions=4)
    query.stop()
    with pytest.raises(
        dt.errors.CheckpointError, match=r"another number is given by dt\.checkpoints\.repartition"
    ):
        run(table, checkpoint, Emitted(), partitions=4)
    with pytest.raises(dt.errors.PlanError, match="partitions=7 is more than the 6 buckets"):
        dt.checkpoints.repartition(spark, checkpoint, partitions=7)
    (checkpoint / "commits" / str(STEP - 1)).unlink()
    with pytest.raises(dt.errors.ConfigurationError, match="LAST_BATCH_FAILED"):
        dt.checkpoints.repartition(spark, checkpoint, partitions=4)
    assert REPARTITIONING not in json.loads((checkpoint / "dovetail.json").read_text())
    run(table, checkpoint, Emitted())
