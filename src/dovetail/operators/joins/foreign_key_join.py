"""The second stage of a join by foreign key, on one bucket of foreign keys: subscriptions meet the
right table (``ForeignKeyJoinLaw``).

A *subscription* is a left row's interest in the right row that its foreign key names. The stores
hold the subscriptions with their rows, side by side by foreign key, and the right table. If right
rows appear alone, a third store holds the count of left rows that refer to each.

Results are found by their kind and put in order at the end. A right row may have millions of
subscriptions, so results are references until ``_result_tables`` makes tables of them, a part at a
time.

A micro-batch of orders that refer to customers, ``how="outer"``. Before it Ann lives in Rome, Bob
in Oslo, and order 1 is Ann's. Events are numbered by customer, here Bob and then Ann:

| time | record            | event   | results                    | function               |
|------|-------------------|---------|----------------------------|------------------------|
| 4    | order 2 is Ann's  | 1       | 2: Ann, Rome               | ``answer_messages``    |
| 5    | Ann moves to Bern | 2       | 1: Ann, Bern; 2: Ann, Bern | ``fan_out_right_rows`` |
| 6    | order 1 is Bob's  | 3 and 0 | Bob is no longer alone     | ``_right_rows_alone``  |
| 6    | order 1 is Bob's  | 3 and 0 | 1: Bob, Oslo               | ``answer_messages``    |
| 7    | Ann moves to Kiev | 4       | 2: Ann, Kiev               | ``fan_out_right_rows`` |

Event 3 ends order 1's subscription to Ann. It has no result, because Bob answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import bucket_of, last_of_each, rank_of_keys, stable_argsort
from dovetail.arrays.hashing import lower_hash_bits
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Timeline, timeline
from dovetail.base.columns import EPOCH, INSTRUCTION, PLACE, SEQUENCE
from dovetail.laws.joins.foreign_key_join import BEFORE, EMIT, SETTLED, fan_out
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.operators.counts import Counts
from dovetail.operators.job import Job, OperatorOutcome, output_table
from dovetail.operators.joins.subscriptions import (
    References,
    RightRows,
    RightTable,
    Subscriptions,
    SubscriptionStores,
    find_subscriptions,
    right_table_rows,
)
from dovetail.operators.tables import count_ignored
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw

_ROWS_MAX = 50_000
"""The most rows in one table of output. It bounds memory, whatever the fan-out."""


def run(job: Job, law: ForeignKeyJoinLaw) -> OperatorOutcome:
    """Emit the results of the batch's messages (changes of left rows, by foreign key) and right
    rows. They come in chunks, by bucket of the next stage, then in the order of the records. Store
    the left rows by foreign key and the right rows. Without rows in the batch, emit nothing and
    leave the stores as they are. Return the changes as ``chunks``, with the stores and the counts.

    With ``emit="batch"``, emit only the last result of each left row and foreign key, and of each
    right row alone. Leave it out if it equals the row before the batch in all values. The next
    stage compares left rows whose results come from several buckets. Of such a row the last result
    is always emitted, and so is its row before the batch, if there was one. That has the epoch
    ``BEFORE`` and comes before all results of its bucket.
    """
    stores = SubscriptionStores.open_stores(job, law)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    events = timeline([job.source_rows(0), job.source_rows(1)])
    table = right_table_rows(job, stores.right, events)
    subscriptions = find_subscriptions(job, law, stores.subscribed, events, table)
    references = stores.count_references(job, events)
    results = ForeignResults.concatenate(
        [
            answer_messages(job, law, events, table, subscriptions),
            _drop_past_retention(
                job, events, subscriptions, fan_out_right_rows(law, events, table, subscriptions)
            ),
            *([] if references is None else [_right_rows_alone(events, table, references)]),
        ]
    )
    # By arrival, then by rank, as one number: a rank of -1 still follows the arrival before.
    results = results.select(stable_argsort((events.arrival[results.event] << 32) + results.rank))
    if job.operator.emit == "batch":
        results = _net_results(law, events, table, subscriptions, references, results)
    chunks = _result_tables(job, law, events, table, subscriptions, results)
    stores.store_batch(job, events, table.counted, subscriptions, references)
    ignored, current = Counts(), np.zeros(len(events.row), np.bool_)
    joins = (subscriptions.event >= 0) & subscriptions.live
    ignored.add_matches(job.sources[0], table.after[subscriptions.event[joins]] != ABSENT)
    current[table.changes] = True
    count_ignored(ignored, job, 1, events, table.counted, current)
    return OperatorOutcome(None, stores.runs, chunks=chunks, counts=ignored)


@dataclass(frozen=True)
class ForeignResults:
    """The m results of a micro-batch of a join by foreign key, as references to rows."""

    event: Ints
    """int64[m]: the index in the timeline of the event that causes each result."""
    subscription: Ints
    """The index of the subscription that the result belongs to, ABSENT for a right row alone."""
    right: Ints
    """The right row, a reference; ABSENT for none."""
    present: Mask
    """False for a tombstone."""
    time_us: Ints
    """int64[m]: the event time of each result, in microseconds."""
    epoch: Ints
    """int64[m]: the epoch of the left row's change, or ``SETTLED`` or ``BEFORE``."""
    rank: Ints
    """The order of the results of one event; equal ranks keep the order in which they lie."""

    def select(self, which: Ints | Mask | slice) -> ForeignResults:
        """Return the results that ``which`` selects, by indices in their order, by flags or by a
        slice.
        """
        return ForeignResults(*(column[which] for column in self.columns))

    @classmethod
    def concatenate(cls, parts: Sequence[ForeignResults]) -> ForeignResults:
        """Return all results of ``parts``, one after the other. There is at least one part."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays of the results in the order of the fields, m elements each."""
        return tuple(getattr(self, field.name) for field in fields(self))


