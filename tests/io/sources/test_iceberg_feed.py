"""An Iceberg table as a source: its content, then each snapshot, however rows come and go."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pyarrow as pa
import pytest
from iceberg_histories import History, Row
from pyspark.sql.types import StructType

from dovetail.errors import TargetError
from dovetail.iceberg.catalogs import TableAddress
from dovetail.iceberg.changed_rows import FileChange, RowReader
from dovetail.iceberg.columns import projected
from dovetail.iceberg.live_files import ManifestReader
from dovetail.io.sources import iceberg_feed
from dovetail.io.sources.iceberg_feed import FeedRequest, IcebergStreamReader


def expected(states: dict[int, dict[int, Row]]) -> dict[int, Any]:
    found = {}
    versions = sorted(states)
    for former, version in itertools.pairwise(versions):
        before, after = states[former], states[version]
        sides = {i: (before.get(i), after.get(i)) for i in {*before, *after}}
        changed = {i: pair for i, pair in sides.items() if pair[0] != pair[1]}
        if changed:
            found[version] = changed
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_feed_is_the_difference_of_snapshots(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    history = History(draw, tmp_path, partitioned=seed % 2 == 0)
    for _ in range(12):
        history.step()
    found = iceberg.feed(history.catalog, iceberg.FIRST, draw.choice((None, 1, 5)))
    assert iceberg.differences(found) == expected(history.states)
    last = history.table.metadata.last_sequence_number
    content = iceberg.differences(iceberg.feed(history.catalog, iceberg.CONTENT))
    assert content == expected({0: {}, last: history.rows})


def test_rows_of_large_files_are_found_by_their_positions(tmp_path: Path) -> None:
    """Only rows that go are read out of a file that is read in several batches."""
    catalog = iceberg.properties(tmp_path)
    count = 300_000
    rows = pa.table({"id": pa.array(range(count)), "v": pa.array(range(count))})
    table = iceberg.opened(catalog).create_table("shop.t", rows.schema)
    table.append(rows)
    (file,) = iceberg.data_files(table)
    gone = [0, 5, 140_000, count - 1]
    iceberg.row_delta(table, [iceberg.positions(table, {file.file_path: gone}, file)])
    first = table.refresh().metadata.snapshots[0].snapshot_id
    found = iceberg.feed(catalog, {"snapshot": first, "content": False})
    assert [(row["_change_type"], row["id"], row["v"]) for row in found] == [
        ("delete", i, i) for i in gone
    ]


def test_a_delete_file_without_rows_deletes_nothing(tmp_path: Path) -> None:
    catalog = iceberg.properties(tmp_path)
    rows = pa.table({"id": [1, 2], "v": ["a", None]})
    table = iceberg.opened(catalog).create_table("shop.t", rows.schema)
    table.append(rows)
    (file,) = iceberg.data_files(table)
    first = table.metadata.snapshots[0].snapshot_id
    iceberg.row_delta(table, [iceberg.values(table, ["id", "v"], rows.slice(0, 0), file)])
    assert iceberg.feed(catalog, {"snapshot": first, "content": False}) == []
    content = iceberg.feed(catalog, iceberg.CONTENT)
    assert [(row["id"], row["v"]) for row in content] == [(1, "a"), (2, None)]


def test_deletes_by_values_of_a_spec_without_partitions_apply_to_all_partitions(
    tmp_path: Path,
) -> None:
    """A field that leaves the spec of a table of format version 1 stays in it as ``void``."""
    catalog = iceberg.properties(tmp_path)
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
    table = iceberg.opened(catalog).create_table(
        "shop.t", rows.schema, properties={"format-version": "1"}
    )
    with table.update_spec() as spec:
        spec.add_identity("v")
    table.append(rows)
    with table.update_spec() as spec:
        spec.remove_field("v")
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.append(pa.table({"id": [3], "v": ["c"]}))
    *_, file = iceberg.data_files(table)
    assert file.spec_id == table.spec().spec_id
    iceberg.row_delta(table, [iceberg.values(table, ["id"], rows.slice(0, 1), file)])
    content = iceberg.feed(catalog, iceberg.CONTENT)
    assert sorted(row["id"] for row in content) == [2, 3]


def test_deletes_by_a_uuid_apply_to_rows_that_are_read_without_it(tmp_path: Path) -> None:
    catalog = iceberg.properties(tmp_path)
    uuids = pa.array([b"a" * 16, None, b"b" * 16], pa.binary(16)).cast(pa.uuid())
    rows = pa.table({"id": [1, 2, 3], "u": uuids})
    table = iceberg.opened(catalog).create_table("shop.t", rows.schema)
    table.append(rows)
    (file,) = iceberg.data_files(table)
    deletes = [iceberg.values(table, ["u"], rows.slice(at, n), file) for at, n in ((1, 2), (0, 0))]
    iceberg.row_delta(table, deletes)
    files = ManifestReader(table.metadata, table.io).live_files(table.current_snapshot())
    reader = RowReader.of(table, table.schema().select("id"))
    (live,) = files.values()
    found = list(reader.changed_rows(FileChange(live.file, None, live.deletes)))
    assert [(removed, part.to_pylist()) for removed, part in found] == [(False, [{"id": 1}])]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_table_that_has_lost_its_snapshots_is_refused(
    tmp_path: Path, available_now: bool
) -> None:
    """A restart goes on after a snapshot that was read, and the table was made anew without any."""
    catalog = iceberg.properties(tmp_path)
    table = iceberg.opened(catalog).create_table("shop.t", pa.schema([("id", pa.int64())]))
    columns = projected(table.schema(), None).model_dump_json()
    request = FeedRequest("table t", TableAddress.of("shop.t", catalog), columns, iceberg.CONTENT)
    reader = IcebergStreamReader(request, StructType())
    if available_now:
        reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(reader.initialOffset(), limit) == iceberg.CONTENT
    with pytest.raises(TargetError, match="it has no snapshot, and snapshot 7 has been read"):
        reader.latestOffset({"snapshot": 7, "content": False}, limit)


def test_a_range_finds_the_rows_of_a_partition_that_wraps_around(tmp_path: Path) -> None:
    """Truncated, the smallest numbers of a type are below it, and pyiceberg writes large ones."""
    catalog = iceberg.properties(tmp_path)
    smallest, rows = -(2**63), pa.table({"k": [-(2**63), -3, 7]})
    table = iceberg.opened(catalog).create_table("shop.t", schema=rows.schema)
    with table.update_spec() as spec:
        spec.add_field("k", "truncate[10]")
    table.append(rows)
    columns = table.schema().model_dump_json()
    for ends, count in (((smallest, smallest), 3), ((-5, 0), 1)):
        address = TableAddress.of("shop.t", catalog)
        request = FeedRequest("t", address, columns, iceberg.CONTENT, content_ranges=[(1, *ends)])
        planner = iceberg_feed._ChangePlanner(request)
        tasks = planner.tasks(iceberg.CONTENT, planner.latest_offset(iceberg.CONTENT))
        assert sum(len(task.changes) for task in tasks) == count
