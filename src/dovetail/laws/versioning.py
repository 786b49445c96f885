"""Versioned tables: the records that count, and the version that stood at a time.

A record of a versioned table is a version of its key from its timestamp on. It counts if it is no
older than the table's *history retention*, measured from the largest timestamp that the table has
seen. Of two records with one timestamp, the later arrival is the version. A lookup before the
retention sees a version only if it is still the latest. A table without retention has one version,
the last arrival.

Source: KIP-914 "Proposed changes"; spec/stream_table, spec/versioned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.grouping import by_group_and_time
from dovetail.arrays.search import bisect, last_below
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Timeline

LATEST = int(np.iinfo(np.int64).max)
"""As a time: after all versions, so a lookup finds the latest one."""


@dataclass(frozen=True)
class Versions:
    """The n versions that one source's records of a batch make, by (group, time, arrival)."""

    event: Ints
    """int64[n]: the version's event in the timeline."""
    start: Ints
    """int64[groups + 1]: the first version of each group, and n."""
    time_us: Ints
    """int64[n]: the event time of the version, in microseconds."""
    arrival: Ints
    """int64[n]: the place of the version's event in the order of processing."""


def records_within_retention(
    timeline: Timeline, source: int, clock_us: Ints, retention_us: int
) -> Mask:
    """Return a mask of the events that are records of ``source`` and at most ``retention_us`` older
    than its stream time, inclusive: bool[n].

    ``timeline``: the n events of the batch. ``source``: the index of the source. ``clock_us``:
    int64[n], the source's stream time at each event, that event included; with ``NO_TIME``, every
    time is recent enough.
    """
    of_source: Mask = timeline.source == source
    horizon_us = np.where(clock_us == NO_TIME, NO_TIME, clock_us - retention_us)
    return of_source & (timeline.event_time_us >= horizon_us)


# Ranks of times are lifted by group, so one running maximum over all events serves all groups.
def find_latest_versions(timeline: Timeline, counted: Mask, stored_time_us: Ints) -> Mask:
    """Return a mask of the ``counted`` events that are the latest version of their key when they
    arrive: bool[n]. An event with the same time as the latest version so far is newer.

    ``timeline``: the n events of the batch, by key (group) and arrival. ``counted``: bool[n], the
    events that are versions, tombstones included. ``stored_time_us``: int64[groups], the time of
    the latest stored version, ``NO_TIME`` for none. One key, stored version at 4:

    | event time | latest version so far | newest |
    |------------|-----------------------|--------|
    | 3          | 4                     | no     |
    | 6          | 6                     | yes    |
    | 5          | 6                     | no     |
    | 6          | 6                     | yes    |
    """
    time = timeline.event_time_us
    times, rank = np.unique(time, return_inverse=True)
    highest = np.where(counted, rank + 1, 0) + timeline.group * (len(times) + 1)
    before = np.append(0, np.maximum.accumulate(highest)[:-1])
    not_older = rank + 1 + timeline.group * (len(times) + 1) >= before
    return counted & not_older & (time >= stored_time_us[timeline.group])


def batch_versions(timeline: Timeline, counted: Mask) -> Versions:
    """Return a version for each event of ``counted``, tombstones included, by (group, time,
    arrival): the index of its event, its time and its arrival. Of several events of one key and
    time, all are kept. ``timeline``: the n events of the batch, by key (group), then by arrival.
    ``counted``: bool[n], the events that are versions, of one source.
    """
    event = np.flatnonzero(counted)
    event = event[by_group_and_time(timeline.group[event], timeline.event_time_us[event])]
    return Versions(
        event,
        np.searchsorted(timeline.group[event], np.arange(timeline.groups + 1)),
        timeline.event_time_us[event],
        timeline.arrival[event],
    )


def version_as_of(versions: Versions, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
    """Return for each query the last version of its ``group`` at or before ``time_us``, as the
    index of its event: int64[queries], ABSENT (-1) for none.

    ``versions``: those to search, by (group, time, arrival). ``group``, ``time_us``, ``arrival``:
    int64[queries]. Only versions that arrived before ``arrival`` count; of one time the last to
    arrive. A tombstone is returned like any version.
    """
    if len(versions.event) == 0:
        return np.full(len(group), ABSENT)
    first = versions.start[group]
    end = bisect(versions.time_us, first, versions.start[group + 1], time_us, right=True)
    version = last_below(versions.arrival, first, end, arrival)
    return np.where(version == ABSENT, ABSENT, versions.event[version])
