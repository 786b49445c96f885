"""The events of one bucket and micro-batch, laid out by key and then by arrival.

Kernels never move values. They work on integers that say where a row lies:

- a *source* is one input table of the stage, by its number;
- a *row* is an index into that source's rows of the batch;
- a *group* is one distinct key of the batch, by its number in (hash, first seen) order;
- a *reference* names a row version of a source: ``ABSENT`` (-1) for none, ``group`` for the version
  stored before the batch (0 <= reference < groups), ``groups + row`` for a row of the batch.

Values are gathered once, at the very end, with Arrow's ``take``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.arrays.grouping import by_key

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ABSENT = -1
NO_TIME = int(np.iinfo(np.int64).min)
"""As a time: before any record."""
STORED = -1
"""As an arrival: before the batch."""


@dataclass(frozen=True)
class Rows:
    """The rows of one source in a batch, in the order they were read.

    ``keys``: the key columns, n rows each, without nulls; ``hash``, ``event_time_us``: int64[n];
    ``deleted``: bool[n]; ``clock_us``: int64[n], the largest timestamp that the row's log has had
    by then in the micro-batch (``laws.arrival``); ``order``: int64[n], what orders the rows of
    one clock, None where they come in their order; ``tie``: int64[n], what orders the rows that one
    record has caused in another stage, None where none has; ``sequence``: int64[n], the row's
    position in a log that all sources share, or None.
    """

    keys: Sequence[pa.Array]
    hash: Ints
    event_time_us: Ints
    deleted: Mask
    clock_us: Ints
    order: Ints | None = None
    tie: Ints | None = None
    sequence: Ints | None = None

    def __len__(self) -> int:
        return len(self.hash)


@dataclass(frozen=True)
class Timeline:
    """n events ordered by (group, arrival).

    ``source``, ``row``, ``group``, ``arrival``, ``event_time_us``: int64[n]; ``deleted``: bool[n];
    ``start``: int64[groups], the first event of each group. ``arrival`` is a permutation of 0..n-1.
    ``hash``: int64[groups], non-decreasing; ``keys``: one row per group.
    """

    source: Ints
    row: Ints
    group: Ints
    arrival: Ints
    event_time_us: Ints
    deleted: Mask
    start: Ints
    hash: Ints
    keys: Sequence[pa.Array]

    @property
    def groups(self) -> int:
        """How many distinct keys there are."""
        return len(self.start)


def arrival_order(sources: Sequence[Rows]) -> Ints:
    """The order in which the rows of all sources are processed: a permutation of their
    concatenation.

    Sources that all carry a ``sequence`` share one log and are read in its order. Otherwise the
    log whose next record has the smallest timestamp goes first, on a tie the earlier source, then
    the earlier log; within a log rows keep their order (as a Kafka Streams task picks records). So
    they go by their clocks, the largest timestamps of their logs so far.

    >>> def rows(times):
    ...     n = len(times)
    ...     clock = np.maximum.accumulate(np.array(times))
    ...     return Rows([], clock, np.array(times), np.zeros(n, bool), clock)
    >>> arrival_order([rows([10, 5]), rows([7, 10])]).tolist()
    [2, 0, 1, 3]
    """
    keys = arrival_keys(sources)
    return np.lexsort(keys) if len(keys) > 1 else np.argsort(keys[0], kind="stable")


def arrival_keys(sources: Sequence[Rows]) -> list[Ints]:
    """What puts the rows of all sources in the order of their arrival, what decides last first."""
    if all(rows.sequence is not None for rows in sources):
        keys = [_all(rows.sequence for rows in sources)]
        if any(rows.order is not None for rows in sources):
            order = (np.zeros_like(r.hash) if r.order is None else r.order for r in sources)
            keys = [_all(order), *keys]
    elif all(rows.order is not None for rows in sources):
        keys = [_all(rows.order for rows in sources), _all(rows.clock_us for rows in sources)]
    else:
        keys = [_all(rows.clock_us for rows in sources)]
    if any(rows.tie is not None for rows in sources):
        source = np.repeat(np.arange(len(sources)), [len(rows) for rows in sources])
        tie = _all(np.zeros_like(r.hash) if r.tie is None else r.tie for r in sources)
        keys = [tie, source, *keys]
    return keys


def _all(columns: Iterable[Ints | None]) -> Ints:
    return np.concatenate([column for column in columns if column is not None])


def timeline(sources: Sequence[Rows], order: Ints | None = None) -> Timeline:
    """Group the rows of all sources by key, each group in arrival order.

    ``order``: the order in which the rows are processed, a permutation of their concatenation;
    ``arrival_order`` by default.
    """
    if order is None:
        order = arrival_order(sources)
    hash_ = np.concatenate([rows.hash for rows in sources])
    keys = [
        pa.chunked_array(column).combine_chunks()
        for column in zip(*(rows.keys for rows in sources), strict=True)
    ]
    by_hash, new_group, columns = by_key(hash_, keys, order)
    positions = order[by_hash]
    start = np.flatnonzero(new_group)
    first = np.cumsum([0, *(len(rows) for rows in sources)])
    source = np.repeat(np.arange(len(sources)), np.diff(first))[positions]
    return Timeline(
        source=source,
        row=positions - first[source],
        group=np.cumsum(new_group) - 1,
        arrival=by_hash,
        event_time_us=np.concatenate([rows.event_time_us for rows in sources])[positions],
        deleted=np.concatenate([rows.deleted for rows in sources])[positions],
        start=start,
        hash=hash_[positions][start],
        keys=[column.take(pa.array(start)) for column in columns],
    )


def versions(
    timeline: Timeline, source: int, stored: Mask, counted: Mask | None = None
) -> tuple[Ints, Ints]:
    """The version of ``source``'s row at each event's key just before and just after the event.

    ``stored``: bool[groups], whether the key has a row from earlier batches; ``counted``: which
    events are versions, by default all of the source's. Returns two reference arrays of n events.
    A later arrival replaces an earlier one, a tombstone makes it ABSENT.
    """
    n = len(timeline.row)
    events = np.arange(n)
    own = timeline.source == source if counted is None else counted
    start = timeline.start[timeline.group]
    last_own = np.maximum.accumulate(np.where(own, events, -1))
    initial = np.where(stored, np.arange(timeline.groups), ABSENT)[timeline.group]
    version = np.where(timeline.deleted, ABSENT, timeline.groups + timeline.row)
    after = np.where(last_own >= start, version[last_own], initial)
    before = after
    if own.any():
        before = after.copy()
        previous = after[np.maximum(events - 1, 0)]
        before[own] = np.where(events > start, previous, initial)[own]
    return before, after


def last_of_source(timeline: Timeline, source: int) -> Ints:
    """The last event of ``source`` in each group that has one: event numbers, ascending."""
    events = np.flatnonzero(timeline.source == source)
    if len(events) == 0:
        return events
    group = timeline.group[events]
    last: Ints = events[np.append(group[1:] != group[:-1], True)]
    return last
