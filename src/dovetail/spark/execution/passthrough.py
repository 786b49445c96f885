"""Rows that pass a stage on their way to another one.

Beside the stage's flat rows they are in a column of their own. It holds a row of ``PACKED`` for a
passing row, and null in the stage's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from dovetail.base.columns import PASSING
from dovetail.engine.pack import PACKED
from dovetail.spark.execution.emission import PACKED_COLUMNS
from dovetail.spark.task import BatchFunction

_STRUCT = pa.struct([*PACKED])


def with_passing_column(columns: StructType) -> StructType:
    """Return a stage's ``columns``, all nullable, then the struct column ``_passing``: a row of
    ``PACKED`` for another stage, null in the stage's own rows.
    """
    fields = [StructField(field.name, field.dataType) for field in columns]
    return StructType([*fields, StructField(PASSING, PACKED_COLUMNS)])


def let_rows_pass(
    function: BatchFunction, stage_number: int, schema: pa.Schema | None
) -> BatchFunction:
    """Return a function that applies ``function`` to the rows of ``PACKED`` whose ``reader`` is
    ``stage_number``, and lets all others pass. ``stage_number``: the stage's index, from 0, among
    stages and relays; results have larger ints as readers.

    ``function``: from batches of ``PACKED`` to batches of ``schema``. With a ``schema``, the rows
    that pass come out in one more column, ``_passing``, the last, beside nulls. If ``schema`` is
    None, they come out as they are, among the rows of ``function``.
    """

    def map_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch of ``function``, followed by the rows that have passed so far. Without
        batches of ``function``, yield the passing rows alone.
        """
        others: list[pa.RecordBatch] = []

        def stage_rows() -> Iterator[pa.RecordBatch]:
            """Yield the rows of each batch for the stage, perhaps none. Append the rows for other
            stages to ``others``.
            """
            for batch in batches:
                mine = pc.equal(batch.column("reader"), stage_number)
                others.append(batch.filter(pc.invert(mine)).cast(PACKED))
                yield batch.filter(mine)

        for output_batch in function(stage_rows()):
            yield (
                output_batch
                if schema is None
                else _with_passing_rows(
                    [*output_batch.columns, pa.nulls(output_batch.num_rows, _STRUCT)], schema
                )
            )
            yield from _take_passing(others, schema)
        yield from _take_passing(others, schema)

    return map_batches


def pop_passing(batch: pa.RecordBatch, passing_index: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return two batches: the rows with a null in the struct column with the index
    ``passing_index``, and the structs of that column in all other rows. The first batch has all
    columns, the second one for each field of the structs. Both keep their order and may be empty.
    """
    beside = batch.column(passing_index)
    return batch.filter(beside.is_null()), pa.RecordBatch.from_struct_array(beside.drop_null())


def _take_passing(
    others: list[pa.RecordBatch], schema: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield the passing rows in ``others``, in order, then clear that list. With a ``schema``, they
    are structs in one more column, ``_passing``, beside nulls in the columns of ``schema``. If it
    is None, each batch is yielded unchanged, even an empty one.
    """
    for rows in others:
        if schema is None:
            yield rows
        elif rows.num_rows:
            none = [pa.nulls(rows.num_rows, field.type) for field in schema]
            yield _with_passing_rows([*none, rows.to_struct_array().cast(_STRUCT)], schema)
    others.clear()


def _with_passing_rows(columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a stage's columns and a last column ``_passing`` with the passing rows.

    ``columns``: those of ``schema``, in its order, and then the column of passing rows, all of one
    length. ``schema``: without that column; only its names count.
    """
    return pa.record_batch(columns, names=[*schema.names, PASSING])
