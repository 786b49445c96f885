"""The rows of an Iceberg table's snapshots by DuckDB: by the rules of the format as SQL over its
files, and by DuckDB's own reader of Iceberg tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64
from small_session import CACHE

PACKAGES = (
    "duckdb==1.4.4",
    "duckdb-ext-iceberg==1.4.4.20260205",
    "duckdb-ext-avro==1.4.4.20260205",
)
"""DuckDB with its reader of Iceberg tables, which later releases are not published with."""
_READER = """
import duckdb, json, sys
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET preserve_insertion_order = false")
(folder,) = __import__("duckdb_ext").__path__
for name in ("avro", "iceberg"):
    path = f"{folder}/extensions/v{duckdb.__version__}/linux_amd64/{name}.duckdb_extension"
    connection.execute(f"LOAD '{path}'")
metadata, *snapshots = sys.argv[1:]
for snapshot in snapshots:
    query = f"FROM iceberg_scan('{metadata}', snapshot_from_id => {snapshot})"
    rows = connection.execute(query)
    print(json.dumps([[column[0] for column in rows.description], rows.fetchall()]))
"""

Rows = list[tuple[Any, ...]]


def rows_at(table: Table, snapshot: Snapshot, ids: Sequence[int]) -> Rows:
    """The rows of a snapshot, in order, in the columns of these numbers.

    | a delete file has | it deletes rows of the data files of its partition that           |
    |-------------------|-------------------------------------------------------------------|
    | positions         | are not newer than it, by their paths and positions               |
    | values            | are older, and equal its rows; in all partitions if it has none   |
    """
    entries = [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]
    of = {
        content: [entry for entry in entries if entry.data_file.content == content]
        for content in DataFileContent
    }
    data = of[DataFileContent.DATA]
    if not data:
        return []
    connection = duckdb.connect()
    paths = {path(entry): entry for entry in data}
    files = pa.table(
        {
            "path": [*paths],
            "sequence": [entry.sequence_number for entry in paths.values()],
            "part": [partition(entry) for entry in paths.values()],
        }
    )
    marked = [
        {"path": name, "pos": pos, "sequence": entry.sequence_number, "part": partition(entry)}
        for entry in of[DataFileContent.POSITION_DELETES]
        for name, pos in positions(connection, entry)
    ]
    schema = pa.schema(
        {"path": pa.string(), "pos": pa.int64(), "sequence": pa.int64(), "part": pa.string()}
    )
    connection.register("files", files)
    connection.register("marked", pa.Table.from_pylist(marked, schema))
    at_positions = (
        "NOT EXISTS (FROM marked m WHERE m.path = f.path AND m.pos = r.file_row_number "
        "AND m.part = f.part AND m.sequence >= f.sequence)"
    )
    conditions = [at_positions]
    for entry in of[DataFileContent.EQUALITY_DELETES]:
        equal = " AND ".join(
            f"v.c{id_} IS NOT DISTINCT FROM r.c{id_}" for id_ in entry.data_file.equality_ids or ()
        )
        is_global = table.specs()[entry.data_file.spec_id].is_unpartitioned()
        here = "TRUE" if is_global else f"f.part = '{partition(entry)}'"
        conditions.append(
            f"NOT (f.sequence < {entry.sequence_number} AND {here} AND "
            f"EXISTS (FROM {parquet(table, [path(entry)])} v WHERE {equal}))"
        )
    columns = ", ".join(f"r.c{id_}" for id_ in ids)
    return connection.execute(
        f"SELECT {columns} FROM {parquet(table, [*paths])} r "
        f"JOIN files f ON f.path = r.filename WHERE {' AND '.join(conditions)} ORDER BY ALL"
    ).fetchall()


def parquet(table: Table, paths: Sequence[str]) -> str:
    """SQL that reads files in columns named by their numbers, all that the table ever had."""
    fields = {
        field.field_id: field for schema in table.schemas().values() for field in schema.fields
    }
    columns = ", ".join(
        f"{id_}: {{'name': 'c{id_}', 'type': '{_sql_type(str(field.field_type))}', "
        "'default_value': NULL}"
        for id_, field in fields.items()
    )
    return (
        f"read_parquet({[*paths]}, schema => MAP {{{columns}}}, filename => true, "
        "file_row_number => true, hive_partitioning => false)"
    )


def _sql_type(type_: str) -> str:
    return {"long": "BIGINT", "int": "INTEGER", "string": "VARCHAR"}[type_]


def path(entry: ManifestEntry) -> str:
    return _local(entry.data_file.file_path)


def _local(uri: str) -> str:
    """The path of a file, which Java writes with one slash after the scheme, and others with
    three.
    """
    return uri.removeprefix("file:").replace("///", "/")


def partition(entry: ManifestEntry) -> str:
    values = [str(value) for value in entry.data_file.partition]
    return " ".join([str(entry.data_file.spec_id), *values])


def positions(
    connection: duckdb.DuckDBPyConnection, entry: ManifestEntry
) -> Iterator[tuple[str, int]]:
    """The paths and positions in a file of position deletes, or in one of deletion vectors."""
    if entry.data_file.file_format == FileFormat.PARQUET:
        rows = connection.execute(f"SELECT file_path, pos FROM '{path(entry)}'").fetchall()
        yield from ((_local(name), pos) for name, pos in rows)
        return
    content = Path(path(entry)).read_bytes()
    size = int.from_bytes(content[-12:-8], "little")
    for blob in json.loads(content[-12 - size : -12])["blobs"]:
        start = blob["offset"] + 8
        vector = BitMap64.deserialize(content[start : start + blob["length"] - 12])
        name = _local(blob["properties"]["referenced-data-file"])
        yield from ((name, pos) for pos in vector)


def scanned(metadata: str, snapshots: Sequence[int]) -> list[tuple[list[str], Rows]]:
    """The columns' names and the rows of snapshots, as DuckDB's reader of Iceberg tables has them.

    ``metadata``: the path of the table's metadata.
    """
    done = subprocess.run(
        [interpreter(), "-c", _READER, _local(metadata), *map(str, snapshots)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [
        (names, sorted(map(tuple, rows), key=repr))
        for names, rows in map(json.loads, done.stdout.splitlines())
    ]


@cache
def interpreter() -> str:
    """Python with ``PACKAGES``, installed once apart from the tests' own packages."""
    folder = CACHE / "-".join(PACKAGES[1].split("=="))
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        venv.create(folder, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "-q", *PACKAGES]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            missing = pytest.fail if os.environ.get("CI") else pytest.skip
            missing(f"DuckDB's reader of Iceberg tables cannot be installed: {done.stderr}")
        (folder / "done").touch()
    return str(python)