def answer_messages(
    job: Job,
    law: ForeignKeyJoinLaw,
    events: Timeline,
    table: RightRows,
    subscriptions: Subscriptions,
) -> ForeignResults:
    """Return the result of each message in ``subscriptions``, in their order: the left row with the
    right row that ``table`` has after the message. A message is a change of a left row, sent to its
    former or present foreign key. A left row without a right row is a result, too, if left rows are
    preserved.

    A message without such a result gives a tombstone if its column ``_instruction`` has the bit
    ``EMIT``, else nothing. A message that ends a subscription never has such a result. Stored
    subscriptions have no result here. ``events``: the timeline, with messages as source 0.

    A result's time is the later of the message's and the right row's, without a right row the
    message's. An ended subscription always has the message's time if left rows are preserved. In a
    result, ``subscription`` is an index into ``subscriptions``, and ``rank`` is 0.
    """
    message = np.flatnonzero(subscriptions.event >= 0)
    event, live = subscriptions.event[message], subscriptions.live[message]
    row = subscriptions.reference[message] - subscriptions.pool.base
    emits = (job.batches[0].rows.column(INSTRUCTION).to_numpy()[row] & EMIT) != 0
    right = table.after[event]
    left_preserved = sides_preserved(law.how)[0]
    present = live & ((right != ABSENT) | left_preserved)
    both_times = np.maximum(events.event_time_us[event], np.append(table.time_us, NO_TIME)[right])
    by_both = live | (not left_preserved)
    results = ForeignResults(
        event,
        message,
        right,
        present,
        np.where(by_both, both_times, events.event_time_us[event]),
        subscriptions.epoch[message],
        np.zeros(len(message), np.int64),
    )
    return results.select(present | emits)


def fan_out_right_rows(
    law: ForeignKeyJoinLaw, events: Timeline, table: RightRows, subscriptions: Subscriptions
) -> ForeignResults:
    """Return a result for each pair of a right record that changes ``table`` and a left row that
    then refers to it. The left rows are those in ``subscriptions``, along the timeline ``events``.
    Results lie by left row, then by record.

    A result has the record's time. Its ``subscription`` is an index into ``subscriptions``. Its
    ``rank`` orders the results of one record: it ascends with the primary key. If the right row is
    gone, the left row is the result, or a tombstone if left rows are not preserved. Without
    subscriptions a record has no result.
    """
    subscription, event = fan_out(
        events,
        table.changes,
        subscriptions.group,
        subscriptions.event,
        subscriptions.following,
        subscriptions.live,
    )
    right = table.after[event]
    present = (right != ABSENT) | sides_preserved(law.how)[0]
    met, which = np.unique(subscription, return_inverse=True)
    keys = subscriptions.pool.columns_at(subscriptions.reference[met], subscriptions.primary)
    return ForeignResults(
        event,
        subscription,
        right,
        present,
        events.event_time_us[event],
        subscriptions.epoch[subscription],
        rank_of_keys(keys, subscriptions.place[met])[which],
    )


def _drop_past_retention(
    job: Job, events: Timeline, subscriptions: Subscriptions, results: ForeignResults
) -> ForeignResults:
    """Return those ``results`` of right records whose left row's window was still kept when the
    record arrived, with that record counted in stream time. A window exactly as old as the
    retention stays. Dropped results are not counted. Without windows, return all of them.
    """
    source = job.sources[0]
    retention_us = source.meaning.retention_us
    if retention_us is None:
        return results
    window_column = source.shape.schema.get_field_index(source.shape.window)
    refs = subscriptions.reference[results.subscription]
    (bound,) = subscriptions.pool.columns_at(refs, [window_column])
    sequence = job.batches[1].rows.column(SEQUENCE).to_numpy()[events.row[results.event]]
    horizon_us = np.maximum(job.clock_us[sequence], NO_TIME + retention_us) - retention_us
    return results.select(bound.cast(pa.int64()).to_numpy() >= horizon_us)


