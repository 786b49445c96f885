"""Checkpoints of every version that has been released, read by this one.

``tools/golden.py`` has written them, with what they hold.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_checkpoints import CHECKPOINTS, Copied
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.spark.checkpoints.changelog_files import UnreadableFile, blob_changes
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
    stored, deleted = CheckpointStores.read_with_spark("test", spark, str(checkpoint), None), 0
    for operator in (of for of in stored.operators if not of.prefix):
        blobs: dict[tuple[int, str], bytes] = {}
        assert stored.batch is not None
        for version in range(1, stored.batch + 2):
            for partition in range(operator.partitions):
                path = checkpoint / f"state/{operator.number}/{partition}/{version}.changelog"
                for label, name, blob in blob_changes(path.read_bytes()):
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
        with pytest.raises(UnreadableFile):
            list(blob_changes(broken))


def test_a_newer_format_is_refused(spark: SparkSession, golden: Copied) -> None:
    checkpoint = golden(CHECKPOINTS[0])
    file = checkpoint / "dovetail.json"
    (checkpoint / ".dovetail.json.crc").unlink(missing_ok=True)
    bound = json.loads(file.read_text())
    for text, problem in (
        (json.dumps(bound | {"version": 99}), r"has format 99, this version reads \d"),
        (file.read_text()[:100], "cannot be read"),
        ("[]", "cannot be read"),
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
