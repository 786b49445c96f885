"""Which code runs an operator, and how many stores it has."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.kernels.table_join import preserved
from dovetail.plan.spec import (
    Final,
    ForeignKey,
    Gather,
    Histories,
    Interval,
    Lookup,
    Operator,
    Regroup,
    StageSpec,
    Steps,
    Subscribe,
    TableTree,
)
from dovetail.runtime import (
    final,
    foreign_key,
    gather,
    histories,
    interval,
    interval_side,
    lookup,
    regroup,
    sessions,
    sliding,
    subscribe,
    tables,
)
from dovetail.runtime.job import Done, Job
from dovetail.runtime.parts import listing


def _gather(job: Job, operator: Gather) -> Done:
    kind = None if operator.windows is None else operator.windows.kind
    if kind == "session":
        return sessions.gather(job, operator)
    if kind == "sliding":
        return sliding.gather(job, operator)
    return gather.gather(job, operator)


_RUN: dict[type, Callable[..., Done]] = {
    TableTree: tables.join,
    Lookup: lookup.join,
    Interval: interval.join,
    Histories: histories.join,
    Subscribe: subscribe.run,
    ForeignKey: foreign_key.join,
    Regroup: regroup.run,
    Gather: _gather,
    Final: final.tell,
}


def operate(job: Job) -> Done:
    """Run a job's operator, one that has no steps."""
    return _RUN[type(job.spec.operator)](job, job.spec.operator)


def _slides(operator: Operator) -> bool:
    """Whether it stores records beside accumulators."""
    return (
        isinstance(operator, Gather)
        and operator.windows is not None
        and operator.windows.kind == "sliding"
    )


def store_count(spec: StageSpec) -> int:
    """How many stores a bucket of the stage has."""
    operator = spec.operator
    if isinstance(operator, Steps):
        return sum(store_count(step.spec) for step in operator.steps)
    if isinstance(operator, Interval):
        return interval_side.store_count(len(spec.sources))
    if isinstance(operator, Final) or _slides(operator):
        return 2
    if isinstance(operator, Gather):
        return 1 + 2 * len(listing(operator))
    counted = isinstance(operator, ForeignKey) and preserved(operator.how)[1]
    return len(spec.sources) + counted
