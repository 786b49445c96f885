"""Iceberg tables of a local catalog, with deletes that pyiceberg itself does not write."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record, TableVersion
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyroaring import BitMap64
from pyspark.sql.types import StructType

from dovetail.iceberg import columns
from dovetail.iceberg.catalogs import TableAddress
from dovetail.io.sources import iceberg_feed
from dovetail.io.sources.iceberg_feed import FeedOffset, FeedRequest
from dovetail.plan.types.arrow import spark_schema

Row = dict[str, Any]

CONTENT: FeedOffset = {"snapshot": None, "content": True}
FIRST: FeedOffset = {"snapshot": None, "content": False}
"""The offsets before the content, and before the changes of the first snapshot."""
_BOUNDED_TYPES = (IntegerType, LongType, StringType)
PATHS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)


def properties(folder: Path) -> dict[str, str]:
    """A catalog in SQLite, with the namespace ``shop``."""
    made = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    opened(made).create_namespace_if_not_exists("shop")
    return made


def opened(catalog: Mapping[str, str]) -> Catalog:
    return load_catalog("default", **catalog)


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """Numbers of columns as integers, as the format demands, not as longs."""
        entry = super()._with_partition(format_version)
        schema = json.loads(entry.model_dump_json())
        (file,) = (field for field in schema["fields"] if field["name"] == "data_file")
        (ids,) = (f for f in file["type"]["fields"] if f["name"] == "equality_ids")
        ids["type"]["element"] = "int"
        return Schema.model_validate(schema)


class _RowDelta(_FastAppendFiles):
    """New data files and delete files in one snapshot, as Flink and Spark write them."""

    delete_files: Sequence[DataFile] = ()

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        for spec_id in {file.spec_id for file in self.delete_files}:
            writer = _DeleteManifest(
                self.spec(spec_id),
                self.schema(),
                self.new_manifest_output(),
                self._snapshot_id,
                self._compression,
            )
            with writer:
                for file in self.delete_files:
                    if file.spec_id == spec_id:
                        added = ManifestEntryStatus.ADDED
                        writer.add(ManifestEntry.from_args(status=added, data_file=file))
            manifests = [writer.to_manifest_file(), *manifests]
        return manifests


class _Replacing(_OverwriteFiles):
    """New files in place of others, with the same rows."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def row_delta(
    table: Table,
    deletes: Sequence[DataFile],
    rows: pa.Table | None = None,
    files: Sequence[DataFile] = (),
) -> None:
    """Commit delete files, and rows or data files, in one snapshot."""
    with table.transaction() as transaction:
        producer = _RowDelta(Operation.OVERWRITE, transaction, table.io)
        producer.delete_files = deletes
        for file in [*files, *([] if rows is None else written(table, rows))]:
            producer.append_data_file(file)
        producer.commit()


def rewrite(table: Table, rows: pa.Table | None = None, *, same: bool = False) -> None:
    """Put rows in place of all that are live, in one snapshot: by default the same rows, as
    compaction does. ``same``: the given rows are those that are live.
    """
    changes = not (rows is None or same)
    rows = table.scan().to_arrow() if rows is None else rows
    with table.transaction() as transaction:
        producer = (_OverwriteFiles if changes else _Replacing)(
            Operation.OVERWRITE, transaction, table.io
        )
        for file in data_files(table):
            producer.delete_data_file(file)
        for file in written(table, rows):
            producer.append_data_file(file)
        producer.commit()


def data_files(table: Table) -> list[DataFile]:
    """The data files of the present snapshot, those that were added last at the end."""
    snapshot = table.current_snapshot()
    entries = [
        entry
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.DATA
    ]
    entries.sort(key=lambda e: (e.sequence_number or 0, e.snapshot_id or 0))
    return [entry.data_file for entry in entries]


def positions(table: Table, by_file: Mapping[str, Sequence[int]], like: DataFile) -> DataFile:
    """Write a file of position deletes for data files of the partition of ``like``."""
    pairs = sorted((path, at) for path, ats in by_file.items() for at in ats)
    rows = pa.table(
        [[path for path, _ in pairs], [at for _, at in pairs]], schema=schema_to_pyarrow(PATHS)
    )
    ends = {2147483546: pairs[0][0].encode()}, {2147483546: pairs[-1][0].encode()}
    return _delete_file(table, rows, DataFileContent.POSITION_DELETES, like, bounds=ends)


