"""Checkpoints on a local disk, read without Spark, have what Spark reads of them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from bench.parameters import slow_after
from golden_checkpoints import CHECKPOINTS, Copied
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.spark.checkpoints.changelog_files import UnreadableFile, blob_changes, blob_of
from dovetail.spark.checkpoints.local_rows import local_rows
from dovetail.spark.checkpoints.local_state import LocalFiles, local_files
from dovetail.spark.checkpoints.stores import CheckpointStores

pytest.importorskip("rocksdict")
TABLES = next(path for path in CHECKPOINTS if path.name == "tables")


@pytest.mark.long
@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}-{path.name}")
@pytest.mark.parametrize("every", slow_after(1, [False, True]), ids=["first and last", "every"])
def test_all_blobs_of_micro_batches(
    spark: SparkSession, path: Path, golden: Copied, every: bool
) -> None:
    checkpoint = golden(path)
    files = LocalFiles(checkpoint)
    committed = files.committed_batches("test")
    assert committed is not None
    count = 0
    ends = {committed.first, committed.last}
    for batch in range(committed.first, committed.last + 1) if every else sorted(ends):
        by_spark = CheckpointStores.read_with_spark("test", spark, str(checkpoint), batch)
        local = CheckpointStores.read("test", files, batch)
        assert local.batch == by_spark.batch == batch
        assert local.offsets() == by_spark.offsets()
        assert [*local.operators] == [*by_spark.operators]
        for operator, buckets in local.operators.items():
            by_bucket = by_spark.operators[operator]
            assert {n: b.blobs for n, b in buckets.items()} == {
                n: b.blobs for n, b in by_bucket.items()
            }
            rows = by_spark.blobs(operator).collect()
            names = {row["name"]: row["bucket"] for row in rows if len(row["name"]) == 32}
            expected = {row["name"]: bytes(row["blob"]) for row in rows if row["name"] in names}
            found = dict(files.segments("test", operator, batch, local.buckets, names))
            assert found == expected
            count += len(found)
    assert count


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_rows_of_all_tables(path: Path, golden: Copied) -> None:
    """They are those that ``tools/golden.py`` has written beside the checkpoint."""
    files = LocalFiles(golden(path))
    for name, lines in json.loads(path.with_suffix(".json").read_text()).items():
        table, _, batch = name.partition(" @")
        stored = CheckpointStores.read("test", files, int(batch))
        store = stored.store_of(table)
        rows = [row for part in local_rows(stored, store) for row in part.to_pylist()]
        expected = [json.loads(line) for line in lines]
        shown = [json.loads(json.dumps(row, default=str)) for row in rows]
        for row in (*shown, *expected):
            del row["_timestamp"]
            row.pop("_due", None)
        assert sorted(shown, key=repr) == sorted(expected, key=repr)
        (first, *_) = store.store.own_key
        keys = [row[first.name] for row in rows][:2] if len(store.store.own_key) == 1 else []
        if keys:
            some = [r for t in local_rows(stored, store, keys=keys) for r in t.to_pylist()]
            assert some == [row for row in rows if row[first.name] in keys]


def test_a_micro_batch_before_a_repartition_has_its_own_partitions(golden: Copied) -> None:
    checkpoint = golden(TABLES)
    for operator in checkpoint.glob("state/*"):
        first = operator / "_metadata/v2/0"
        text = first.read_text()
        (operator / "_metadata/v2/8").write_text(text)
        first.write_text(text.replace('"numPartitions":1', '"numPartitions":2'))
        shutil.copytree(operator / "0", operator / "1")
    partitions = {
        batch: {o.partitions for o in CheckpointStores.read("test", files, batch).operators}
        for files in [LocalFiles(checkpoint)]
        for batch in (7, 8)
    }
    assert partitions == {7: {2}, 8: {1}}
    shutil.rmtree(checkpoint / "state/0/1")
    with pytest.raises(UnreadableFile):
        CheckpointStores.read("test", LocalFiles(checkpoint), 7)


@pytest.mark.parametrize("described", [False, True])
def test_a_lookup_reads_all_anew_after_a_repartition(
    golden: Copied, monkeypatch: pytest.MonkeyPatch, described: bool
) -> None:
    """It describes the state anew. If it writes changelogs, these are only of its partitions."""
    checkpoint, reads = golden(TABLES), list[int]()
    commit = checkpoint / "commits/8"
    committed = commit.read_bytes()
    commit.unlink()
    assert dt.checkpoints.lookup_state(checkpoint, "subscriptions", keys=[0]).num_rows
    for folder in checkpoint.glob("state/*/_metadata/v2") if described else ():
        shutil.copy(folder / "0", folder / "8")
    commit.write_bytes(committed)
    read = CheckpointStores.read

    def counted(*given: Any) -> CheckpointStores:
        reads.append(1)
        return read(*given)

    monkeypatch.setattr(CheckpointStores, "read", counted)
    found = dt.checkpoints.lookup_state(checkpoint, "subscriptions", keys=[0])
    assert found["name"].to_pylist() == ["o8"]
    assert len(reads) == described


def test_a_key_is_looked_up_without_a_session(
    golden: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a session is asked for")

    monkeypatch.setattr(SparkSession, "active", refuse)
    checkpoint = golden(TABLES)
    lines = json.loads(TABLES.with_suffix(".json").read_text())["subscriptions @8"]
    rows = {row["id"]: row for row in map(json.loads, lines)}
    found = dt.checkpoints.lookup_state(checkpoint, "subscriptions", keys=[*rows])
    assert {row["id"]: row["name"] for row in found.to_pylist()} == {
        key: row["name"] for key, row in rows.items()
    }


@pytest.mark.parametrize(
    "keys", [[{"id": 1}], [{"id": 1}, 1, 1, {"id": 1}], [{"id": 1}, 99]], ids=repr
)
def test_a_key_may_be_a_mapping_and_counts_once(golden: Copied, keys: list[object]) -> None:
    found = dt.checkpoints.lookup_state(golden(TABLES), "customers", keys=keys)
    assert found.column("id").to_pylist() == [1]


def set_back(checkpoint: Path) -> None:
    """To the state after the first micro-batch, as ``rewind`` does."""
    for file in checkpoint.glob("state/*/*/*.changelog"):
        if file.name != "1.changelog":
            file.unlink()
    for folder in ("commits", "offsets", "state/*/_metadata/v2"):
        for file in checkpoint.glob(f"{folder}/[1-9]*"):
            file.unlink()
    (checkpoint / "metadata").write_text(json.dumps({"id": "another"}))


def remove(checkpoint: Path) -> None:
    """And begin anew, with fewer micro-batches."""
    shutil.rmtree(checkpoint)
    shutil.copytree(TABLES, checkpoint)
    set_back(checkpoint)


@pytest.mark.parametrize("again", [set_back, remove])
def test_rows_of_a_query_that_was_set_back_are_read_anew(
    golden: Copied, again: Callable[[Path], None]
) -> None:
    checkpoint = golden(TABLES)

    def found() -> list[int]:
        rows = dt.checkpoints.lookup_state(checkpoint, "customers", keys=[0, 1, 2])
        return sorted(rows.column("id").to_pylist())

    assert found() == [0, 1, 2]
    again(checkpoint)
    assert found() == [0]


def test_no_keys_have_no_rows(golden: Copied) -> None:
    assert len(dt.checkpoints.lookup_state(golden(TABLES), "customers", keys=[])) == 0


@pytest.mark.parametrize("key", [{"k": 1}, {"id": {}}, {"id": None}, 1.5, True], ids=repr)
def test_what_is_no_key_is_refused(golden: Copied, key: object) -> None:
    with pytest.raises(dt.errors.PlanError, match="lookup_state: keys= has"):
        dt.checkpoints.lookup_state(golden(TABLES), "customers", keys=[key])


def broken_metadata(checkpoint: Path) -> None:
    file = checkpoint / "state/0/_metadata/v2/0"
    file.write_text(file.read_text().replace("v2", "v9"))


def without_a_changelog(checkpoint: Path) -> None:
    for file in checkpoint.glob("state/0/0/*.changelog"):
        file.unlink()
    for file in checkpoint.glob("state/0/0/*.zip"):
        file.unlink()


def without_a_table(checkpoint: Path) -> None:
    for file in checkpoint.glob("state/0/0/SSTs/*"):
        file.unlink()


def broken_snapshot(checkpoint: Path) -> None:
    for file in checkpoint.glob("state/0/0/*.zip"):
        file.write_bytes(b"no archive")


@pytest.mark.parametrize(
    "broken", [broken_metadata, without_a_changelog, without_a_table, broken_snapshot]
)
def test_other_files_are_left_to_spark(golden: Copied, broken: Callable[[Path], None]) -> None:
    checkpoint = golden(TABLES)
    files = local_files(str(checkpoint))
    assert files is not None
    assert CheckpointStores.read("test", files, None).stores
    broken(checkpoint)
    with pytest.raises(UnreadableFile):
        CheckpointStores.read("test", files, None)


def corrupt_byte(file: bytearray) -> None:
    file[-30] ^= 1


def corrupt_size(file: bytearray) -> None:
    """The first block says that it has 50 bytes more."""
    size = int.from_bytes(file[SIZE_AT : SIZE_AT + 4], "little") + 50
    file[SIZE_AT : SIZE_AT + 4] = size.to_bytes(4, "little")


def corrupt_checksum(file: bytearray) -> None:
    file[SIZE_AT + 4] ^= 1


def huge_size(file: bytearray) -> None:
    file[SIZE_AT : SIZE_AT + 4] = (2**31 - 1).to_bytes(4, "little")


def negative_size(file: bytearray) -> None:
    file[SIZE_AT : SIZE_AT + 4] = (-1).to_bytes(4, "little", signed=True)


def no_lz4(file: bytearray) -> None:
    """The first block's content is no LZ4."""
    file[SIZE_AT + 8 : SIZE_AT + 40] = b"\xff" * 32


