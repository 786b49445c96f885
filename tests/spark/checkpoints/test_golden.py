"""Checkpoints of every version that has been released, read by this one; the command line on them.

``tools/golden.py`` has written them, with what they hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_checkpoints import CHECKPOINTS, Copied
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import dovetail as dt
from dovetail import cli
from dovetail.spark.checkpoints.changelog_files import Unknown, changes
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.state import manifest as manifests


def rows(frame: DataFrame) -> list[str]:
    """As ``tools/golden.py`` has written them."""
    return sorted(row[0] for row in frame.select(F.to_json(F.struct("*"))).collect())


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_version_is_read_and_never_written(
    spark: SparkSession, path: Path, golden: Copied
) -> None:
    checkpoint = golden(path)
    before = files(checkpoint)
    for name, expected in json.loads(path.with_suffix(".json").read_text()).items():
        table, _, batch = name.partition(" @")
        found = dt.checkpoints.read_state(spark, checkpoint, table, batch=int(batch))
        assert rows(found) == expected, name
    assert files(checkpoint) == before


def test_the_files_of_micro_batches_have_what_spark_reads(
    spark: SparkSession, golden: Copied
) -> None:
    """All of them, one after the other, with the blobs that merges have deleted."""
    checkpoint = golden(next(path for path in CHECKPOINTS if path.name == "tables"))
    stored, deleted = CheckpointStores.of("test", spark, str(checkpoint), None), 0
    for operator in stored.operators:
        blobs: dict[tuple[int, str], bytes] = {}
        assert stored.batch is not None
        for version in range(1, stored.batch + 2):
            for partition in range(operator.partitions):
                path = checkpoint / f"state/{operator.number}/{partition}/{version}.changelog"
                for label, name, blob in changes(path.read_bytes()):
                    if blob is None:
                        deleted += 1
                        del blobs[label, name]
                    else:
                        blobs[label, name] = blob
        rows = stored.blobs(operator).collect()
        assert blobs == {(row["bucket"], row["name"]): bytes(row["blob"]) for row in rows}
    assert deleted
    whole = path.read_bytes()
    for broken in (whole[:-30], whole[30:], b"x" * 40):
        with pytest.raises(Unknown):
            list(changes(broken))


def test_a_newer_format_is_refused(spark: SparkSession, golden: Copied) -> None:
    checkpoint = golden(CHECKPOINTS[0])
    file = checkpoint / "dovetail.json"
    (checkpoint / ".dovetail.json.crc").unlink(missing_ok=True)
    bound = json.loads(file.read_text())
    for text, problem in (
        (json.dumps(bound | {"version": 99}), r"has format 99, this version reads \d"),
        (file.read_text()[:100], "cannot be read"),
    ):
        file.write_text(text)
        with pytest.raises(dt.errors.CheckpointError, match=problem):
            dt.checkpoints.read_state(spark, checkpoint)
    newer = manifests.FORMAT_VERSION + 1
    with pytest.raises(dt.errors.StateError, match=rf"version {newer}, .* reads {newer - 1}"):
        manifests.read(Blob(bytes([newer])))


class Blob:
    def __init__(self, blob: bytes) -> None:
        self.blob = blob

    def get(self, name: str) -> bytes | None:
        return self.blob


TOPOLOGY = """
import dovetail as dt
from dovetail import testing
import pyarrow as pa

orders = testing.table("orders", key="id", schema={"id": pa.int64()})
whole = orders.materialize()
made = lambda: whole
nothing = 1
"""


def test_the_command_line(
    spark: SparkSession,
    golden: Copied,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(golden(next(path for path in CHECKPOINTS if path.name == "tables")))

    def run(*arguments: str) -> str:
        made = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
        assert made.exit_code == 0, made.output
        return made.output

    def failed(*arguments: str) -> str:
        """What a process would say, and its exit code."""
        monkeypatch.setattr("sys.argv", ["dovetail", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    listed = json.loads(run("inspect", checkpoint, "--json"))
    assert listed["batch"] == 8
    assert listed["offsets"][0] == '{"logOffset":8}'
    stores = dt.checkpoints.read_state(spark, checkpoint).collect()
    assert [one["store"] for one in listed["stores"]] == [row["store"] for row in stores]
    shown = run("inspect", checkpoint, "--batch", "4")
    assert shown.startswith('after micro-batch 4\nsource 1: {"logOffset":4}\n')
    assert "\x1b" not in shown
    assert "subscriptions" in shown
    lines = run("state", checkpoint, "orders", "--format", "json").splitlines()
    expected: dict[str, Any] = {row["id"]: row for row in map(json.loads, lines)}
    assert len(lines) == dt.checkpoints.read_state(spark, checkpoint, "orders").count()
    asked = run("state", checkpoint, "orders", "--key", "12", "--format", "json")
    assert json.loads(asked) == expected[12]
    shown = run("state", checkpoint, "orders", "--column", "id", "--limit", "2")
    assert len(shown.splitlines()) == 7
    assert "the first 2 rows" in shown
    run("state", checkpoint, "orders", "--format", "parquet", "--output", str(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(expected)
    assert "no key, which is id" in failed("state", checkpoint, "orders", "--key", "x")
    assert "holds no rows of 'none'" in failed("state", checkpoint, "none")
    assert "not a versioned table" in failed("state", checkpoint, "orders", "--as-of", "2026-01-01")
    assert "go together" in failed("state", checkpoint, "orders", "--format", "parquet")
    assert "has no dovetail.json" in failed("inspect", str(tmp_path))
    gone_back = run("rewind", checkpoint, "--batch", "4")
    assert gone_back.startswith(f"{checkpoint} is as it was after micro-batch 4, at 2")
    assert run("inspect", checkpoint).startswith("after micro-batch 4\n")
    assert "Spark has kept 0 to 4" in failed("rewind", checkpoint, "--batch", "6")
    (tmp_path / "shop.py").write_text(TOPOLOGY)
    monkeypatch.chdir(tmp_path)
    assert run("explain", "shop:whole") == run("explain", "shop:made")
    assert "orders: last row per key" in run("explain", "shop:whole")
    assert run("explain", "shop:whole", "--format", "mermaid").startswith("flowchart TD\n")
    assert "shop:nothing is no Table or Stream" in failed("explain", "shop:nothing")
    assert "cannot be found" in failed("explain", "shop:other")
    assert CliRunner().invoke(cli.app, ["inspect"]).exit_code == 2
