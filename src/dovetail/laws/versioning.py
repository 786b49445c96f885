"""Versioned tables: which records count, and the version that stood at a time.

A record of a versioned table is a version of its key from its timestamp on. It counts while it is
no older than the table's *history retention* allows, by the largest timestamp that the table has
seen; two of one timestamp are one version, the later arrival's. A look-up past the retention sees
only what is still the latest version. A table without retention has one version, the last arrival.

Source: KIP-914 "Proposed changes"; spec/stream_table, spec/versioned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.grouping import by_group_and_time
from dovetail.arrays.search import bisect, last_below
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Timeline

LATEST = int(np.iinfo(np.int64).max)
"""As a time: whatever the latest version is."""


@dataclass(frozen=True)
class Versions:
    """The versions that one source's records of a batch make, by (group, time, arrival).

    ``event``: int64[n], their events in the timeline; ``start``: int64[groups + 1], where each
    group's begin; ``time_us``, ``arrival``: int64[n].
    """

    event: Ints
    start: Ints
    time_us: Ints
    arrival: Ints


def within_retention(timeline: Timeline, source: int, clock_us: Ints, retention_us: int) -> Mask:
    """Whether each event is a record of ``source`` that its history still takes; ``clock_us``: the
    source's stream time as each event comes.
    """
    own: Mask = timeline.source == source
    horizon_us = np.where(clock_us == NO_TIME, NO_TIME, clock_us - retention_us)
    return own & (timeline.event_time_us >= horizon_us)


def newest(timeline: Timeline, counted: Mask, stored_time_us: Ints) -> Mask:
    """Which of the ``counted`` events are the latest version of their key when they arrive.

    ``stored_time_us``: int64[groups], the time of the latest version stored, ``NO_TIME`` for none.
    """
    time = timeline.event_time_us
    times, rank = np.unique(time, return_inverse=True)
    highest = np.where(counted, rank + 1, 0) + timeline.group * (len(times) + 1)
    before = np.append(0, np.maximum.accumulate(highest)[:-1])
    not_older = rank + 1 + timeline.group * (len(times) + 1) >= before
    return counted & not_older & (time >= stored_time_us[timeline.group])


def batch_versions(timeline: Timeline, counted: Mask) -> Versions:
    """The versions that the ``counted`` events make."""
    event = np.flatnonzero(counted)
    event = event[by_group_and_time(timeline.group[event], timeline.event_time_us[event])]
    return Versions(
        event,
        np.searchsorted(timeline.group[event], np.arange(timeline.groups + 1)),
        timeline.event_time_us[event],
        timeline.arrival[event],
    )


def as_of(versions: Versions, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
    """For each query the batch's version that stood at ``time_us``, among those that had arrived
    before ``arrival``: its event, or ABSENT. Of versions of one time the last to arrive.
    """
    if len(versions.event) == 0:
        return np.full(len(group), ABSENT)
    first = versions.start[group]
    end = bisect(versions.time_us, first, versions.start[group + 1], time_us, right=True)
    found = last_below(versions.arrival, first, end, arrival)
    return np.where(found == ABSENT, ABSENT, versions.event[found])
