"""Bounded Arrow batches between Spark and Python, by their counts of rows alone.

Spark can bound a batch by its bytes, too. Then it adds up the buffers of all columns anew at each
row, which takes longer than all else that it does for the row. So queries switch that bound off,
and a batch has at most ``ROWS_MAX`` rows. A row of more than ``UNIT_BYTES`` is followed by *padding
rows* without content, one for each further ``UNIT_BYTES``. They are dropped in Python. So a batch
takes at most their product, 64 MiB, and the bytes of one row.

| row | bytes | rows that Spark sends |
|---|---|---|
| 0 | 300 | row 0 |
| 1 | 200,000 | row 1, then 3 padding rows |
| 2 | 500 | row 2 |

Packed rows need no padding: those of more than ``UNIT_BYTES`` travel in parts (``emission``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from dovetail.base.columns import quoted

ROWS_MAX: Final = 1000
"""The most rows of an Arrow batch. Larger batches are not faster, much smaller ones are slower."""
UNIT_BYTES: Final = 64 << 10
"""The bytes of a row for which it counts once among ``ROWS_MAX``."""
BYTES_LIMIT: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Spark's setting of the most bytes of an Arrow batch."""
ARROW_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_MAX),
    BYTES_LIMIT: str(2**31 - 1),  # Spark's value for no bound
}
"""The settings of a query whose rows have padding."""

SHORT: Final = {"dovetail.short": True}
"""The metadata of a column of texts that are far shorter than ``UNIT_BYTES``, such as paths. They
do not count as bytes of a row. Without other texts, rows need no padding.
"""

_PADDING: Final = "_padding"
_ELEMENT_BYTES: Final = 8


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return ``frame.mapInArrow(function, schema)``, where large rows of ``frame`` are followed by
    padding rows. ``function`` does not see them.

    The columns of ``frame`` need names without dots and backticks. None may be ``_padding``.
    """
    sizes = {
        field.name: size
        for field in frame.schema
        if not SHORT.items() <= field.metadata.items()
        and (size := _size_sql(quoted(field.name), field.dataType)) is not None
    }
    if not sizes:
        return frame.mapInArrow(function, schema)
    # In one text: each call of the JVM that makes a column takes as long as parsing it.
    size = " + ".join(sizes.values())
    row, more = "array(cast(null as boolean))", f"cast(({size}) / {UNIT_BYTES} as int)"
    units = f"if({size} < {UNIT_BYTES}, {row}, concat({row}, array_repeat(true, {more})))"
    # The outer form, since Spark puts a filter in front of the other, which asks for units twice.
    counted = frame.selectExpr("*", f"explode_outer({units}) as {_PADDING}")
    columns = [
        f"if({_PADDING} is null, {quoted(name)}, null) as {quoted(name)}"
        if name in sizes
        else quoted(name)
        for name in frame.columns
    ]

    def map_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what ``function`` yields for ``batches`` without padding."""
        return function(_without_padding(batches))

    return counted.selectExpr(*columns, _PADDING).mapInArrow(map_rows, schema)


def _without_padding(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``batches`` that have a null in the last column, without that column.
    Batches without such rows are left out.
    """
    for batch in batches:
        padding = batch.column(batch.num_columns - 1)
        rows = batch.select(range(batch.num_columns - 1))
        if padding.null_count < len(padding):
            rows = rows.filter(padding.is_null())
        if rows.num_rows:
            yield rows


def _size_sql(value: str, type_: DataType) -> str | None:
    """Return the bytes of a value of varying size as SQL of an int, 0 for null: those of its texts
    and binaries, and eight for each other element of an array or map. Return None for a type whose
    values have one size. ``value``: the SQL of the value, of the type ``type_``.
    """
    match type_:
        case StringType() | BinaryType() | VariantType():
            text = f"cast({value} as string)" if isinstance(type_, VariantType) else value
            return f"coalesce(octet_length({text}), 0)"
        case StructType():
            parts = (_size_sql(f"{value}.{quoted(f.name)}", f.dataType) for f in type_)
            varying = [part for part in parts if part is not None]
            return " + ".join(varying) or None
        case ArrayType():
            of_element = _size_sql("element", type_.elementType)
            if of_element is None:
                return f"coalesce(size({value}) * {_ELEMENT_BYTES}, 0)"
            # The innermost of nested functions takes the names.
            added = f"(total, element) -> total + {of_element}"
            return f"coalesce(aggregate({value}, 0, {added}), 0)"
        case MapType():
            keys = _size_sql(f"map_keys({value})", ArrayType(type_.keyType))
            values = _size_sql(f"map_values({value})", ArrayType(type_.valueType))
            return f"{keys} + {values}"
        case _:
            return None
