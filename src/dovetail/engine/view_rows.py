"""The rows of views in this process, without Spark: named columns, conditions, expectations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import DELETED, EVENT_TIME
from dovetail.engine.pack import DEAD_LETTERS
from dovetail.errors import DataError
from dovetail.operators.counts import first_row_as_text
from dovetail.plan.nodes import Source
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.view_columns import array_of
from dovetail.plan.views import View


class Conditions(Protocol):
    """An evaluator of the conditions of expectations that are Spark expressions."""

    def unmet_rows_as_text(self, view: Expectation, rows: pa.Table) -> pa.Array:
        """Return one text per row of ``rows``, in order: the row as JSON if it does not meet the
        expectation ``view``, else null.

        ``rows``: the columns of the view, ``_event_time`` and ``_deleted``. A null condition does
        not meet it, nor does a row on which the expression fails. Rows whose ``_deleted`` is true
        or null meet it. An error of a Python function in the expression is raised.
        """


class CheckedRows(NamedTuple):
    """The rows that an expectation lets through, and those that do not meet it."""

    rows: pa.Table
    """The rows after the expectation, in order."""
    texts: pa.Array
    """A text for each row that does not meet the expectation; empty if all do."""
    letters: pa.Table
    """The dead letters (``DEAD_LETTERS``)."""


def check_expectation(
    rows: pa.Table, view: Expectation, conditions: Conditions | None
) -> CheckedRows:
    """Return the rows after the expectation ``view``, in order, and the rows that do not meet it as
    texts and dead letters.

    ``rows``: columns of the viewed node, ``_event_time`` (microseconds) and ``_deleted``, which is
    null for a row that a condition has left out. ``conditions``: the evaluator, needed if the
    expectation is ``computed``.

    Rows that do not meet it stay unless the expectation drops them. A null condition does not meet
    it; deleted and left-out rows do. Dead letters are made only if ``view.letters`` is set. Raises
    ``DataError`` for the first such row if ``view.on_fail`` is ``"fail"``.
    """
    unmet = _unmet_rows_as_text(rows, view, conditions)
    texts, letters = unmet.drop_null(), DEAD_LETTERS.empty_table()
    if len(texts) and view.on_fail == "fail":
        problem = f"{view.problem} by the row {texts[0]}"
        raise DataError(f"expect of {view.name}", problem, view.remedy)
    if view.letters is not None:
        words = (pa.repeat(pa.scalar(word), len(texts)) for word in (view.letters, view.problem))
        times = rows.column(EVENT_TIME).filter(unmet.is_valid())
        letters = pa.table([*words, texts, times], schema=DEAD_LETTERS)
    return CheckedRows(rows.filter(unmet.is_null()) if view.drops else rows, texts, letters)


def _unmet_rows_as_text(
    rows: pa.Table, view: Expectation, conditions: Conditions | None
) -> pa.Array:
    """Return one text per row of ``rows``, null for a row that meets the expectation ``view``. A
    null condition does not meet it. Deleted rows and rows that a condition has left out do.

    If the expectation is ``computed``, ``conditions`` are needed, and the text is the row as JSON.
    Else each text is the same: the columns of the first row that does not meet the expectation.
    """
    if view.computed:
        assert conditions is not None
        return conditions.unmet_rows_as_text(view, rows)
    met = pc.or_(rows.column(view.expected).fill_null(False), rows.column(DELETED).fill_null(True))
    unmet = pc.invert(met)
    names = view.row.names
    places = [rows.schema.get_field_index(name) for name in names]
    first = first_row_as_text(rows.filter(unmet), places, names) if pc.any(unmet).as_py() else ""
    texts = pc.if_else(unmet, first, pa.scalar(None, pa.string()))
    return texts.combine_chunks()


def apply_plain_view(rows: pa.Table, view: View) -> pa.Table:
    """Return ``rows`` after a view without expressions: the view's columns, then those of ``rows``
    that are not of the viewed node.

    ``rows``: columns of the viewed node, ``_deleted`` and perhaps more. In a stream, a deleted row
    or one that does not meet the condition is dropped; a null condition is not met. In a table, a
    row that does not meet the condition gets null in ``_deleted``; deleted rows stay. A null that
    an earlier condition has set stays in a table, and drops the row of a stream.

    Nothing is computed of a deleted row, and its values are null. Only a stream that another stage
    makes keeps those that are columns by name, such as the bounds of a session that it withdraws.

    If the view explodes a list, each row comes once per element. A row with an empty or null list
    vanishes, a tombstone, too; so only views of streams explode one.
    """
    if view.condition is not None:
        gone = rows.column(DELETED)
        met = pc.and_(rows.column(view.condition), pc.invert(gone)).fill_null(False)
        if view.stream:
            rows = rows.filter(met)
        else:
            left_out = pc.if_else(gone.fill_null(False), True, pa.scalar(None, pa.bool_()))
            deleted_index = rows.schema.get_field_index(DELETED)
            rows = rows.set_column(deleted_index, DELETED, pc.if_else(met, False, left_out))
    live = pc.invert(rows.column(DELETED)).fill_null(False)
    if isinstance(view.base, Source):
        rows = _with_nulls(rows, view.node.values.names, live)
    columns = [array_of(rows, item) for item in view.columns]
    values = zip(view.values.names, view.columns[len(view.key) :], strict=True)
    nulled = [name for name, item in values if not view.keeps_of_tombstone(item)]
    view_rows = _with_nulls(pa.table(columns, names=view.row.names), nulled, live)
    if view.exploded is not None:
        lists = view_rows.column(view.exploded).combine_chunks()
        which = pc.list_parent_indices(lists)
        rows, view_rows = rows.take(which), view_rows.take(which)
        name = view.row.names[view.exploded]
        view_rows = view_rows.set_column(view.exploded, name, pc.list_flatten(lists))
    return append_columns(view_rows, rows.drop_columns(view.node.row.names))


def _with_nulls(rows: pa.Table, names: Sequence[str], live: pa.ChunkedArray) -> pa.Table:
    """Return ``rows`` with nulls in the columns ``names`` where ``live``, which has a bool for each
    row, is False.
    """
    if pc.all(live).as_py():
        return rows
    for name in names:
        column = rows.column(name)
        column = pc.if_else(live, column, pa.scalar(None, column.type))
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def append_columns(rows: pa.Table, added: pa.Table) -> pa.Table:
    """Return a table with the columns of ``rows``, then those of ``added``. Both must have equally
    many rows.
    """
    for name in added.schema.names:
        rows = rows.append_column(name, added.column(name))
    return rows