def values(table: Table, columns: Sequence[str], rows: pa.Table, like: DataFile) -> DataFile:
    """Write a file of equality deletes over columns, for the partition of ``like``. Whole numbers
    and texts without nulls have bounds, as Flink writes them.
    """
    schema = table.schema().select(*columns)
    rows = rows.select(columns).cast(schema_to_pyarrow(schema))
    ids = [field.field_id for field in schema.fields]
    bounds: tuple[dict[int, bytes], dict[int, bytes]] = {}, {}
    for field in schema.fields:
        column = rows[field.name]
        if isinstance(field.field_type, _BOUNDED_TYPES) and rows.num_rows > column.null_count == 0:
            ends = pc.min_max(column).as_py()
            for of_field, end in zip(bounds, ("min", "max"), strict=True):
                of_field[field.field_id] = to_bytes(field.field_type, ends[end])
    return _delete_file(table, rows, DataFileContent.EQUALITY_DELETES, like, ids=ids, bounds=bounds)


def vectors(table: Table, by_file: Mapping[str, Sequence[int]], like: DataFile) -> DataFile:
    """Write a Puffin file of deletion vectors for data files."""
    content, blobs = b"PFA1", []
    for path, ats in by_file.items():
        bitmap = b"\xd1\xd3\x39\x64" + BitMap64(ats).serialize()
        blob = len(bitmap).to_bytes(4, "big") + bitmap + bytes(4)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(ats))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    path = f"{table.location()}/data/{uuid4()}.puffin"
    with table.io.new_output(path).create() as file:
        file.write(content)
    count = sum(map(len, by_file.values()))
    return _described(path, DataFileContent.POSITION_DELETES, FileFormat.PUFFIN, like, count)


def written(table: Table, rows: pa.Table) -> list[DataFile]:
    """Write rows as data files that no snapshot has yet."""
    files = list(_dataframe_to_data_files(table.metadata, rows, table.io)) if len(rows) else []
    for file in files:
        file.spec_id = table.metadata.default_spec_id
    return files


def _delete_file(
    table: Table,
    rows: pa.Table,
    content: DataFileContent,
    like: DataFile,
    *,
    ids: list[int] | None = None,
    bounds: tuple[dict[int, bytes], dict[int, bytes]] | None = None,
) -> DataFile:
    path = f"{table.location()}/data/{uuid4()}-deletes.parquet"
    with table.io.new_output(path).create() as file:
        pq.write_table(rows, file)
    made = _described(path, content, FileFormat.PARQUET, like, rows.num_rows, ids)
    if bounds is not None:
        made[10], made[11] = bounds
    return made


def _described(
    path: str,
    content: DataFileContent,
    format_: FileFormat,
    like: DataFile,
    count: int,
    ids: list[int] | None = None,
) -> DataFile:
    made = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=format_,
        partition=like.partition or Record(),
        record_count=count,
        file_size_in_bytes=1000,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        equality_ids=ids,
    )
    made.spec_id = like.spec_id
    return made


def feed(
    catalog: Mapping[str, str], start: FeedOffset, most: int | None = None, table: str = "shop.t"
) -> list[Row]:
    """The rows of the feed, planned and read as Spark does: offset by offset, tasks pickled."""
    address = TableAddress.of(table, catalog)
    wanted = columns.projected(address.open("t").schema(), None)
    request = FeedRequest("table t", address, wanted.model_dump_json(), start, most)
    schema = spark_schema(columns.arrow_schema("t", wanted.fields)).toNullable()
    schema = StructType([*schema.fields, *iceberg_feed._FEED_COLUMNS.fields])
    planner = iceberg_feed._ChangePlanner(FeedRequest.from_json(request.to_json()))
    found: list[Row] = []
    while True:
        end = planner.limited_offset(start, planner.latest_offset(start), most)
        for task in planner.tasks(start, end):
            for rows in iceberg_feed._read_task(pickle.loads(pickle.dumps(task)), schema):
                found += rows.to_pylist()
        if end == start:
            return found
        start = end


def differences(found: list[Row]) -> dict[int, dict[int, tuple[Row | None, Row | None]]]:
    """What each snapshot does to each key: its row before and after. A key twice fails."""
    changes: dict[int, dict[int, list[Row | None]]] = defaultdict(dict)
    for row in found:
        version, kind = row.pop("_commit_version"), row.pop("_change_type")
        row.pop("_commit_timestamp")
        sides = changes[version].setdefault(row["id"], [None, None])
        side = 0 if kind == "delete" else 1
        assert sides[side] is None, f"{kind} of {row} twice"
        sides[side] = row
    return {
        version: {i: (was, is_) for i, (was, is_) in sides.items() if was != is_}
        for version, sides in changes.items()
        if any(was != is_ for was, is_ in sides.values())
    }
