"""Iceberg tables that change at random, in every way that Iceberg has."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

Row = dict[str, Any]
IDS = 30


class History:
    """A table of ids, parts and values, and its rows after each snapshot.

    ``evolving``: its columns and its partitions change, too. ``vectors``: rows are deleted by
    deletion vectors, too. ``values``: those that are drawn.
    """

    def __init__(
        self,
        draw: random.Random,
        folder: Path,
        *,
        partitioned: bool,
        evolving: bool = False,
        vectors: bool = True,
        values: Sequence[int | None] = (0, 1, 2, None),
    ) -> None:
        self.draw, self.drawn_values = draw, values
        self.catalog = iceberg.properties(folder)
        fields = [
            NestedField(1, "id", LongType(), required=True),
            NestedField(2, "part", StringType()),
            NestedField(3, "v", LongType()),
        ]
        part = PartitionField(2, 1000, IdentityTransform(), "part")
        spec = PartitionSpec(part) if partitioned else PartitionSpec()
        catalog = iceberg.opened(self.catalog)
        self.table = catalog.create_table("shop.t", Schema(*fields), partition_spec=spec)
        self.rows: dict[int, Row] = {}
        self.states: dict[int, dict[int, Row]] = {0: {}}
        self.evolving = evolving
        self.steps: list[Callable[[], None]] = [self.append, self.append_twice, self.overwrite]
        self.steps += [self.delete_rows, self.compact, self.delete_positions]
        self.steps += [self.delete_values, self.upsert_values]
        if vectors:
            self.steps.append(self.delete_vectors)

    def step(self) -> None:
        """Commit one snapshot."""
        self.table.refresh()
        if self.evolving and self.draw.random() < 0.3:
            self.draw.choice([self.rename, self.add, self.drop, self.repartition])()
            self.table.refresh()
        before = self.table.metadata.last_sequence_number
        while self.table.metadata.last_sequence_number == before:
            self.draw.choice(self.steps)()
            self.table.refresh()
        self.states[self.table.metadata.last_sequence_number] = dict(self.rows)

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema_to_pyarrow(self.table.schema()))

    @property
    def values(self) -> list[str]:
        """The names of the columns with values."""
        return [field.name for field in self.table.schema().fields if field.field_id > 2]

    def new_rows(self, ids: list[int]) -> pa.Table:
        """Rows of these ids, each with its part: a row never changes its partition here."""
        made = [
            {"id": i, "part": "ab"[i % 2], **{name: self.value() for name in self.values}}
            for i in ids
        ]
        self.rows.update((row["id"], row) for row in made)
        return self.arrow(made)

    def value(self) -> int | None:
        return self.draw.choice(self.drawn_values)

    def some(self) -> list[int]:
        ids = sorted(self.rows)
        return self.draw.sample(ids, min(len(ids), self.draw.randint(1, 4)))

    def append(self) -> None:
        free = [i for i in range(IDS) if i not in self.rows]
        if free:
            self.table.append(self.new_rows(self.draw.sample(free, min(len(free), 5))))

    def append_twice(self) -> None:
        """Rows of a file, some deleted by the snapshot that adds it, as Flink does within one."""
        free = [i for i in range(IDS) if i not in self.rows]
        if len(free) > 1:
            ids = sorted(self.draw.sample(free, 2), key=lambda i: i % 2)
            new = self.new_rows(ids)
            files = iceberg.written(self.table, new)
            by_file = {files[0].file_path: [0]}
            self.gone(ids[:1])
            delete = iceberg.positions(self.table, by_file, files[0])
            iceberg.row_delta(self.table, [delete], files=files)

    def overwrite(self) -> None:
        """Rows replaced, by files written anew, with others that stay as they are."""
        if ids := self.some():
            self.new_rows(ids)
            iceberg.rewrite(self.table, self.arrow([*self.rows.values()]))

    def delete_rows(self) -> None:
        if ids := self.some():
            self.gone(ids)
            iceberg.rewrite(self.table, self.arrow([*self.rows.values()]))

    def compact(self) -> None:
        if self.rows:
            iceberg.rewrite(self.table, self.arrow([*self.rows.values()]), same=True)

    def gone(self, ids: list[int]) -> list[Row]:
        return [self.rows.pop(i) for i in ids]

    def places(self, ids: list[int]) -> Iterator[tuple[DataFile, dict[str, list[int]]]]:
        """The positions of live rows in their files, with a file of each partition."""
        by_partition: dict[str, Any] = defaultdict(lambda: defaultdict(list))
        like = {}
        for file in iceberg.data_files(self.table):
            for at, i in enumerate(self.ids(file)):
                if i in ids and self.newest[i] == file.file_path:
                    by_partition[partition(file)][file.file_path].append(at)
                    like[partition(file)] = file
        for key, by_file in by_partition.items():
            yield like[key], dict(by_file)

    @property
    def newest(self) -> dict[int, str]:
        """The file with the live row of each id, which is the one that was added last."""
        files = iceberg.data_files(self.table)
        return {i: file.file_path for file in files for i in self.ids(file)}

    def ids(self, file: DataFile) -> list[int]:
        with self.table.io.new_input(file.file_path).open() as opened:
            ids: list[int] = pq.read_table(opened, columns=["id"])["id"].to_pylist()
        return ids

    def delete_positions(
        self, write: Callable[[Table, Any, DataFile], DataFile] = iceberg.positions
    ) -> None:
        if ids := self.some():
            files = [write(self.table, by_file, like) for like, by_file in self.places(ids)]
            self.gone(ids)
            iceberg.row_delta(self.table, files)

    def delete_vectors(self) -> None:
        self.delete_positions(iceberg.vectors)

    def delete_values(self, rows: bool = False) -> None:
        if ids := self.some():
            gone = self.arrow(self.gone(ids))
            by = [
                "id",
                *self.draw.sample(self.values, min(len(self.values), self.draw.choice((0, 1)))),
            ]
            likes = {partition(file): file for file in iceberg.data_files(self.table)}.values()
            files = [iceberg.values(self.table, by, gone, like) for like in likes]
            iceberg.row_delta(self.table, files, self.new_rows(ids) if rows else None)

    def upsert_values(self) -> None:
        """As Flink does: equality deletes, and new rows of the same keys, which they spare."""
        self.delete_values(rows=True)

    def rename(self) -> None:
        """Another name for a column, which may be a former one of another column."""
        free = [name for name in "vwxyz" if name not in self.values]
        if self.values and free:
            old, new = self.draw.choice(self.values), self.draw.choice(free)
            with self.table.update_schema() as update:
                update.rename_column(old, new)
            for i, row in self.rows.items():
                self.rows[i] = {new if name == old else name: v for name, v in row.items()}

    def add(self) -> None:
        free = [name for name in "vwxyz" if name not in self.values]
        if free:
            new = self.draw.choice(free)
            with self.table.update_schema() as update:
                update.add_column(new, LongType())
            for i, row in self.rows.items():
                self.rows[i] = row | {new: None}

    def drop(self) -> None:
        if len(self.values) > 1:
            old = self.draw.choice(self.values)
            with self.table.update_schema() as update:
                update.delete_column(old)
            for i, row in self.rows.items():
                self.rows[i] = {name: v for name, v in row.items() if name != old}

    def repartition(self) -> None:
        """Take the partition of later files away, or give them one."""
        names = [field.name for field in self.table.spec().fields]
        with self.table.update_spec() as update:
            if names:
                update.remove_field(names[0])
            else:
                update.add_identity("part")


def partition(file: DataFile) -> str:
    return f"{file.spec_id} {file.partition!r}"
