"""Stars: what one table joined with several others by foreign keys emits.

The law is that of the joins one after the other (``laws.joins.foreign_key_join``). A *moment* is
what one record does to one row of the fact: a change of the row itself, together with the rows that
it now refers to, or the change of a row that it refers to. Each moment passes through the joins in
their order. A join has its left row from the joins before it.

- A record of the fact, or of an earlier dimension, changes the left row from ``old`` to ``new``.
  The join emits the joined row if there is a right row or left rows are preserved. Otherwise it
  emits a tombstone if the left row is gone, or has got another foreign key.
- A record of the join's own dimension gives a result if there is a left row: the joined row, or a
  tombstone if the right row is gone and left rows are not preserved.
- A record of a later dimension changes nothing here.

A result's time is the larger of the record's and of those of the right rows that it meets on its
way. Only joins after the record's own dimension have such rows.

Orders with customers, ``how="inner"``, then with products, ``how="left"``:

| record                   | after customers | after products    | emitted           |
|--------------------------|-----------------|-------------------|-------------------|
| order 1: ann, pen at 1   | nothing         | nothing           |                   |
| product pen: 2 EUR at 2  | no left row     | no left row       |                   |
| customer ann: Rome at 3  | 1: ann, Rome    | 1: Rome, 2 EUR    | 1: Rome, 2 EUR @3 |
| order 1: ann, ink at 4   | 1: ann, Rome    | 1: Rome, null     | 1: Rome, null @4  |
| customer ann: gone at 5  | tombstone       | tombstone         | tombstone @5      |

Source: KIP-213 "Tombstones & Foreign Key Changes"; spec/foreign_key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask


@dataclass(frozen=True)
class Reference:
    """One dimension at m moments: bool[m] or int64[m] each."""

    left_preserved: bool
    """The join keeps left rows without a right row."""
    was_named: Mask
    """The row before had a foreign key, not null. Any value where there was no row."""
    is_named: Mask
    """The row after the moment has a foreign key, not null; any value where there is no row."""
    moved: Mask
    """The two foreign keys differ."""
    before: Mask
    """There was a right row before the moment."""
    after: Mask
    """There is a right row after the moment."""
    before_us: Ints
    """The time of the right row before; any value for none."""
    after_us: Ints
    """The time of the right row after; any value for none."""


@dataclass(frozen=True)
class StarResults:
    """The results of m moments."""

    emits: Mask
    """The moment has a result."""
    present: Mask
    """The result is a row, not a tombstone."""
    time_us: Ints
    """int64[m]: the time of the result; of no meaning for none."""


def star_results(
    old: Mask, new: Mask, time_us: Ints, origin: Ints, references: Sequence[Reference]
) -> StarResults:
    """Return for each of m moments the result after all joins: is there one (``emits``), is it a
    row (``present``), its time. A *moment* is one record's effect on one row of the fact, the table
    that the dimensions are joined to.

    ``old``, ``new``: bool[m], there is a row of the fact before, after. ``time_us``: int64[m], the
    time of each record in microseconds. ``origin``: int64[m], 0 for a record of the fact, n for one
    of dimension n, from 1. ``references``: the dimensions in the order of the joins. Each says
    before and after each moment if the fact has a foreign key and the dimension a row for it.

    A result's time is the largest of the record's and of the rows that it meets in dimensions after
    its own. For a record of the fact these are all dimensions. For a dimension's record the times
    of the fact's row and of earlier dimensions do not count.
    """
    emits = origin == 0
    for dimension_number, reference in enumerate(references, start=1):
        keeps = reference.left_preserved
        named, names = old & (reference.was_named | keeps), new & (reference.is_named | keeps)
        joined = names & (reference.after | keeps)
        moves = named & names & reference.moved
        ends = named & ~names
        answers, passes = origin == dimension_number, origin < dimension_number
        emits = (answers & names) | (passes & (joined | (names & moves) | ends))
        meets = passes & np.where(names, reference.after, ends & reference.before & (not keeps))
        met_us = np.where(names, reference.after_us, reference.before_us)
        time_us = np.where(meets, np.maximum(time_us, met_us), time_us)
        old, new = named & (reference.before | keeps), joined
    return StarResults(emits, new, time_us)


def row_before(present: Mask, references: Sequence[Reference]) -> Mask:
    """Return a mask of the moments before which the joined row is there: bool[m]. A moment is one
    record's effect on one row of the fact, the table that the dimensions are joined to.

    ``present``: bool[m], there is a row of the fact before. ``references``: one per dimension. Each
    says before every moment if the fact has a foreign key and the dimension a row for it.
    """
    for reference in references:
        keeps = reference.left_preserved
        present = present & ((reference.was_named & reference.before) | keeps)
    return present
