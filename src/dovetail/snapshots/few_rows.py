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
from dovetail.snapshots.plan import AFTER, APART, BEFORE, FAULTY, FRESH, SIGN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class FewRows:
    """A few rows as an Arrow table, with the Spark types of its columns in order."""

    table: pa.Table
    schema: StructType

    def frame(self, session: SparkSession) -> DataFrame:
        """Return these rows as a Spark frame with the columns of ``schema``, in order. The frame's
        plan contains the rows, so no file is read. Without rows the frame is empty.
        """
        return session.createDataFrame(self.table.combine_chunks(), self.schema)


@dataclass(frozen=True)
class ImageCounts:
    """The counts of keys to refuse or to look up in a result of ``delta_rules.images_of_feed``."""

    faulty: int
    """The count of keys that had two rows at once."""
    nulls: int
    """The count of keys that are null and have a row after the changes."""
    fresh: int
    """The count of keys that must have had no row before."""


def count_images(images: pa.Table, key: Sequence[str]) -> ImageCounts:
    """Return three counts of keys in ``images``, a result of ``delta_rules.images_of_feed``:

    - ``faulty``: keys that had two rows at once
    - ``nulls``: null keys with a row after the changes
    - ``fresh``: keys that must have had no row before, null ones included

    ``key``: the names of the key columns. A key is null if all its columns are. A null key never
    counts as ``faulty``.
    """
    nulls = np.logical_and.reduce([pc.is_null(images[name]).to_numpy() for name in key])
    faulty, fresh = (images[flag].to_numpy() for flag in (FAULTY, FRESH))
    present = pc.is_valid(images[AFTER]).to_numpy()
    return ImageCounts(
        int(np.sum(faulty & ~nulls)), int(np.sum(nulls & present)), int(np.sum(fresh))
    )


def signed_rows(images: pa.Table) -> pa.Table:
    """Return the rows that go and come as a table: the source's columns, then ``_sign``, int32: -1
    for old rows, +1 for new ones.

    ``images``: a result of ``delta_rules.images_of_feed``. All old rows stand before all new ones.
    Keys whose row did not change (``_row_apart`` is false) give no rows.
    """
    changed = images.filter(images[APART])
    sides = []
    for image, sign in ((BEFORE, -1), (AFTER, 1)):
        rows = changed[image].drop_null().combine_chunks()
        names = [field.name for field in rows.type]
        signs = pa.array(np.full(len(rows), sign, dtype=np.int32))
        sides.append(pa.table([*rows.flatten(), signs], names=[*names, SIGN]))
    return pa.concat_tables(sides)


def keys_of(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the distinct values of ``columns`` as columns ``_f0``, ``_f1`` …, with their types, in
    undefined order.

    Values with a null in any column are left out. Floats that Spark takes for equal, such as 0.0
    and -0.0, may both be there.
    """
    keys = numbered_columns(rows, columns).drop_null()
    return keys.group_by(keys.column_names).aggregate([])


def numbered_columns(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the given columns of a table, renamed ``_f0``, ``_f1`` … in this order. All rows stay,
    in order, also those with nulls.
    """
    return rows.select(columns).rename_columns([foreign_name(i) for i in range(len(columns))])


def values_gained_or_lost(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the values of ``columns`` that gain or lose their row, as ``_f0``, ``_f1`` … and
    ``_sign``, in undefined order.

    ``rows``: rows that go (``_sign`` -1) and come (+1). A value has at most one row before the
    change and one after it. ``_sign`` of the result is -1 for a value that gains its row, +1 for
    one that loses it. Values with nulls, or with a row before and after, are left out. No column
    may be a float.
    """
    keys = numbered_columns(rows, columns)
    names = keys.column_names
    signs = keys.append_column(SIGN, rows[SIGN]).drop_null().group_by(names)
    ends = signs.aggregate([(SIGN, "min"), (SIGN, "max")])
    moved = ends.filter(pc.equal(ends[f"{SIGN}_min"], ends[f"{SIGN}_max"]))
    return moved.select(names).append_column(SIGN, pc.negate(moved[f"{SIGN}_min"]))


def ranges_of(keys: FewRows) -> tuple[Range | None, ...]:
    """Return the smallest and the largest value of each column of ``keys``, both inclusive, in
    order.

    None stands for a column that is empty, has nulls, or is of a type without a usable range
    (``has_range``).
    """

    def range_of(name: str) -> Range | None:
        """Return the smallest and the largest value of the column ``name``; None if it is empty,
        has nulls or no usable range.
        """
        column = keys.table[name]
        if len(column) == 0 or column.null_count or not has_range(keys.schema[name].dataType):
            return None
        ends = pc.min_max(column)
        return ends["min"].as_py(), ends["max"].as_py()

    return tuple(map(range_of, keys.schema.names))
