"""The rows of views in the JVM: conditions, columns, lookups and expectations, on frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from dovetail.base.columns import (
    DELETED,
    EVENT_TIME,
    FAILED,
    LEFT_OUT,
    LETTER,
    OPERATOR,
    PASSING,
    PROBLEM,
    TIMESTAMP,
    UNREAD,
    attempt_name,
    position_name,
    quoted,
)
from dovetail.physical.specs.lookup import store_lookup
from dovetail.plan.dead_letters import row_as_json
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Node, Source
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.view_columns import ColumnItem, column_of, item_as_text
from dovetail.plan.views import View
from dovetail.platform.sessions import null_on_failure
from dovetail.spark.execution.lookup import lookup_results
from dovetail.spark.execution.observations import Observations


@dataclass(frozen=True)
class InputRows:
    """The rows of an input: a frame, and the columns of it that have a meaning.

    The frame also has columns that mark what is no row (``non_row_columns``).
    """

    frame: DataFrame
    """The node's key and value columns, and the columns that those below are made of."""
    timestamp: Column
    """The event time, a timestamp."""
    deleted: Column | None
    """True for tombstones (rows that delete their key's row). Null for a row that only a condition
    turns into a tombstone. None if there are no tombstones."""
    positions: list[Column]
    """The columns that order the rows."""
    carried: tuple[str, ...] = ()
    """The names of further columns, which stay as they are."""


def rows_of_view(
    view: View,
    read: InputRows,
    *,
    reports: bool = False,
    observations: Observations | None = None,
) -> InputRows:
    """Return the rows of a view from those of its node, which are in ``read``. An array that is
    exploded gives a row per element, and none if it is null or empty.

    If a row does not meet the view's condition, it is left out of a stream and becomes a tombstone
    of a table. A condition that is null is not met. Columns that mark what is no row (``PASSING``,
    ``UNREAD``, ``FAILED``) stay as they are. Of a tombstone, or a record without a value, only the
    key is computed. Its values are null, but those of another stage's stream stay.

    A row on which an expression fails is left out, unless the view fails the query. Several inputs
    of a plan may read one view, and one of them ``reports``. It counts these rows in
    ``observations``, and they stay with their dead letters in ``FAILED``. For other inputs they
    vanish. If the rows are shared with other views (``LEFT_OUT``), rows that are left out stay,
    with true in that column.
    """
    frame, position_names, beside = _plain_rows(read, view.node.row.names)
    carried = [*read.carried, *beside]
    gone, condition, columns = F.col(DELETED), view.condition, view.columns
    if read.deleted is not None and isinstance(view.base, Source) and _is_rekeyed(view):
        # The tombstones of a source may have values, which the new key must not use.
        values = view.node.values.names
        frame = frame.withColumns({name: F.when(~gone, F.col(quoted(name))) for name in values})
    if view.letters is not None:
        frame, results_by_item, problems = _with_results(frame, view, beside)
        failed = reduce(Column.__or__, (problem.isNotNull() for problem in problems))
        condition = results_by_item.get(0, condition)
        columns = tuple(results_by_item.get(n, item) for n, item in enumerate(columns, start=1))
        if not reports:
            frame = _leave_out(frame, failed)
        else:
            letter = F.when(failed, _dead_letter(view, F.concat_ws("; ", *problems)))
            frame = _count_left_out(
                frame, observations, metric_name(view.name, "failed"), failed, view
            )
            frame = _with_letter(frame, letter)
            beside, carried = (list(dict.fromkeys([*names, FAILED])) for names in (beside, carried))
    if condition is not None:
        met = F.coalesce(F.when(~gone, column_of(condition)), F.lit(False))
        stays = reduce(Column.__or__, non_row_conditions(beside), met)
        if view.stream:
            frame = _leave_out(frame, ~stays)
        else:
            frame = frame.withColumn(DELETED, F.when(met, F.lit(False)).when(gone, F.lit(True)))
    row_columns, keys = [*map(_nullable_column, columns, view.row)], len(view.key)
    row_columns = [
        column if n < keys or view.keeps_of_tombstone(item) else F.when(~gone, column)
        for n, (item, column) in enumerate(zip(columns, row_columns, strict=True))
    ]
    for there in non_row_conditions(beside):
        row_columns[:keys] = [F.when(~there, key) for key in row_columns[:keys]]
    if view.exploded is not None:
        items = row_columns[view.exploded]
        for there in non_row_conditions(beside):
            items = F.when(there, F.array(F.lit(None))).otherwise(items)
        row_columns[view.exploded] = F.explode(items)
    frame = frame.select(
        *(column.alias(name) for column, name in zip(row_columns, view.row.names, strict=True)),
        *map(F.col, (TIMESTAMP, DELETED, *position_names, *carried)),
    )
    never = read.deleted is None and not view.emits_spurious_tombstones and LEFT_OUT not in beside
    deleted = None if never else gone
    positions = [F.col(name) for name in position_names]
    return InputRows(frame, F.col(TIMESTAMP), deleted, positions, read.carried)


