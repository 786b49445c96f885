"""Lookups of a stream's records in a store, in the tasks that read them: no shuffle, no state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from dovetail.arrays.casts import cast_rows
from dovetail.arrays.timeline import Mask
from dovetail.base.columns import DELETED
from dovetail.engine.error_context import locate_errors
from dovetail.operators.joins.lookup import COUNTS, Caches, TaskLookups
from dovetail.physical.specs.lookup import StoreLookup
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.types.arrow import arrow_schema, in_timezone
from dovetail.platform.arrow_batches import map_in_arrow
from dovetail.spark import task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CACHES: Caches = {}


def lookup_results(
    frame: DataFrame, view: Lookup, law: StoreLookup, beside: Sequence[str], metric: str | None
) -> DataFrame:
    """Return the results of the lookup ``view``: its key and value columns, then the carried
    columns. A record has one row per answer. Without an answer, as with a null in a column ``on``,
    it has one with nulls if ``how="left"``, none if ``"inner"``. A deleted record has none.

    ``frame``: the columns ``law.needed`` of records, then ``_deleted`` and other carried columns.
    ``law``: the store, the columns ``on`` of records and ``by`` of the store that must be equal,
    and the cache. Rows with a value in a column ``beside`` are no records. They stay, with nulls
    for the store's values.

    ``metric``: the name under which counts of keys (``hits``, ``misses``, ``unfit``) and of
    ``dropped`` records are observed; None observes none. The rows that carry counts are removed
    again. In a task, an error that is not the library's becomes a ``BatchError``. A unique index
    that gives a key two rows is a ``DataError``. Answers are cached in the worker process.
    """
    keys, carried = view.key.names, frame.columns[len(law.needed) :]
    columns = StructType(
        [
            *(frame.schema[name] for name in keys),
            *view.values,
            *(frame.schema[name] for name in carried),
            *(StructField(name, LongType()) for name in COUNTS),
        ]
    )
    names = [f"_c{column_index}" for column_index in range(len(columns) - len(COUNTS))]
    plain = [*names, *(f"_{name}" for name in COUNTS)]
    plain_schema = StructType(
        [StructField(n, f.dataType, True) for n, f in zip(plain, columns, strict=True)]
    )
    timezone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))
    value_types = in_timezone(arrow_schema(view.values), timezone).types
    frame_columns = frame.columns
    blank = in_timezone(arrow_schema(plain_schema), timezone)

    @task.freezing_imports
    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each answer to a record of a batch, then its rows that are no record. At
        the end of the task, yield one row with the counts.
        """
        answering = TaskLookups(law, _CACHES, _now_us)
        with locate_errors(law.name, lambda _: f"{law.stream}, input partition {task.partition()}"):
            for batch in batches:
                rows = pa.Table.from_batches([batch]).rename_columns(frame_columns)
                there = _has_no_record(rows, beside)
                live = ~there & ~rows.column(DELETED).to_numpy(zero_copy_only=False).astype(bool)
                for records, values in answering.join_records(
                    rows.filter(pa.array(~there)), live[~there]
                ):
                    parts = [*(records.column(name) for name in keys)]
                    parts += [v.cast(type_) for v, type_ in zip(values, value_types, strict=True)]
                    parts += [records.column(name) for name in carried]
                    yield from _with_counts(parts, blank)
                if there.any():
                    others = rows.filter(pa.array(there))
                    parts = [*(others.column(name) for name in keys)]
                    parts += [pa.nulls(len(others), type_) for type_ in value_types]
                    parts += [others.column(name) for name in carried]
                    yield from _with_counts(parts, blank)
        counts = [pa.array([count], pa.int64()) for count in answering.counts]
        nulls = [pa.nulls(1, type_) for type_ in blank.types[: len(names)]]
        yield pa.RecordBatch.from_arrays([*nulls, *counts], schema=blank)

    # Plain names, because mapInArrow takes the dots of a user's names for nesting.
    plain_frame = frame.toDF(*(f"_c{n}" for n in range(len(frame_columns))))
    out = map_in_arrow(plain_frame, look_up, plain_schema)
    if metric is not None:
        sums = (F.coalesce(F.sum(f"_{name}"), F.lit(0)).alias(name) for name in COUNTS)
        out = out.observe(metric, *sums)
    return out.where(F.col(plain[-1]).isNull()).select(
        *(F.col(name).alias(field.name) for name, field in zip(names, columns, strict=False))
    )


def _has_no_record(rows: pa.Table, beside: Sequence[str]) -> Mask:
    """Return bool[rows]: True for a row that has something else in place of a record, which is a
    value in one of the columns ``beside``. Without such columns, all are False.
    """
    masks = [rows.column(name).is_valid().to_numpy() for name in beside]
    return reduce(np.logical_or, masks, np.zeros(len(rows), np.bool_))


def _with_counts(parts: Sequence[pa.Array], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return an iterator over the columns ``parts`` as batches of ``schema``. Its last columns, the
    counts, are null: only the task's last row has counts.

    ``parts``: all other columns in the order of ``schema``, at least one, of one length. Spark may
    declare their nested fields never null.
    """
    blank = pa.nulls(len(parts[0]), pa.int64())
    columns = [*parts, *(blank for _ in COUNTS)]
    return iter(cast_rows(pa.table(columns, names=schema.names), schema).to_batches())


def _now_us() -> int:
    """Return the wall-clock time in microseconds since 1970."""
    return time.time_ns() // 1000
