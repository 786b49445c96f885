"""Which code runs an operator."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.physical.operators import (
    Final,
    ForeignKey,
    Gather,
    Histories,
    InOrder,
    Interval,
    Lookup,
    Regroup,
    Subscribe,
    TableTree,
)
from dovetail.runtime import (
    final,
    foreign_key,
    gather,
    histories,
    interval,
    lookup,
    merge,
    regroup,
    sessions,
    sliding,
    subscribe,
    tables,
)
from dovetail.runtime.job import Done, Job


def _gather(job: Job, law: Gather) -> Done:
    kind = None if law.windows is None else law.windows.kind
    if kind == "session":
        return sessions.gather(job, law)
    if kind == "sliding":
        return sliding.gather(job, law)
    return gather.gather(job, law)


_RUN: dict[type, Callable[..., Done]] = {
    TableTree: tables.join,
    Lookup: lookup.join,
    Interval: interval.join,
    Histories: histories.join,
    Subscribe: subscribe.run,
    ForeignKey: foreign_key.join,
    InOrder: merge.run,
    Regroup: regroup.run,
    Gather: _gather,
    Final: final.tell,
}


def operate(job: Job) -> Done:
    """Run a job's operator on what one bucket has."""
    done = _RUN[type(job.operator.law)](job, job.operator.law)
    assert done.stores.keys() <= set(job.operator.stores), "a store that is not declared"
    return done