def _is_rekeyed(view: View) -> bool:
    """Return True if the key of ``view`` is not made of columns of its node's key alone."""
    former = view.node.key.names
    return any(isinstance(c, Column) or c not in former for c in view.columns[: len(view.key)])


def _leave_out(frame: DataFrame, left_out_rows: Column) -> DataFrame:
    """Return the frame without the rows for which ``left_out_rows``, which is never null, is true.

    If the rows are shared with other views (column ``_left_out``), no row is removed. The rows get
    true in ``_left_out`` and in ``_deleted``, so that nothing is computed for them. In other rows
    both columns stay, ``_left_out`` true or null.
    """
    if LEFT_OUT not in frame.columns:
        return frame.filter(~left_out_rows)
    left_out = F.when(F.col(LEFT_OUT) | left_out_rows, F.lit(True))
    return frame.withColumns({LEFT_OUT: left_out, DELETED: F.col(DELETED) | left_out_rows})


def rows_of_expectation(
    view: Expectation,
    read: InputRows,
    *,
    reports: bool = False,
    observations: Observations | None = None,
) -> InputRows:
    """Return the rows of the expectation ``view`` from those of its node, which are in ``read``.
    Tombstones are never unmet.

    ``on_fail`` says what happens to a row that does not meet the condition. With ``"fail"`` it
    fails the query, with ``"drop"`` it is left out, with ``"warn"`` it stays. With
    ``"dead_letter"`` it is left out or, if this reading of the view ``reports``, stays with its
    dead letter in ``FAILED``. A reading that ``reports`` and does not fail the query counts such
    rows in ``observations``, unless that is None.
    """
    frame, position_names, beside = _plain_rows(read, view.row.names)
    carried = [*read.carried, *beside]
    frame, unmet = unmet_rows(frame, view)
    if view.on_fail == "fail":
        frame = frame.filter(F.when(unmet, _failing_expression(view)).otherwise(F.lit(True)))
    elif reports:
        frame = _count_left_out(frame, observations, view.counter, unmet, view)
    if view.on_fail == "dead_letter" and reports:
        frame = _with_letter(frame, F.when(unmet, _dead_letter(view, F.lit(view.problem))))
        carried = list(dict.fromkeys([*carried, FAILED]))
    elif view.drops:
        frame = _leave_out(frame, unmet)
    names = (F.col(quoted(name)) for name in view.row.names)
    frame = frame.select(*names, *map(F.col, (TIMESTAMP, DELETED, *position_names, *carried)))
    deleted = None if read.deleted is None and LEFT_OUT not in beside else F.col(DELETED)
    positions = [F.col(name) for name in position_names]
    return InputRows(frame, F.col(TIMESTAMP), deleted, positions, read.carried)


