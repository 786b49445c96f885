"""The dispatch from a law to the function that runs its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.operators import deduplicate, expire, explode, fill, to_changes, transact, union
from dovetail.operators.groups import aggregate, closed_windows, retract, session_windows, sliding
from dovetail.operators.histories import with_times_in_order
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.operators.joins import (
    foreign_key_join,
    foreign_key_order,
    history_join,
    stream_join,
    stream_table_join,
    subscribe,
    table_join,
)
from dovetail.operators.stars import dimensions as star_dimensions
from dovetail.operators.stars import join as star_join
from dovetail.operators.stars import subscribe as star_subscribe
from dovetail.physical.specs.by_key import (
    DeduplicateLaw,
    ExpireLaw,
    ExplodeLaw,
    FillLaw,
    HistoryJoinLaw,
    InOrderLaw,
    StreamJoinLaw,
    StreamTableJoinLaw,
    TableJoinLaw,
    ToChangesLaw,
    TransactLaw,
    UnionLaw,
)
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw, SubscribeLaw
from dovetail.physical.specs.groups import AggregationLaw, FinalLaw, RetractLaw
from dovetail.physical.specs.law import Law
from dovetail.physical.specs.star import StarJoinLaw, StarLookupLaw, StarSubscribeLaw


def _run_aggregation(job: Job, law: AggregationLaw) -> OperatorOutcome:
    """Run an aggregation by the operator for its kind of windows, and return the outcome. There is
    one for sessions, one for sliding windows, and one for fixed windows or none.
    """
    kind = None if law.windows is None else law.windows.kind
    if kind == "session":
        return session_windows.run(job, law)
    return sliding.run(job, law) if kind == "sliding" else aggregate.run(job, law)


OPERATORS: Final[Mapping[type[Law], Callable[[Job, Any], OperatorOutcome]]] = {
    AggregationLaw: _run_aggregation,
    DeduplicateLaw: deduplicate.run,
    ExpireLaw: expire.run,
    ExplodeLaw: explode.run,
    FillLaw: fill.run,
    FinalLaw: closed_windows.run,
    ForeignKeyJoinLaw: foreign_key_join.run,
    HistoryJoinLaw: history_join.run,
    InOrderLaw: foreign_key_order.run,
    RetractLaw: retract.run,
    StarJoinLaw: star_join.run,
    StarLookupLaw: star_dimensions.run,
    StarSubscribeLaw: star_subscribe.run,
    StreamJoinLaw: stream_join.run,
    StreamTableJoinLaw: stream_table_join.run,
    SubscribeLaw: subscribe.run,
    TableJoinLaw: table_join.run,
    ToChangesLaw: to_changes.run,
    TransactLaw: transact.run,
    UnionLaw: union.run,
}
"""The function for each law that runs on one bucket."""


def run_job(job: Job) -> OperatorOutcome:
    """Run a job's operator on the rows of one bucket, and return its outcome. The class of the
    job's law decides which function runs; a class that is not in ``OPERATORS`` raises ``KeyError``.

    Rows of sources whose histories never go back in time (``in_order``) first get the times at
    which they take effect. A batch without rows may still emit rows that have become due, as when
    they expire or their window closes.

    The changes are ``OperatorOutcome.output``, then ``OperatorOutcome.chunks``, which are computed
    as they are read. ``OperatorOutcome.stores`` names each store that goes on, changed or not;
    others are gone. New segments are written to ``job.blobs``, and segments that are merged or
    expired are deleted there.

    Raises ``DataError`` for a row that the operator cannot take, perhaps only as ``chunks`` are
    read.
    """
    law = job.operator.law
    if any(source.meaning.in_order for source in job.sources):
        job = with_times_in_order(job)
    done = OPERATORS[type(law)](job, law)
    assert done.stores.keys() <= job.operator.stores.keys(), "a store that is not declared"
    return done
