"""Few rows, held by this process as Arrow: counting them and finding their keys takes no Spark job.

The functions are those of ``snapshots.delta_rules``, on tables instead of frames. Values are of the
types that ``delta_upsert.is_plain`` names, which come to Arrow and back unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import foreign_name
from dovetail.platform.delta_tables import Range, has_range
from dovetail.snapshots.delta_rules import AFTER, APART, BEFORE, FAULTY, FRESH
from dovetail.snapshots.plan import SIGN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class FewRows:
    """Rows with their Spark types."""

    table: pa.Table
    schema: StructType

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame that has them in its plan."""
        return session.createDataFrame(self.table.combine_chunks(), self.schema)


@dataclass(frozen=True)
class ImageCounts:
    """Numbers of rows of ``delta_rules.images``."""

    faulty: int
    """The number of keys that had two rows at once."""
    nulls: int
    """The number of keys that are null and have a row."""
    fresh: int
    """The number of keys that must have had no row before."""


def count_images(images: pa.Table, key: Sequence[str]) -> ImageCounts:
    """Count the images that are refused or looked up."""
    nulls = np.logical_and.reduce([pc.is_null(images[name]).to_numpy() for name in key])
    faulty, fresh = (images[flag].to_numpy() for flag in (FAULTY, FRESH))
    present = pc.is_valid(images[AFTER]).to_numpy()
    return ImageCounts(
        int(np.sum(faulty & ~nulls)), int(np.sum(nulls & present)), int(np.sum(fresh))
    )


def signed(images: pa.Table) -> pa.Table:
    """Return ``delta_rules.signed`` of images."""
    changed = images.filter(images[APART])
    sides = []
    for image, sign in ((BEFORE, -1), (AFTER, 1)):
        rows = changed[image].drop_null().combine_chunks()
        names = [field.name for field in rows.type]
        signs = pa.array(np.full(len(rows), sign, dtype=np.int32))
        sides.append(pa.table([*rows.flatten(), signs], names=[*names, SIGN]))
    return pa.concat_tables(sides)


def keys_of(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return ``delta_rules.keys_of`` of rows. Equal floats may come more than once."""
    keys = numbered(rows, columns).drop_null()
    return keys.group_by(keys.column_names).aggregate([])


def numbered(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return columns as ``_f0``, ``_f1`` …."""
    return rows.select(columns).rename_columns([foreign_name(i) for i in range(len(columns))])


def moves(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return ``delta_rules.moves`` of a delta in which a value has at most one row. No column is a
    float.
    """
    keys = numbered(rows, columns)
    names = keys.column_names
    signs = keys.append_column(SIGN, rows[SIGN]).drop_null().group_by(names)
    ends = signs.aggregate([(SIGN, "min"), (SIGN, "max")])
    moved = ends.filter(pc.equal(ends[f"{SIGN}_min"], ends[f"{SIGN}_max"]))
    return moved.select(names).append_column(SIGN, pc.negate(moved[f"{SIGN}_min"]))


def ranges_of(keys: FewRows) -> tuple[Range | None, ...]:
    """Return the range of each column, None for one with nulls or of a type without a range."""

    def range_of(name: str) -> Range | None:
        column = keys.table[name]
        if len(column) == 0 or column.null_count or not has_range(keys.schema[name].dataType):
            return None
        ends = pc.min_max(column)
        return ends["min"].as_py(), ends["max"].as_py()

    return tuple(map(range_of, keys.schema.names))