def unmet_rows(frame: DataFrame, view: Expectation) -> tuple[DataFrame, Column]:
    """Return the frame, and a boolean condition on its rows: True for those that do not meet the
    expectation. A null is not met. Rows whose ``_deleted`` is true or null are never unmet.

    If the expectation is an expression, the frame gets one more column with its result,
    ``_attempt_0``. It counts as not met where the expression fails.
    """
    met = F.col(quoted(view.expected)) if isinstance(view.expected, str) else view.expected
    there = ~F.coalesce(F.col(DELETED), F.lit(True))
    if isinstance(view.expected, Column):
        name = attempt_name(0)
        attempt = null_on_failure(frame.sparkSession, [view.expected])
        frame, met = frame.withColumn(name, F.when(there, attempt)), F.col(f"{name}._0")
    return frame, there & ~F.coalesce(met, F.lit(False))


def _failing_expression(view: Expectation) -> Column:
    """Return a boolean expression that raises an error where it is computed, and so fails the
    query. The error names the expectation's problem and remedy, with the row as JSON.
    """
    problem = F.lit(f"expect of {view.name}: {view.problem} by the row ")
    text = F.concat(problem, as_json(view.node), F.lit(f". {view.remedy}."))
    return F.raise_error(text).cast("boolean")


def _count_left_out(
    frame: DataFrame, observations: Observations | None, name: str, left_out: Column, view: View
) -> DataFrame:
    """Return the frame with an observed metric: ``records``, the count of the rows for which the
    condition ``left_out`` is true, and ``example``, the smallest of their JSON texts.

    ``name``: the metric's, which gets a suffix if it is taken. ``view``: the example has the
    columns of its node. Without ``observations``, return the frame itself.
    """
    if observations is None:
        return frame
    count, example = (F.when(left_out, c) for c in (F.lit(1), as_json(view.node)))
    return observations.observe_counter(frame, name, count, example)


def _with_letter(frame: DataFrame, letter: Column) -> DataFrame:
    """Return the frame with the dead letter ``letter`` (null for none) in ``FAILED``. A row that
    has one there already keeps that.
    """
    former = [F.col(FAILED)] if FAILED in frame.columns else []
    return frame.withColumn(FAILED, F.coalesce(*former, letter))


def rows_of_lookup(
    view: Lookup, read: InputRows, *, observations: Observations | None = None
) -> InputRows:
    """Return the stream's records in ``read``, each beside every row that the view's store has for
    it. A record for which it has none is kept with nulls or left out, as the view's ``how`` says.
    So is a record with a null in its key for the store. A record without a value is left out.

    ``observations``: takes the counts of requests, as metric ``<label or name>.lookups``; None
    counts none.
    """
    law = store_lookup(view)
    frame, position_names, beside = _plain_rows(read, law.needed)
    counter = metric_name(view.label or view.name, "lookups")
    name = None if observations is None else observations.unique_name(counter)
    answers = lookup_results(frame, view, law, beside, name)
    positions = [F.col(position) for position in position_names]
    deleted = None if read.deleted is None else F.col(DELETED)
    return InputRows(answers, F.col(TIMESTAMP), deleted, positions, read.carried)


def _plain_rows(read: InputRows, names: Sequence[str]) -> tuple[DataFrame, list[str], list[str]]:
    """Return three values. The first is a frame of the rows in ``read``: the columns ``names``,
    ``_timestamp`` (a timestamp), ``_deleted``, the positions, what is carried along, and the
    ``non_row_columns``. The second has the names of the positions (``_position_0`` and so on), the
    third those of the ``non_row_columns``.

    These are ``PASSING``, ``UNREAD``, ``FAILED`` and ``LEFT_OUT``, as far as ``read`` has them. A
    value in one of them stands in place of a row, and counts as deleted. In true rows ``_deleted``
    may be null, as ``InputRows.deleted`` may.
    """
    position_names = [*map(position_name, range(len(read.positions)))]
    beside = non_row_columns(read.frame)
    gone = F.lit(False) if read.deleted is None else read.deleted
    positions = [
        column.alias(name) for column, name in zip(read.positions, position_names, strict=True)
    ]
    frame = read.frame.select(
        *(F.col(quoted(name)) for name in names),
        read.timestamp.alias(TIMESTAMP),
        reduce(Column.__or__, non_row_conditions(beside), gone).alias(DELETED),
        *positions,
        *map(F.col, (*read.carried, *beside)),
    )
    return frame, position_names, beside


