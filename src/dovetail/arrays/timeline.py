"""The events of one bucket and micro-batch, ordered by key and then by arrival.

Kernels never move values. They work on integers that identify rows:

- a *source* is one input table of the stage, by its number;
- a *row* is an index into that source's rows of the batch;
- a *group* is one distinct key of the batch, numbered in (hash, first seen) order;
- a *reference* names a row version of a source, as below.

| reference             | row version                      |
|-----------------------|----------------------------------|
| ``ABSENT`` (-1)       | none                             |
| 0 to ``groups - 1``   | the group's row before the batch |
| ``groups + row``      | a row of the batch               |

Values are gathered once, at the end, with Arrow's ``take``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.arrays.grouping import argsort_distinct, by_key, lexsort

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ABSENT = -1
"""As a reference: no row."""
NO_TIME = int(np.iinfo(np.int64).min)
"""As a time: before any record."""
STORED = -1
"""As an arrival: before the batch."""


@dataclass(frozen=True)
class SourceRows:
    """The n rows of one source in a batch, in the order they were read."""

    keys: Sequence[pa.Array]
    """The key columns, n rows each. Rows with a null in the key count as ``by_key`` says."""
    hash: Ints
    """int64[n]: the hash of the key, equal for equal keys."""
    event_time_us: Ints
    """int64[n]: the row's own timestamp."""
    deleted: Mask
    """bool[n]: the row is a tombstone, a record that deletes its key's row."""
    clock_us: Ints
    """int64[n]: the largest timestamp in the row's log so far in the micro-batch
    (``laws.arrival``).
    """
    order: Ints | None = None
    """int64[n]: the order of rows with equal clocks, in all sources. None for the order in which
    they were read. Without a ``sequence``, it counts only if all sources have one.
    """
    tie: Ints | None = None
    """int64[n]: the order of rows that one record of another stage caused; None if there are
    none.
    """
    sequence: Ints | None = None
    """int64[n]: the row's position in one log that all sources share; None without such a log."""

    def __len__(self) -> int:
        """Return the count of rows."""
        return len(self.hash)


@dataclass(frozen=True)
class Timeline:
    """n events ordered by (group, arrival). Arrays are int64[n] unless stated otherwise."""

    source: Ints
    """The number of each event's source."""
    row: Ints
    """The index of each event among its source's rows."""
    group: Ints
    """The number of each event's group, from 0 without gaps, non-decreasing."""
    arrival: Ints
    """A permutation of 0..n-1: the place of each event in the order of processing."""
    event_time_us: Ints
    """The event's own timestamp."""
    deleted: Mask
    """bool[n]: the event is a tombstone."""
    start: Ints
    """int64[groups]: the first event of each group."""
    hash: Ints
    """int64[groups]: the hash of each group's key, non-decreasing."""
    keys: Sequence[pa.Array]
    """The key columns, one row per group."""

    @property
    def groups(self) -> int:
        """The count of groups, the distinct keys."""
        return len(self.start)

    @property
    def last(self) -> Ints:
        """The index, among the n events, of the last event of each group: int64[groups],
        ascending.
        """
        return np.append(self.start[1:], len(self.row))[: self.groups] - 1

    def by_arrival(self, event: Ints | None = None) -> Ints:
        """Return the order of events by their arrival, the first to arrive first, as indices into
        ``event``: int64, one per event. ``event``: int64, the indices of distinct events among the
        n. None stands for all n events, and the result then has indices of events.
        """
        arrival = self.arrival if event is None else self.arrival[event]
        return argsort_distinct(arrival, len(self.arrival))


def arrival_order(sources: Sequence[SourceRows]) -> Ints:
    """Return the order in which rows of all sources are processed: int64, a permutation of the
    indices into their concatenation, source after source. ``sources``: at least one.

    If all sources carry a ``sequence``, they share one log. Rows go by their position there, then
    by ``order``. Otherwise rows go by ``clock_us``: the largest timestamp in the row's log up to
    the row. So each log keeps its order, and the log whose next record has the smallest timestamp
    goes first, as a Kafka Streams task picks records. Rows with equal clocks go by ``order`` if all
    sources have one. Rows that are still equal go by source, in the order given, then by ``tie``,
    then as they are in the source.

    >>> def rows(times):
    ...     n = len(times)
    ...     clock = np.maximum.accumulate(np.array(times))
    ...     return SourceRows([], clock, np.array(times), np.zeros(n, bool), clock)
    >>> arrival_order([rows([10, 5]), rows([7, 10])]).tolist()
    [2, 0, 1, 3]
    """
    return lexsort(arrival_keys(sources))


