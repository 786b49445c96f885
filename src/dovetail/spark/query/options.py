"""The options of a query. ``write_stream`` and ``run`` take the same ones, which are defined here.

``validated`` shows them as arguments of the two calls, with their defaults and descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, TypeAlias, TypedDict, get_type_hints

from dovetail.base.validation import Default, Rule, Text, default_of
from dovetail.errors import PlanError
from dovetail.physical.fragment import Buckets, Emit
from dovetail.plan.types.spans import Span, microseconds
from dovetail.spark.migration.initial_rows import Initial

BUCKETS_DEFAULT: Final = 4
PARTITIONS_DEFAULT: Final = 2
"""The defaults of a new checkpoint, which keeps them. So they do not depend on the machine on which
a query starts first.
"""
CORES_MANY: Final = 4 * PARTITIONS_DEFAULT
"""A query that has the default of partitions warns in a session with so many cores."""

TRIGGER_ALL: Final[Mapping[str, Any]] = {"availableNow": True}
TRIGGER_ONCE: Final[Mapping[str, Any]] = {"once": True}
"""Triggers: all available input, then stop; only the one micro-batch that is planned."""

_TRIGGERS: Final = "{'availableNow': True} or {'processingTime': '10 seconds'}"
_NO_TRIGGERS: Final = {
    "once": "Give {'availableNow': True}, which reads all input in micro-batches and stops",
    "continuous": f"State needs micro-batches. Give {_TRIGGERS}",
    "realTime": f"State needs micro-batches. Give {_TRIGGERS}",
}


class TriggerOptions(TypedDict, total=False):
    """The arguments of Spark's ``DataStreamWriter.trigger`` that a query may have, one of them.

    Parameters
    ----------
    processingTime : str or timedelta
        The time from one micro-batch to the next, such as ``"10 seconds"``.
    availableNow : bool
        True to process all input that there is, and then stop.

    See Also
    --------
    QueryOptions : All options of a query.

    Examples
    --------
    >>> import dovetail as dt
    >>> every_minute: dt.typing.TriggerOptions = {"processingTime": "1 minute"}
    >>> once: dt.typing.TriggerOptions = {"availableNow": True}
    """

    processingTime: str | timedelta
    availableNow: bool


Trigger: TypeAlias = Annotated[TriggerOptions, Rule(f"a mapping such as {_TRIGGERS}")]


class QueryOptions(TypedDict, total=False):
    """The options of ``Table.write_stream`` and ``run``.

    Parameters
    ----------
    trigger : mapping, optional
        The time of micro-batches, as an argument of Spark's ``DataStreamWriter.trigger``:
        ``{"processingTime": "10 seconds"}`` for one every 10 seconds, or
        ``{"availableNow": True}`` to process all input that there is, and then stop. By
        default micro-batches run as fast as data comes.
    emit : {"change", "batch"}, default "change"
        ``"change"`` emits each change. ``"batch"``, for tables, emits the last change of
        each key in a micro-batch, and none if nothing changed.
    buckets : int, optional
        The number of parts of the key space, 1 to 65536. By default 4, or ``partitions`` if
        that is more. 1 is the fastest for small inputs: one task does all, with fewer
        shuffles. The checkpoint fixes it.
    partitions : int, optional
        The number of tasks over which buckets are spread; 2 by default, and at most
        ``buckets``. The checkpoint fixes it until ``repartition``.
    query_name : str, optional
        The name of the query in Spark, as by ``DataStreamWriter.queryName``.
    initial : mapping of str to DataFrame, str, path or StreamingQuery, optional
        The rows with which tables begin, a static frame by each table's name. A frame has
        one row a key, the columns of key and values, and ``_timestamp`` or the columns that
        ``timestamp=`` of the reader reads. A history from ``read_state`` has a row for each
        version, and deletes by ``_change``. Or the checkpoint of a stopped query, whose state
        and sources this query goes on with, as in ``upgrade``. Or a running query of this
        application: its state is built beside it, then it is stopped after a micro-batch, and
        this query takes over. Ignored if ``checkpoint`` has begun.
    emit_initial : bool, default False
        True to write the results of the initial rows to the sinks, as a first micro-batch. A
        running query given as ``initial`` then goes on: the sinks must be others.
        Ignored if ``checkpoint`` has begun.
    close_at_end : bool, default False
        True to end all waiting once all input is read: windows close, and grace periods are
        over. It needs ``trigger={"availableNow": True}``. The query has then ended for good,
        and cannot be started again.
    idle : str or timedelta, optional
        The time without input, by the wall clock, after which stream time goes on with the
        clock: windows close, grace periods end and rows expire. Stream time is the largest
        event time so far. By default it moves only with input. It does not go with
        ``trigger={"availableNow": True}``, nor with a checkpoint that has begun without it.

    See Also
    --------
    Table.write_stream : Start a query with one result and one sink.
    run : Start one query for several results and sinks.

    Examples
    --------
    >>> import dovetail as dt
    >>> options: dt.typing.QueryOptions = {"trigger": {"availableNow": True}, "buckets": 16}
    >>> sorted(options)
    ['buckets', 'trigger']
    """

    trigger: Trigger | None
    emit: Annotated[Emit, Default("change")]
    buckets: Buckets | None
    partitions: Buckets | None
    query_name: Text | None
    initial: Initial | None
    emit_initial: Annotated[bool, Default(False)]
    close_at_end: Annotated[bool, Default(False)]
    idle: Span | None


def with_defaults(options: QueryOptions) -> dict[str, Any]:
    """Return all options of a query by name: those in ``options``, and the defaults of all others.
    An option that is given as None stays None.
    """
    kinds = get_type_hints(QueryOptions, include_extras=True)
    return {name: default_of(kind) for name, kind in kinds.items()} | {**options}


def trigger_arguments(operator: str, trigger: TriggerOptions | None) -> Mapping[str, Any]:
    """Return the arguments of Spark's ``DataStreamWriter.trigger`` for ``trigger``:
    ``{"availableNow": True}``, or ``{"processingTime": "<n> milliseconds"}``. None means as fast as
    data comes, 0 milliseconds. An interval is cut to whole milliseconds.

    ``trigger``: a mapping with one of these two keys; the interval is a text such as ``"10
    seconds"`` or a timedelta, 0 or more. ``operator``: the call, for errors. Raises ``PlanError``
    for another trigger than these two, and for an interval that is no span or below 0.
    """
    given = {"processingTime": "0 s"} if trigger is None else dict(trigger)
    for name, remedy in _NO_TRIGGERS.items():
        if name in given:
            raise PlanError(operator, f"trigger= is {name!r}", remedy)
    if given == TRIGGER_ALL:
        return TRIGGER_ALL
    if [*given] != ["processingTime"] or not isinstance(given["processingTime"], str | timedelta):
        raise PlanError(operator, f"trigger= is {given}", f"Give {_TRIGGERS}, or leave it out")
    interval_us = microseconds(operator, "trigger=", given["processingTime"])
    return {"processingTime": f"{interval_us // 1000} milliseconds"}