# The module's example: a customer appears alone while no order refers to it. Bob, who lives in
# Oslo, is alone before event 0, and ceases to be:
#
# | event | record             | before | after | result                          |
# |-------|--------------------|--------|-------|---------------------------------|
# | 0     | order 1 is Bob's   | 0      | 1     | a tombstone of Bob alone        |
# | 1     | order 2 is Ann's   | 1      | 2     | none                            |
# | 2     | Ann moves to Bern  | 2      | 2     | none: it is in those of orders  |
# | 3     | order 1 leaves Ann | 2      | 1     | none                            |
# | 4     | Ann moves to Kiev  | 1      | 1     | none: it is in that of an order |
def _right_rows_alone(
    events: Timeline, table: RightTable, references: References
) -> ForeignResults:
    """Return a result for each event at which a right row begins or ceases to appear alone, or
    changes while it is alone. A right row appears alone while no left row refers to it.

    Results are in the order of ``events``. Their ``rank`` is -1, so they come before results of
    left rows; their ``epoch`` is ``SETTLED``, their ``subscription`` ABSENT. A row that ceases to
    be alone gives a tombstone. A result has the event's time or, if the row begins or ceases to be
    alone, the later of that and the right row's.

    ``table``: the right row before and after each event. ``references``: the count of left rows
    that refer to the event's key, before and after it.
    """
    right, before, after = table.after, references.before, references.after
    moves = ((before == 0) != (after == 0)) & (right != ABSENT)
    changes = np.zeros(len(moves), np.bool_)
    changes[table.changes] = True
    changes &= (after == 0) & ((right != ABSENT) | (table.before != ABSENT))
    event = np.flatnonzero(moves | changes)
    present = (after[event] == 0) & (right[event] != ABSENT)
    return ForeignResults(
        event,
        np.full(len(event), ABSENT),
        np.where(present, right[event], ABSENT),
        present,
        np.maximum(
            events.event_time_us[event],
            np.where(moves[event], table.time_us[right[event]], NO_TIME),
        ),
        np.full(len(event), SETTLED),
        np.full(len(event), -1),
    )


# The module's example with ``how="left"``. Order 1 moves from Ann to Bob, so another bucket might
# have its last result. ``InOrderLaw`` decides by what this bucket gives: the row before the batch,
# and the last result of each of the order's subscriptions. Order 2 has messages to one bucket only:
#
# | result       | epoch       | last of its pair | emitted                          |
# |--------------|-------------|------------------|----------------------------------|
# | 1: Ann, Rome | ``BEFORE``  |                  | as the row before, since 1 moves |
# | 2: Ann, Rome | ``SETTLED`` | no               |                                  |
# | 1: Ann, Bern | 0           | yes              | yes, since 1 moves               |
# | 2: Ann, Bern | ``SETTLED`` | no               |                                  |
# | 1: Bob, Oslo | 4           | yes              | yes, since 1 moves               |
# | 2: Ann, Kiev | ``SETTLED`` | yes              | yes: there was no row before     |
#
# ``InOrderLaw`` then emits the last by epoch, "1: Bob, Oslo", as it is not the row before.
def _net_results(
    law: ForeignKeyJoinLaw,
    events: Timeline,
    table: RightTable,
    subscriptions: Subscriptions,
    references: References | None,
    results: ForeignResults,
) -> ForeignResults:
    """Return the last of ``results`` for each left row and foreign key, and for each right row
    alone. Leave it out if it equals the row before the batch in all values, or if neither has a
    row. Null equals null, floats are compared by their bits, and times do not count. ``results``:
    in the order of emission; they refer to ``table`` and ``subscriptions``. ``references``: the
    counts of left rows by right key, None if right rows never appear alone.

    Another bucket may have a later result of a left row (its epoch is not ``SETTLED``). Then return
    the last result in any case, and the row before the batch with the epoch ``BEFORE``, if there
    was one. Rows before come first, then results in their order.
    """
    pairs = int(subscriptions.pair.max(initial=-1)) + 1
    group = events.group[results.event]
    pair = np.append(subscriptions.pair, ABSENT)[results.subscription]
    last = last_of_each(np.where(pair == ABSENT, pairs + group, pair))
    ends = results.select(last)
    stored = np.flatnonzero(subscriptions.event < 0)
    stood = np.full(pairs + 1, ABSENT)
    stood[subscriptions.pair[stored]] = stored
    alone = pair[last] == ABSENT
    then = _rows_before(law, events, table, references, group[last], stood[pair[last]], alone)
    moved = ends.epoch != SETTLED
    differs = moved | (ends.present != then.present)
    compared = np.flatnonzero(ends.present & then.present & ~moved)
    for start in range(0, len(compared), _ROWS_MAX):
        at = compared[start : start + _ROWS_MAX]
        rows = [
            _value_columns(table, subscriptions, results.select(at)) for results in (ends, then)
        ]
        differs[at] = ~rows_equal(*rows)
    leaving = stored[subscriptions.epoch[stored] != SETTLED]
    group, none = subscriptions.group[leaving], np.zeros(len(leaving), np.bool_)
    before = _rows_before(law, events, table, references, group, leaving, none)
    return ForeignResults.concatenate([before.select(before.present), ends.select(differs)])


