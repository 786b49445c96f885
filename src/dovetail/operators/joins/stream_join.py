"""Two streams joined within a window, on one bucket (``StreamJoinLaw``).

| store               | holds                                                                |
|---------------------|----------------------------------------------------------------------|
| history, per stream | its rows, as long as they may still find a match                     |
| queue, per side     | unmatched rows of a preserved side, until their window closes        |
| marks, per side     | ids of rows that were joined in a later batch than their own         |

A stream that is joined with itself has one history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.grouping import any_null, by_group_and_time, rank_of_keys
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline, timeline
from dovetail.base.columns import EVENT_TIME, HASH
from dovetail.laws.joins.stream_join import NEVER, Arrivals, Pairs, Window, stream_times
from dovetail.operators.counts import Counts
from dovetail.operators.job import (
    Cause,
    Job,
    OperatorOutcome,
    output_table,
    subtract_span,
    take_rows,
)
from dovetail.operators.joins.stream_join_side import Meeting, Side, SideStores
from dovetail.physical.specs.by_key import StreamJoinLaw
from dovetail.plan.metrics import metric_name


def run(job: Job, law: StreamJoinLaw) -> OperatorOutcome:
    """Emit each record's pairs and the unmatched rows that are due, in the order of arrival. Store
    rows, rows that wait until their window closes, and marks of stored rows that were joined.

    Records without a value are ignored. A record with a null in its key joins nothing; if its side
    is preserved, it is emitted alone at once. Rows may be due in a batch without rows of this
    bucket, as stream time goes on. Late records and pairs are counted. Return the changes as
    ``output`` and, if more than 2**18 pairs are possible, ``chunks``, with the stores and the
    counts.
    """
    window = law.window
    stores = SideStores.open_stores(job, law)
    events = timeline([job.source_rows(source) for source in range(len(job.sources))])
    valued = ~events.deleted
    null = any_null(events.keys, events.groups)[events.group]
    roles = len(law.sides) // len(job.sources)
    arrivals = [_side_arrivals(events, valued & ~null, law, side, roles) for side in (0, 1)]
    seen_us = np.repeat(job.highest_clock_at_events(events)[events.by_arrival()], roles)
    stream_us = stream_times(seen_us, max(job.initial_us), max(job.final_us))
    sides = [
        Side.begin_batch(job, law, stores, side, events, *arrivals[side], window, stream_us)
        for side in (0, 1)
    ]
    for side in (0, 1):
        sides[side].meet_stored_rows(events, sides[1 - side])
    meeting = Meeting(*sides)
    results = _PairResults()
    for this_side in sides:
        results.add_null_keys(this_side, events, null & valued, roles)
        if this_side.waits:
            results.add_closed_rows(this_side, job)
        else:
            results.add_unmatched_records(this_side, np.flatnonzero(this_side.unmatched_records))
        if law.unmatched == "retract":
            results.add_withdrawn_rows(this_side)
    _store_rows(job, law, stores, events, valued & ~null, sides, window, stream_us)
    tables = results.result_tables(job, meeting, sides, events, roles)
    first = next(tables, None)
    count = results.count + meeting.made
    return OperatorOutcome(
        first,
        {name: store.runs for name, store in stores.declared_stores(job).items()},
        job.manifest.rows + len(events.row),
        chunks=tables,
        later=count - (0 if first is None else len(first)),
        counts=_count_records(job, law, events, [event for event, _ in arrivals], meeting, sides),
    )


def _count_records(
    job: Job,
    law: StreamJoinLaw,
    events: Timeline,
    event: Sequence[Ints],
    meeting: Meeting,
    sides: Sequence[Side],
) -> Counts:
    """Return the batch's counts: late records, pairs in ``meeting`` that were too late, and matched
    and unmatched records by source.

    A record of a source without a preserved side is late if no side joins it and its time is past
    the retention. Pairs count only if the law has a metric for them (``too_late_metric``).
    ``sides``: left and right. ``event``: per side, int64[records], the index of each of its records
    among ``events``.
    """
    counts = Counts()
    if (name := law.too_late_metric(job.sources)) is not None:
        counts.add(name, meeting.too_late)
    for side in sides:
        counts.add_matches(job.sources[side.source], ~side.unpaired)
    for source in law.lossy_inputs:
        lost = np.logical_and.reduce([side.lost_records for side in sides if side.source == source])
        spec, rows = job.sources[source], job.batches[source].rows
        row = events.row[event[law.sides.index(source)][lost]]
        counts.add_rows(metric_name(spec.name, "late"), spec, rows, row)
    return counts


def _arrival_on_side(events: Timeline, side: int, roles: int) -> Ints:
    """Return the place of each event in the order of arrival on a side, from 0: int64[events]. In a
    self-join each record arrives twice, first on the left.

    ``side``: 0 for left, 1 for right. ``roles``: 2 in a self-join, else 1.
    """
    return roles * events.arrival + side % roles


def _side_arrivals(
    events: Timeline, keyed: Mask, law: StreamJoinLaw, side: int, roles: int
) -> tuple[Ints, Arrivals]:
    """Return one side's keyed records in two forms, both ordered by (group, time, arrival). First
    their indices among ``events``: int64[records]. Then ``Arrivals``: of each the index of its key
    (group), its event time and its place in the order of arrival on the side.

    ``side``: 0 for left, 1 for right. ``keyed``: bool[events], the event has a value and a key
    without nulls. ``roles``: 2 in a self-join, else 1.
    """
    event = np.flatnonzero(keyed & (events.source == law.sides[side]))
    arrival = _arrival_on_side(events, side, roles)
    event = event[by_group_and_time(events.group[event], events.event_time_us[event])]
    return event, Arrivals(events.group[event], events.event_time_us[event], arrival[event])


def _first_positions_past(job: Job, limit_us: Ints) -> Ints:
    """Return for each limit, a time in microseconds, the position of the first record that moves
    stream time past the limit: int64[limits]. A position is ``_sequence`` in the log that all
    inputs share. Without such a log it is the record's clock in microseconds, the largest timestamp
    of its log so far.

    Records of both inputs and of all buckets count. ``NEVER`` if no record does so in this batch.
    Without the steps of stream time (``Batch.stairs``) buckets do not know each other's records.
    Then all are 0, so that sorting by them changes nothing.
    """
    stairs = [batch.stairs for batch in job.batches]
    if None in stairs:
        return np.zeros(len(limit_us), np.int64)
    reached = [stair.first_position_at(limit_us + 1) for stair in stairs if stair is not None]
    return np.minimum.reduce(reached)  # type: ignore[no-any-return]


class _PairResults:
    """Results as they are found, each with the sort keys of its emission.

    Results are ordered by arrival, then by five keys:

    | result                              | keys                                  |
    |-------------------------------------|---------------------------------------|
    | closes before the arriving record   | 0, position due, time, side, rank     |
    | a late row closes when it arrives   | 1, 0, time, side, rank                |
    | the record is emitted alone         | 1, 0, 0, 0, 0                         |
    | a row is withdrawn                  | 1, 0, its time, its id, 0             |
    | a pair                              | 1, 0, other row's time and id, 1      |
    """

    def __init__(self) -> None:
        """Begin without results: one empty part. A part has ten columns, those of
        ``_all_results``.
        """
        none = np.zeros(0, np.int64)
        self._parts: list[list[Ints]] = [[none] * 10]

    @property
    def count(self) -> int:
        """The count of results added so far."""
        return sum(len(part[0]) for part in self._parts)

    def _add_results(
        self,
        side: Side,
        arrival: Ints,
        keys: Sequence[Ints | int],
        side_row: Ints,
        other: Ints | int,
        time: Ints,
        *,
        withdrawn: bool = False,
    ) -> None:
        """Add n results of a side.

        ``arrival``: int64[n], the arrival of the record that causes each. ``keys``: five sort keys,
        int64[n] or one int each, the most significant first. They order the results of one arrival,
        smaller ones first; the first is 0 for a row that closes before the record acts, else 1.
        ``side_row``: int64[n], the side's row of each, an index into its ``pool``. ``other``: the
        same of the other side, ABSENT for none. ``time``: int64[n], the event time of each result
        in microseconds. ``withdrawn``: the results are tombstones.
        """
        sides = (side_row, other) if side.side == 0 else (other, side_row)
        columns = (arrival, *keys, *sides, time, int(withdrawn))
        self._parts.append([np.broadcast_to(column, arrival.shape) for column in columns])

    def add_pairs(self, side: Side, other: Side, pairs: Pairs) -> None:
        """Add a result for each of ``pairs``, which join one of the arriving records of ``side``
        with a row of ``other``. The time of a result is the later of both.
        """
        time = np.maximum(side.arrivals.time_us[pairs.row], pairs.other_time_us)
        order = (1, 0, pairs.other_time_us, other.row_ids[pairs.other], 1)
        side_row = side.record_rows[pairs.row]
        self._add_results(
            side, side.arrivals.arrival[pairs.row], order, side_row, pairs.other, time
        )

    def add_null_keys(self, side: Side, events: Timeline, null: Mask, roles: int) -> None:
        """Add an unmatched result for each record of ``side`` that ``null`` marks, at its arrival.
        A side that is not preserved adds nothing.

        ``null``: bool[events], the event has a value and a null in its key. ``roles``: 2 in a
        self-join, else 1.
        """
        if side.preserved:
            event = np.flatnonzero(null & (events.source == side.source))
            arrival = _arrival_on_side(events, side.side, roles)[event]
            side_row = side.base + events.row[event]
            time = events.event_time_us[event]
            self._add_results(side, arrival, (1, 0, 0, 0, 0), side_row, ABSENT, time)

    def add_unmatched_records(self, side: Side, rows: Ints) -> None:
        """Add a result without a match for each record of ``side`` with an index in ``rows``, at
        its arrival. ``rows``: indices into ``Side.arrivals``.
        """
        arrival, time = side.arrivals.arrival[rows], side.arrivals.time_us[rows]
        self._add_results(side, arrival, (1, 0, 0, 0, 0), side.record_rows[rows], ABSENT, time)

    def add_closed_rows(self, side: Side, job: Job) -> None:
        """Add the side's unmatched rows that close in this batch. A row closes when stream time
        passes the end of its window plus grace. It is emitted at the next arrival in this bucket,
        or at the end of the batch, before all other results of that arrival. A row that arrives
        after its limit closes at its own arrival.

        Several rows may be emitted at one arrival, because records of other buckets move stream
        time in between. They lie in the order in which these records close them, then by time,
        right side first, then by key. Stores and the side's rows do not change.

        The side must wait: it is preserved, and ``unmatched`` is ``"on_close"``. ``Meeting`` must
        have found the pairs of both sides.
        """
        side_row = side.closing_rows()
        keys = take_rows(side.pool.columns[: side.keys], side_row)
        rank = rank_of_keys(keys, side.row_ids[side_row])
        row_arrival = np.full(side.base + len(side.batch), -1)
        row_arrival[side.record_rows] = side.arrivals.arrival
        arrival = np.maximum(side.closes[side_row], row_arrival[side_row])
        late = (arrival == row_arrival[side_row]).astype(np.int64)
        time = side.time_us[side_row]
        due = np.where(
            late, 0, _first_positions_past(job, side.window.match_limit_us(side.side, time))
        )
        # On a tie the right side comes first, as in Kafka Streams.
        self._add_results(
            side, arrival, (late, due, time, 1 - side.side, rank), side_row, ABSENT, time
        )

    def add_withdrawn_rows(self, side: Side) -> None:
        """Add a tombstone for each row of ``side`` that was emitted unmatched and now gets its
        first match. It comes at the arrival of the record that joins the row, before the pair, and
        has the row's time.
        """
        side_row = np.flatnonzero(side.emitted_unmatched() & (side.first_match != NEVER))
        time = side.time_us[side_row]
        order = (1, 0, time, side.row_ids[side_row], 0)
        self._add_results(
            side, side.first_match[side_row], order, side_row, ABSENT, time, withdrawn=True
        )

    def result_tables(
        self,
        job: Job,
        meeting: Meeting,
        sides: Sequence[Side],
        events: Timeline,
        roles: int,
    ) -> Iterator[pa.Table]:
        """Yield all results, pairs included, as tables of ``Operator.output_schema`` in order: one
        for each range of arrivals in ``meeting.cuts`` that has any. Positions begin at
        ``job.manifest.position``, the first free one of the bucket, and have no gaps.

        ``events``: the batch's records of both sides, which cause the results. ``sides``: left and
        right. ``roles``: 2 in a self-join, else 1.
        """
        causes = _ResultCauses.from_events(job, sides, events)
        added = self._all_results()
        added = added[:, np.argsort(added[0], kind="stable")]
        position = job.manifest.position
        for cut in meeting.cuts:
            part = _PairResults()
            part._parts.append([*added[:, slice(*np.searchsorted(added[0], cut))]])
            for side, other, pairs in meeting.pairs(cut):
                part.add_pairs(side, other, pairs)
            if part.count:
                yield part._result_table(job, sides, causes, roles, position)
                position += part.count

    def _all_results(self) -> Ints:
        """Return the columns of all results, in the order added: int64[10, results]. They are
        arrival, five sort keys, left row, right row, time, and 1 for a withdrawn row. Rows are
        indices into the sides' ``pool``, ABSENT for none.
        """
        return np.array([np.concatenate(column) for column in zip(*self._parts, strict=True)])

    def _result_table(
        self, job: Job, sides: Sequence[Side], causes: _ResultCauses, roles: int, position: int
    ) -> pa.Table:
        """Return all results as one table, ordered by arrival and sort keys. The first change has
        the position ``position``, the others follow it.

        ``sides``: left and right. ``causes``: those of all events. ``roles``: 2 in a self-join,
        else 1.
        """
        arrival, *keys, left, right, time, withdrawn = self._all_results()
        order = np.lexsort((*reversed(keys), arrival))
        references = left[order], right[order]
        operator = job.operator
        side_columns = [
            take_rows(side.pool.columns, refs) for side, refs in zip(sides, references, strict=True)
        ]
        return output_table(
            operator,
            [
                pc.coalesce(*key_pair)
                for key_pair in zip(*(f[: operator.keys] for f in side_columns), strict=True)
            ],
            [values[operator.keys :] for values in side_columns],
            references,
            deleted=withdrawn[order].astype(np.bool_),
            event_time_us=time[order],
            position=position,
            cause=causes.result_causes(arrival[order] // roles, keys[0][order], references),
        )


@dataclass(frozen=True)
class _ResultCauses:
    """The records that cause the results of a join of streams."""

    job: Job
    sides: Sequence[Side]
    causes: Cause
    """The cause of each event."""
    event: Ints
    """The index of the event at each place in the order of arrival; a last element 0 serves the end
    of the batch.
    """

    @classmethod
    def from_events(cls, job: Job, sides: Sequence[Side], events: Timeline) -> _ResultCauses:
        """Return the causes of all ``events``, from which ``result_causes`` takes those of results.
        ``sides``: left and right.
        """
        return cls(job, sides, job.event_causes(events), np.append(events.by_arrival(), 0))

    def result_causes(self, arrival: Ints, order: Ints, references: tuple[Ints, Ints]) -> Cause:
        """Return the cause of each result: the record that arrives or, for a result whose ``order``
        is 0, the record that closes its window. Without ``Operator.feeds`` the result has no
        columns.

        ``arrival``: int64[results], the place of each record among all events in the order of
        arrival. ``order``: int64[results], the first sort key of ``_PairResults``. ``references``:
        the left and the right row of each, indices into the sides' ``pool``, ABSENT for none.
        """
        operator = self.job.operator
        if not operator.feeds:
            return Cause({})
        event = self.event[np.minimum(arrival, len(self.event) - 1)]
        if len(self.event) > 1:
            cause = self.causes.take(event)
        else:
            cause = Cause(dict.fromkeys(operator.feeds, event))
        side = (references[0] == ABSENT).astype(np.int64)
        side_row = np.where(side == 1, references[1], references[0])
        due, hash_ = np.empty(len(side_row), np.int64), np.empty(len(side_row), np.int64)
        for this_side in self.sides:
            of_side = side == this_side.side
            keys = take_rows(this_side.pool.columns[: this_side.keys], side_row[of_side])
            due[of_side] = (
                this_side.window.match_limit_us(
                    this_side.side, this_side.time_us[side_row[of_side]]
                )
                + 1
            )
            hash_[of_side] = stable_hash(keys)
        aligned = any(batch.stairs is None for batch in self.job.batches)
        moves = due if aligned else _first_positions_past(self.job, due - 1)
        return cause.closed_at(order == 0, moves, due, hash_, operator.law.holds_us)


def _store_rows(
    job: Job,
    law: StreamJoinLaw,
    stores: SideStores,
    events: Timeline,
    keyed: Mask,
    sides: Sequence[Side],
    window: Window,
    stream_us: Ints,
) -> None:
    """Store the batch's rows, the rows that wait, and marks of stored rows that were joined. Drop
    rows and marks whose time is more than the window's retention behind the final stream time.

    ``keyed``: bool[events], the event has a value and a key without nulls; only such are stored.
    ``sides``: left and right. ``stream_us``: int64[arrivals + 1], stream time after each arrival,
    the arriving record included, and last after the batch.
    """
    pending = [np.zeros(side.base + len(side.batch), np.bool_) for side in sides]
    for side, unmatched in zip(sides, pending, strict=True):
        if law.unmatched != "eager":
            alone = side.record_rows[side.unmatched_records]
            unmatched[alone] = side.first_match[alone] == NEVER
            side.mark_joined()
        if side.waits:
            side.queue_rows(np.flatnonzero(unmatched & (side.closes == NEVER)))
    for source, history in enumerate(stores.histories):
        horizon_us = history.horizon_us = subtract_span(int(stream_us[-1]), window.retention_us)
        event = np.flatnonzero(keyed & (events.source == source))
        event = event[events.event_time_us[event] >= horizon_us]
        hash_ = events.hash[events.group[event]]
        event = event[by_group_and_time(hash_, events.event_time_us[event])]
        rows = job.batches[source].rows.take(pa.array(events.row[event]))
        bits = np.zeros(len(event), np.int64)
        for side in sides:
            if side.source == source:
                bits |= (
                    pending[side.side][side.base + events.row[event]].astype(np.int64) << side.side
                )
        columns = [
            rows.column(HASH),
            rows.column(EVENT_TIME),
            pa.array(job.manifest.rows + events.arrival[event]),
            pa.array(bits),
            *rows.select(history.schema.names[4:]).columns,
        ]
        history.store(pa.table(columns, schema=history.schema))
        history.expire(horizon_us)
    for side in sides:
        side.forget_marks()
