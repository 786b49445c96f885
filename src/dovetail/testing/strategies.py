"""Hypothesis strategies: random changelogs of inputs, and histories of several inputs.

This module needs Hypothesis: ``pip install 'dovetail[hypothesis]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.types as pt

from dovetail.api.tables import Stream, Table
from dovetail.api.topology import ATopology
from dovetail.base.validation import Positive, validated
from dovetail.errors import ConfigurationError, PlanError
from dovetail.plan.nodes import Source
from dovetail.plan.types.spans import Span, microseconds
from dovetail.testing.changes import Change
from dovetail.testing.inputs import columns_of, title_of

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    raise ConfigurationError(
        "strategies", "hypothesis is not installed", "Install dovetail[hypothesis]"
    ) from error

__all__ = ["changelogs", "histories"]

History: TypeAlias = list[list[tuple[Table | Stream, list[Change]]]]
"""Micro-batches, each of some inputs with their changes."""

_FIRST, _LAST = datetime(1900, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001
_DAY = timedelta(days=1)


@validated
def changelogs(
    table: ATopology,
    *,
    max_size: Positive = 20,
    keys: Positive = 3,
    span: Span = "1 hour",
    out_of_order: bool = False,
) -> SearchStrategy[list[Change]]:
    """Return a strategy for the changes of an input, in the order of arrival.

    Parameters
    ----------
    table : Table or Stream
        The input, such as ``testing.table`` returns. A stream has upserts only, a table also
        deletes, of keys without a row, too.
    max_size : int, default 20
        The largest number of changes.
    keys : int, default 3
        The largest number of different keys. None of them has a null.
    span : str or timedelta, default "1 hour"
        The span of event time from 1970 on, in which all changes are, its end included.
    out_of_order : bool, default False
        True if event times may go back.

    Returns
    -------
    SearchStrategy of list of Change
        Each list can be given to ``Driver.pipe``, and may be empty. Values are of the types of
        their columns, and null where the column may be. Floats are never NaN.

    Raises
    ------
    PlanError
        If ``table`` is not an input, or has a column of a type without a strategy. Also if
        ``span`` is not a span or is negative.

    See Also
    --------
    histories : Return a strategy for changes of several inputs in micro-batches.
    Driver.pipe : Feed rows and return the changes that they cause.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> from dovetail.testing import strategies
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> @settings(max_examples=10, deadline=None)
    ... @given(strategies.changelogs(orders))
    ... def check_the_last_row_of_a_key_stays(changes):
    ...     driver = testing.Driver(orders)
    ...     driver.pipe(orders, changes)
    ...     last = {change.key["id"]: change.values for change in changes}
    ...     assert driver.table(orders) == {k: v for k, v in last.items() if v is not None}
    >>> check_the_last_row_of_a_key_stays()
    """
    source = table.plan
    if not isinstance(source, Source):
        raise PlanError(
            "changelogs", f"table= is {title_of(table)}, which is no input", "Give an input"
        )
    span_us = microseconds("changelogs", "span=", span)
    fields = {field.name: field for field in columns_of(source)}
    key = _row_strategy({name: _value_strategy(fields[name].type) for name in source.key.names})
    row = _row_strategy({name: _nullable_strategy(fields[name]) for name in source.values.names})
    values = row if source.stream else st.one_of(row, st.none())
    times = st.integers(0, span_us)

    @st.composite
    def draw_changes(draw: Callable[[Any], Any]) -> list[Change]:
        """Return changes of at most ``keys`` keys, in the order of arrival, with ascending times
        unless ``out_of_order``. ``draw``: Hypothesis's function that draws from a strategy.
        """
        pool = draw(st.lists(key, min_size=1, max_size=keys))
        parts = draw(st.lists(st.tuples(st.sampled_from(pool), values, times), max_size=max_size))
        if not out_of_order:
            ordered = sorted(time_us for _, _, time_us in parts)
            parts = [(k, v, t) for (k, v, _), t in zip(parts, ordered, strict=True)]
        return [
            Change(k, v, time_us, "delete" if v is None else "upsert", position)
            for position, (k, v, time_us) in enumerate(parts)
        ]

    return draw_changes()


@validated
def histories(*tables: ATopology, out_of_order: bool = False) -> SearchStrategy[History]:
    """Return a strategy for changes of several inputs, interleaved and cut into micro-batches.

    Parameters
    ----------
    *tables : Table or Stream
        The inputs.
    out_of_order : bool, default False
        True if event times of an input may go back.

    Returns
    -------
    SearchStrategy of list
        A history is a list of micro-batches, and may be empty. A micro-batch is a list of
        pairs of an input and a list of its changes, in the order of arrival. The changes of
        each input are those of ``changelogs`` with its defaults.

    Raises
    ------
    PlanError
        If there are no tables, or as for ``changelogs``.

    See Also
    --------
    changelogs : Return a strategy for the changes of one input.
    Driver.batch : Feed rows of several inputs as one micro-batch.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> from dovetail.testing import strategies
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> schema = {"id": pa.int64(), "paid": pa.int64()}
    >>> payments = testing.table("payments", key="id", schema=schema)
    >>> @settings(max_examples=10, deadline=None)
    ... @given(strategies.histories(orders, payments))
    ... def check_a_left_join_has_all_orders(history):
    ...     joined = orders.join(payments, how="left")
    ...     driver = testing.Driver(joined)
    ...     for batch in history:
    ...         with driver.batch():
    ...             for table, changes in batch:
    ...                 driver.pipe(table, changes)
    ...     assert driver.table(joined).keys() == driver.table(orders).keys()
    >>> check_a_left_join_has_all_orders()
    """
    if not tables:
        raise PlanError("histories", "there are no tables", "Give the inputs of a topology")
    logs = [changelogs(table, out_of_order=out_of_order) for table in tables]

    @st.composite
    def draw_history(draw: Callable[[Any], Any]) -> History:
        """Return the inputs' changes in random pieces, each in a new or in the last micro-batch.
        ``draw``: Hypothesis's function that draws from a strategy.
        """
        waiting = [(table, draw(log)) for table, log in zip(tables, logs, strict=True)]
        history: History = []
        while waiting := [(table, changes) for table, changes in waiting if changes]:
            index = draw(st.integers(0, len(waiting) - 1))
            table, changes = waiting[index]
            size = draw(st.integers(1, len(changes)))
            waiting[index] = table, changes[size:]
            if not history or draw(st.booleans()):
                history.append([])
            history[-1].append((cast("Table | Stream", table), changes[:size]))
        return history

    return draw_history()


def _row_strategy(columns: dict[str, SearchStrategy[Any]]) -> SearchStrategy[dict[str, Any]]:
    """Return a strategy for rows, as dictionaries with these columns in this order. ``columns``: a
    strategy for each column's values, by name.
    """
    return st.tuples(*columns.values()).map(lambda values: dict(zip(columns, values, strict=True)))


def _nullable_strategy(field: pa.Field) -> SearchStrategy[Any]:
    """Return a strategy for the values of a column, with null if the column is nullable. Raises
    ``PlanError`` for a type without a strategy.
    """
    values = _value_strategy(field.type)
    return st.one_of(st.none(), values) if field.nullable else values


def _value_strategy(type_: pa.DataType) -> SearchStrategy[Any]:  # noqa: PLR0911, PLR0912, C901
    """Return a strategy for the values of a type, without null; nulls within nested values may
    occur. Floats are never NaN. Texts and bytes have at most 5 elements, arrays and maps at most 3.
    Dates and timestamps lie between 1900 and 2100, durations within a day to either side. Raises
    ``PlanError`` for a type that has none.
    """
    if pt.is_boolean(type_):
        return st.booleans()
    if pt.is_integer(type_):
        bound = 1 << (type_.bit_width - 1)
        return st.integers(-bound, bound - 1)
    if pt.is_floating(type_):
        return st.floats(width=type_.bit_width, allow_nan=False)
    if pt.is_decimal(type_):
        bound = 10**type_.precision - 1
        digits = Context(prec=type_.precision)
        return st.integers(-bound, bound).map(lambda n: Decimal(n).scaleb(-type_.scale, digits))
    if pt.is_string(type_):
        return st.text(max_size=5)
    if pt.is_binary(type_):
        return st.binary(max_size=5)
    if pt.is_date(type_):
        return st.dates(_FIRST.date(), _LAST.date())
    if pt.is_timestamp(type_):
        zones = st.just(timezone.utc) if type_.tz else st.none()
        return st.datetimes(_FIRST, _LAST, timezones=zones)
    if pt.is_time(type_):
        return st.times()
    if pt.is_duration(type_):
        return st.timedeltas(-_DAY, _DAY)
    if pt.is_map(type_):
        pairs = st.tuples(_value_strategy(type_.key_type), _nullable_strategy(type_.item_field))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: repr(pair[0]))
    if pt.is_struct(type_):
        return _row_strategy({field.name: _nullable_strategy(field) for field in type_})
    if pt.is_list(type_):
        return st.lists(_nullable_strategy(type_.value_field), max_size=3)
    raise PlanError("changelogs", f"a column is of type {type_}", "Draw its rows by hand")