def _rows_before(
    law: ForeignKeyJoinLaw,
    events: Timeline,
    table: RightTable,
    references: References | None,
    group: Ints,
    subscription: Ints,
    alone: Mask,
) -> ForeignResults:
    """Return n result rows as they stood before the batch; ``present`` is false where there was
    none. Their epoch is ``BEFORE``, their time ``NO_TIME``.

    ``group``: int64[n], the index of each row's foreign key among the batch's distinct keys, the
    groups of ``events``. ``table``: the right rows, stored ones included. ``references``: the
    counts of left rows by right key, None if right rows never appear alone. ``subscription``:
    int64[n], the index in ``subscriptions`` of the stored left row, ABSENT for none and for a right
    row alone. ``alone``: bool[n], the row is a right row alone.
    """
    right = np.where(table.stored[group], group, ABSENT)
    there = right != ABSENT
    unnamed = alone if references is None else alone & (references.stored[group] == 0)
    return ForeignResults(
        event=events.start[group],
        subscription=subscription,
        right=right,
        present=(unnamed & there)
        | ((subscription != ABSENT) & (there | sides_preserved(law.how)[0])),
        time_us=np.full(len(group), NO_TIME),
        epoch=np.full(len(group), BEFORE),
        rank=np.zeros(len(group), np.int64),
    )


def _value_columns(
    table: RightTable, subscriptions: Subscriptions, results: ForeignResults
) -> list[pa.Array]:
    """Return the columns that ``results`` show, a row per result in their order: the values of the
    left row, then the key and the values of the right row. They are null for a tombstone. The
    columns of a side are null where a result has no row of that side. ``subscriptions``, ``table``:
    the left and the right rows that results refer to.
    """
    left = np.append(subscriptions.reference, ABSENT)[results.subscription]
    refs = np.where(results.present, left, ABSENT)
    theirs = np.where(results.present, results.right, ABSENT)
    return [
        *subscriptions.pool.columns_at(refs, subscriptions.values),
        *table.pool.columns_at(theirs, table.columns),
    ]


def _result_tables(
    job: Job,
    law: ForeignKeyJoinLaw,
    events: Timeline,
    table: RightTable,
    subscriptions: Subscriptions,
    results: ForeignResults,
) -> Iterator[pa.Table]:
    """Yield ``results`` in tables of at most ``_ROWS_MAX`` (50,000) rows, nothing for no results.
    Their columns are ``Operator.output_schema``, then two int64: ``_place``, the lower half of the
    key's hash, and ``_epoch``, ``ForeignResults.epoch``. Positions begin at 0 in each table.
    ``subscriptions``, ``table``: the left and the right rows that results refer to, along the
    timeline ``events``.

    Results come by their bucket in the next stage, ascending; a table may have rows of several. It
    is the bucket of the primary key, or of the right key for a right row alone. Results of one
    bucket keep their order.
    """
    causes = job.event_causes(events)
    place_hash = np.where(
        results.subscription == ABSENT,
        lower_hash_bits(events.hash[events.group[results.event]]),
        np.append(subscriptions.place, 0)[results.subscription],
    )
    by_bucket = np.argsort(bucket_of(place_hash, job.operator.buckets), kind="stable")
    for start in range(0, len(by_bucket), _ROWS_MAX):
        which = by_bucket[start : start + _ROWS_MAX]
        part = results.select(which)
        left = np.append(subscriptions.reference, ABSENT)[part.subscription]
        group = events.group[part.event]
        keys = subscriptions.pool.columns_at(left, subscriptions.primary)
        if sides_preserved(law.how)[1]:
            right_group = pa.array(group, mask=part.subscription != ABSENT)
            keys += [key.take(right_group) for key in events.keys]
        value_columns = _value_columns(table, subscriptions, part)
        width = len(subscriptions.values)
        references = [np.where(part.present, refs, ABSENT) for refs in (left, part.right)]
        rows = output_table(
            job.operator,
            keys,
            [value_columns[:width], value_columns[width:]],
            references,
            deleted=~part.present,
            event_time_us=part.time_us,
            position=0,
            cause=causes.take(part.event).with_tie(place_hash[which]),
        )
        rows = rows.append_column(PLACE, pa.array(place_hash[which]))
        yield rows.append_column(EPOCH, pa.array(part.epoch))
