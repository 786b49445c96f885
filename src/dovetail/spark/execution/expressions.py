"""Evaluates the Spark expressions of a topology that runs in this process, by a session."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dovetail.base.columns import (
    CHANGE,
    DELETE,
    DELETED,
    EVENT_TIME,
    FAILED,
    ROW,
    TIMESTAMP,
    foreign_key_name,
    quoted,
)
from dovetail.engine.pack import DEAD_LETTERS
from dovetail.physical.inputs import Input
from dovetail.physical.output import output_of
from dovetail.physical.stage import Stage
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.views import View
from dovetail.spark.execution import projection
from dovetail.spark.execution.view_rows import InputRows, as_json, rows_of_view, unmet_rows
from dovetail.spark.execution.wire import with_foreign_key


@dataclass(frozen=True)
class Evaluator:
    """Sends rows to Spark and gets them back in order, through the projections that queries use.

    An expression that fails raises Spark's error, unless its failures are dead letters or counted.
    """

    session: SparkSession

    def foreign_key(self, input_: Input, rows: pa.Table) -> list[pa.Array]:
        """Return the parts of the foreign key of an input's rows, in order, then a column of
        failures. All are arrays of the rows' length and in their order.

        A failure is the row as JSON, null where the key can be computed. The parts are null there,
        and for deleted rows, which never fail. ``rows``: the input's key and value columns, and
        ``_deleted``.
        """
        fields = [*input_.source.key.fields, *input_.source.values.fields]
        columns = StructType([*fields, StructField(DELETED, BooleanType())])
        items = [item for item, _ in input_.foreign]
        frame = self._frame(rows, columns)
        frame, parts, fails = with_foreign_key(frame, items, F.col(DELETED), foreign_key_name(0))
        failure = F.when(fails, as_json(input_.source))
        named = (column.alias(f"_{n}") for n, column in enumerate([*parts, failure]))
        return [column.combine_chunks() for column in _collect_table(frame.select(*named)).columns]

    def changelog(self, stage: Stage, changes: pa.Table) -> pa.Table:
        """Return a stage's changes under the columns of its node, one row each in the same order,
        with the selections computed by Spark.

        Key and values are followed by ``_position``, then int64 columns that tell reading stages
        which record caused a change (``Fragment.feeds``, perhaps none). The last are
        ``_event_time`` (int64, microseconds) and ``_deleted``. Values of a deleted table row are
        null. ``changes``: columns of ``Fragment.output_schema``.
        """
        frame = self._frame(changes, output_of(stage).columns)
        rows = _collect_table(projection.changelog(frame, stage))
        rows = rows.append_column(EVENT_TIME, rows.column(TIMESTAMP).cast(pa.int64()))
        deleted = pc.equal(rows.column(CHANGE), DELETE)
        return rows.append_column(DELETED, deleted).drop_columns([TIMESTAMP, CHANGE])

    def apply_view(self, view: View, rows: pa.Table) -> tuple[pa.Table, pa.Array, pa.Table]:
        """Return three values: a view's rows with ``_deleted``, the index of each one's input row
        (int64), and the dead letters. An input row may give none or several rows. A deleted row of
        a table gives one, with its key and null values. A row that does not meet the condition
        gives none in a stream. In a table it gives one with null values and a null in ``_deleted``,
        which counts as deleted.

        Dead letters are the rows on which the view fails, with ``_operator``, ``_problem``, ``row``
        (JSON) and ``_event_time`` (microseconds). Without ``view.letters`` the table is empty, and
        a failure raises Spark's error. ``rows``: the columns of the view's node, ``_deleted`` and
        ``_event_time`` in microseconds.
        """
        input_rows = rows.select([*view.node.row.names, DELETED, EVENT_TIME])
        input_rows = input_rows.append_column(ROW, pa.array(np.arange(len(rows))))
        numbers = [StructField(EVENT_TIME, LongType()), StructField(ROW, LongType())]
        columns = StructType([*view.node.row, StructField(DELETED, BooleanType()), *numbers])
        time = F.timestamp_micros(F.col(EVENT_TIME))
        read = InputRows(self._frame(input_rows, columns), time, F.col(DELETED), [F.col(ROW)])
        view_rows = rows_of_view(view, read, reports=view.letters is not None)
        (row,) = view_rows.positions
        names = [*(F.col(quoted(name)) for name in view.row.names), F.col(DELETED), row.alias(ROW)]
        fields = [] if view.letters is None else DEAD_LETTERS.names
        failed = [F.col(FAILED)[field].alias(f"{FAILED}_{field}") for field in fields]
        table, letters = (
            _collect_table(view_rows.frame.select(*names, *failed)),
            DEAD_LETTERS.empty_table(),
        )
        if failed:
            parts = table.select(range(len(names), table.num_columns))
            left_out = parts.column(0).is_valid()
            letters = parts.filter(left_out).rename_columns(letters.column_names)
            table = table.select(range(len(names))).filter(pc.invert(left_out))
        return table.drop_columns([ROW]), table.column(ROW).combine_chunks(), letters

    def unmet_rows_as_text(self, view: Expectation, rows: pa.Table) -> pa.Array:
        """Return for each of ``rows`` its JSON text if it does not meet the expectation ``view``,
        else null: string[rows]. A condition that is null or fails is not met. Rows whose
        ``_deleted`` is true or null are null.

        ``rows``: the columns of the view, ``_deleted`` and ``_event_time`` in microseconds.
        """
        columns = StructType([*view.row, StructField(DELETED, BooleanType())])
        timed = [StructField(EVENT_TIME, LongType())]
        frame = self._frame(rows, StructType([*columns, *timed]))
        frame = frame.withColumn(TIMESTAMP, F.timestamp_micros(F.col(EVENT_TIME)))
        frame, unmet = unmet_rows(frame, view)
        return (
            _collect_table(frame.select(F.when(unmet, as_json(view.node))))
            .column(0)
            .combine_chunks()
        )

    def _frame(self, rows: pa.Table, columns: StructType) -> DataFrame:
        """Return ``rows`` as a Spark frame with ``columns``, all nullable, in that order. Other
        columns of ``rows`` are dropped.
        """
        # A copy, because createDataFrame takes no slices of nested columns.
        whole = rows.select(columns.names).take(pa.array(np.arange(len(rows))))
        return self.session.createDataFrame(whole, columns.toNullable())


def _collect_table(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame as a table, in order, with columns cast to the Arrow types of
    plans. This runs a Spark job.
    """
    return frame.toArrow().cast(arrow_schema(frame.schema))