def arrival_keys(sources: Sequence[SourceRows]) -> list[Ints]:
    """Return the sort keys of the order of processing (``arrival_order``), for ``np.lexsort``: at
    least one, the most significant last. Each is int64[rows of all sources], source after source.

    | key, the most significant first      | used if                                     |
    |--------------------------------------|---------------------------------------------|
    | ``sequence``                         | all sources have it                         |
    | ``clock_us``                         | else                                        |
    | ``order``, 0 for a source without it | beside ``sequence``, if a source has it     |
    | ``order``                            | beside ``clock_us``, if all sources have it |
    | the index of the source              | a source has a ``tie``                      |
    | ``tie``, 0 for a source without it   | a source has it                             |
    """
    if all(rows.sequence is not None for rows in sources):
        keys = [_concatenate(rows.sequence for rows in sources)]
        if any(rows.order is not None for rows in sources):
            order = (np.zeros_like(r.hash) if r.order is None else r.order for r in sources)
            keys = [_concatenate(order), *keys]
    elif all(rows.order is not None for rows in sources):
        keys = [
            _concatenate(rows.order for rows in sources),
            _concatenate(rows.clock_us for rows in sources),
        ]
    else:
        keys = [_concatenate(rows.clock_us for rows in sources)]
    if any(rows.tie is not None for rows in sources):
        source = np.repeat(np.arange(len(sources)), [len(rows) for rows in sources])
        tie = _concatenate(np.zeros_like(r.hash) if r.tie is None else r.tie for r in sources)
        keys = [tie, source, *keys]
    return keys


def _concatenate(columns: Iterable[Ints | None]) -> Ints:
    """Return the columns that are not None one after the other as one array; at least one is not
    None.
    """
    return np.concatenate([column for column in columns if column is not None])


def timeline(sources: Sequence[SourceRows], order: Ints | None = None) -> Timeline:
    """Return the rows of all sources, at least one, as events, grouped by key, each group in the
    order of processing.

    ``order``: that order, as distinct indices into the concatenation of all sources' rows; None for
    ``arrival_order``. Rows that it leaves out are no events. Groups go by the hash of their key,
    which ``sources`` have. Keys with equal hashes are kept apart, in the order in which they are
    first seen. A null in a key equals a null with the same hash; floats are compared by their bits.
    Sources need key columns of the same types; another count of them raises ``ValueError``.
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
    source, row = np.zeros(len(positions), np.int64), positions
    if len(sources) > 1:
        first = np.cumsum([0, *(len(rows) for rows in sources)])
        source = np.repeat(np.arange(len(sources)), np.diff(first))[positions]
        row = positions - first[source]
    return Timeline(
        source=source,
        row=row,
        group=np.cumsum(new_group) - 1,
        arrival=by_hash,
        event_time_us=np.concatenate([rows.event_time_us for rows in sources])[positions],
        deleted=np.concatenate([rows.deleted for rows in sources])[positions],
        start=start,
        hash=hash_[positions][start],
        keys=[column.take(pa.array(start)) for column in columns],
    )


def versions_around(
    timeline: Timeline, source: int, stored: Mask, counted: Mask | None = None
) -> tuple[Ints, Ints]:
    """Return the version of ``source``'s row with each event's key, just before and just after the
    event.

    ``timeline``: the n events of the batch, by key (group), then by arrival. ``source``: the index
    of a source. ``stored``: bool[groups], true if the key has a row from earlier batches.
    ``counted``: bool[n], the events of the source that are versions, by default all of them.
    Returns two arrays (before, after) of n references: ABSENT (-1), the index of the group for its
    stored row, or ``groups + row`` for a row of the batch. Both are equal at events that are no
    versions. A later arrival replaces an earlier one; a tombstone makes the row ABSENT.

    One group with a stored row (reference 0), so row r of the batch is reference 1 + r, for source
    0:

    | event | source | row | deleted | before | after  |
    |-------|--------|-----|---------|--------|--------|
    | 0     | 1      | 0   | no      | 0      | 0      |
    | 1     | 0      | 0   | no      | 0      | 1      |
    | 2     | 1      | 1   | no      | 1      | 1      |
    | 3     | 0      | 1   | yes     | 1      | ABSENT |
    | 4     | 0      | 2   | no      | ABSENT | 3      |
    """
    n = len(timeline.row)
    events = np.arange(n)
    is_version = timeline.source == source if counted is None else counted
    start = timeline.start[timeline.group]
    last_version = np.maximum.accumulate(np.where(is_version, events, -1))
    initial = np.where(stored, np.arange(timeline.groups), ABSENT)[timeline.group]
    version = np.where(timeline.deleted, ABSENT, timeline.groups + timeline.row)
    after = np.where(last_version >= start, version[last_version], initial)
    before = after
    if is_version.any():
        before = after.copy()
        previous = after[np.maximum(events - 1, 0)]
        before[is_version] = np.where(events > start, previous, initial)[is_version]
    return before, after


def last_of_source(timeline: Timeline, source: int) -> Ints:
    """Find the last event of a source in each group of ``timeline`` that has one: indices of
    events, ascending, int64, empty if no group has one. ``source``: the index of the source.
    """
    events = np.flatnonzero(timeline.source == source)
    if len(events) == 0:
        return events
    group = timeline.group[events]
    last: Ints = events[np.append(group[1:] != group[:-1], True)]
    return last