def without_its_end(file: bytearray) -> None:
    del file[:]
    file += lz4_block(b"\x00\x02v2")


SIZE_AT = 13


def lz4_block(content: bytes) -> bytes:
    """A block as lz4-java writes it, not compressed."""
    checksum = xxhash.xxh32_intdigest(content, 0x9747B28C) & 0x0FFFFFFF
    size = len(content)
    return struct.pack("<8sBiiI", b"LZ4Block", 0x10 + 5, size, size, checksum) + content


@pytest.mark.parametrize(
    "corrupt",
    [
        corrupt_byte,
        corrupt_size,
        corrupt_checksum,
        huge_size,
        negative_size,
        no_lz4,
        without_its_end,
    ],
)
def test_a_corrupt_changelog_is_left_to_spark(corrupt: Callable[[bytearray], None]) -> None:
    (path, *_) = sorted(TABLES.glob("state/0/*/*.changelog"))
    file = bytearray(path.read_bytes())
    assert [*blob_changes(bytes(file))]
    corrupt(file)
    with pytest.raises(UnreadableFile):
        [*blob_changes(bytes(file))]


def test_a_block_that_is_not_compressed() -> None:
    assert [*blob_changes(lz4_block(b"\x00\x02v2\x00"))] == []


@pytest.mark.parametrize("size", range(18))
def test_a_value_that_is_cut_off_is_left_to_spark(size: int) -> None:
    value = bytes(9) + struct.pack("<ii", 3, 16) + b"abc"
    assert blob_of(memoryview(value)) == b"abc"
    with pytest.raises(UnreadableFile):
        blob_of(memoryview(value[:size]))


def test_only_a_checkpoint_is_read(golden: Copied, tmp_path: Path) -> None:
    assert local_files(str(tmp_path)) is None
    assert local_files("s3a://bucket/checkpoint") is None
    checkpoint = golden(TABLES)
    for spelled in (str(checkpoint), f"file:{checkpoint}", f"file://{checkpoint}"):
        files = local_files(spelled)
        assert files is not None
        assert files.has("commits/8")
    shutil.rmtree(checkpoint / "commits")
    assert CheckpointStores.read("test", files, None).stores == []
