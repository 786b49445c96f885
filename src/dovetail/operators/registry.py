"""Which code runs an operator."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.operators import (
    aggregate,
    final,
    foreign_key_join,
    history_join,
    in_order,
    retract,
    sessions,
    sliding,
    stream_join,
    stream_table_join,
    subscribe,
    table_join,
)
from dovetail.operators.job import Done, Job
from dovetail.physical import operators as ops


def _aggregate(job: Job, law: ops.Aggregation) -> Done:
    kind = None if law.windows is None else law.windows.kind
    if kind == "session":
        return sessions.run(job, law)
    return sliding.run(job, law) if kind == "sliding" else aggregate.run(job, law)


_RUN: dict[type[ops.Law], Callable[..., Done]] = {
    ops.TableJoin: table_join.run,
    ops.StreamTableJoin: stream_table_join.run,
    ops.StreamJoin: stream_join.run,
    ops.HistoryJoin: history_join.run,
    ops.Subscribe: subscribe.run,
    ops.ForeignKeyJoin: foreign_key_join.run,
    ops.InOrder: in_order.run,
    ops.Retract: retract.run,
    ops.Aggregation: _aggregate,
    ops.Final: final.run,
}


def operate(job: Job) -> Done:
    """Run a job's operator on what one bucket has."""
    done = _RUN[type(job.operator.law)](job, job.operator.law)
    assert done.stores.keys() <= set(job.operator.stores), "a store that is not declared"
    return done