def non_row_columns(frame: DataFrame) -> list[str]:
    """Return the names of the columns in ``frame`` that mark something which is no row:
    ``PASSING``, ``UNREAD``, ``FAILED`` and ``LEFT_OUT``. All of them are null in a true row; one
    that is not null stands for something else.
    """
    return [name for name in (PASSING, UNREAD, FAILED, LEFT_OUT) if name in frame.columns]


def non_row_conditions(beside: Sequence[str]) -> list[Column]:
    """Return a condition for each of the columns ``beside``, in order: it is not null, so something
    else is in place of a row. The list is empty without columns.
    """
    return [F.col(name).isNotNull() for name in beside]


def _with_results(
    frame: DataFrame, view: View, beside: Sequence[str]
) -> tuple[DataFrame, dict[int, Column], list[Column]]:
    """Return three values. The first is the frame with the result of each expression of ``view`` in
    a column of its own, null where it fails. The second has these columns by index: 0 for the
    condition, n for the view's n-th column, counted from 1 over all columns. The third has each
    expression's problem as a text, null where it does not fail.

    A condition or column that only names a column is no expression and has no such result.
    ``beside``: the ``non_row_columns``. Nothing is computed for what is no row, and only keys for
    deleted rows.
    """
    items = (("condition", view.condition), *zip(view.row.names, view.columns, strict=True))
    absent = reduce(Column.__or__, non_row_conditions(beside), F.lit(False))
    attempts: dict[str, Column] = {}
    results_by_item: dict[int, Column] = {}
    problems: list[Column] = []
    for item_index, (label, item) in enumerate(items):
        if isinstance(item, Column):
            name, of_key = attempt_name(item_index), 0 < item_index <= len(view.key)
            there = ~(absent if of_key else F.col(DELETED))
            attempts[name] = F.when(there, null_on_failure(frame.sparkSession, [item]))
            results_by_item[item_index] = F.col(f"{name}._0")
            fails = F.lit(f"{label}= fails: {item_as_text(item).removesuffix(f' AS {label}')}")
            problems.append(F.when(there & F.col(name).isNull(), fails))
    return frame.withColumns(attempts), results_by_item, problems


def _dead_letter(view: View, problem: Column) -> Column:
    """Return the dead letter of a row that a view leaves out: a struct of ``_operator``,
    ``_problem``, ``row`` (the row of the view's node as JSON), and ``_event_time`` in microseconds.
    ``problem``: a text column.
    """
    return F.struct(
        F.lit(view.letters).alias(OPERATOR),
        problem.alias(PROBLEM),
        as_json(view.node).alias(LETTER),
        F.unix_micros(TIMESTAMP).alias(EVENT_TIME),
    )


def _nullable_column(item: ColumnItem, field: StructField) -> Column:
    """Return a column of ``field``'s type for ``item``, a column of a view. It is the node's column
    of that name, or the expression, cast so that nested values may be null.
    """
    return cast_to_plan_type(item, field.dataType) if isinstance(item, Column) else column_of(item)


def cast_to_plan_type(column: Column, type_: DataType) -> Column:
    """Return a computed column, cast to the plan's type ``type_`` if that is nested, since a plan
    lets nested values be null. Return any other column as it is.
    """
    return column.cast(type_) if isinstance(type_, (ArrayType, MapType, StructType)) else column


def as_json(node: Node) -> Column:
    """Return the key and value columns of ``node``, by name, as one column with a JSON text per
    row. A null field is left out of the text.
    """
    return row_as_json([F.col(quoted(name)) for name in node.row.names])
