"""The eventual delta join: what a micro-batch's changes of two tables do to their join, where the
tables' other rows are looked up instead of stored.

A *group* is one value of the join key. Of each side and group there are rows of two kinds: *fresh*
ones, which the batch brings, the last of each primary key; and those that a look-up found, less the
ones that fresh rows replace. A fresh row may be *gone*: a tombstone. With A' the left rows that are
not gone and B' the right ones, the batch gives ΔA⋈B' + A'⋈ΔB, each pair once, and takes back what
these changes end. A row that stands alone, in a join that preserves its side, is a result, too; it
comes when the other side of its group is empty, and is taken back when the other side gains a row.

Three forms say what a result's key is:

- ``"pair"``: both primary keys. Many rows of a group may meet many.
- ``"left"``: the left primary key, where the join key is the whole right primary key, so that a
  left row has at most one match. A left row's result replaces the one before it, matched or not.
- ``"key"``: the join key, where it is the whole primary key of both sides. A group is one result,
  a function of at most one row of each side.

There is at most one result per result key, so results have no order among themselves.
Source: FLIP-486 "Delta Join with Eventual Consistency"; docs/delta_joins.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.search import expand
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask
from dovetail.laws.table_join import How, preserved

Form: TypeAlias = Literal["pair", "left", "key"]
NO_GROUP = -1
"""The group of a row with a null in its join key: it meets nothing."""


@dataclass(frozen=True)
class Rows:
    """n rows of one side: ``group``: int64[n]; ``fresh``, ``gone``: bool[n], gone rows are fresh;
    ``time_us``: int64[n], event time, ``NO_TIME`` for a row that was looked up.
    """

    group: Ints
    fresh: Mask
    gone: Mask
    time_us: Ints

    @property
    def alive(self) -> Mask:
        """Rows that the table has after the batch."""
        return ~self.gone


@dataclass(frozen=True)
class Results:
    """m results: the ``row`` of each side that gives values and keys, ABSENT for none; ``group``:
    the join key's, where that is the result's key; ``deleted``: a tombstone; ``time_us``.
    """

    row: tuple[Ints, Ints]
    group: Ints
    deleted: Mask
    time_us: Ints

    def __len__(self) -> int:
        return len(self.deleted)


def needed(
    groups: int, sides: tuple[Rows, Rows], how: How, unique: tuple[bool, bool]
) -> tuple[Mask, Mask]:
    """Of which groups each side's other rows have to be known, given the fresh rows of both.

    Those with fresh rows on the other side; and, where the other side is preserved, those that
    lose rows, for they may now be empty. Of a side whose rows are ``unique`` by join key a fresh
    row is all there is.
    """
    touched = [_marked(groups, side.group) for side in sides]
    lost = [_marked(groups, side.group[side.gone]) for side in sides]
    first, second = (
        (touched[1 - s] | (lost[s] & preserved(how)[1 - s])) & ~(touched[s] & unique[s])
        for s in (0, 1)
    )
    return first, second


def delta_join(
    groups: int, sides: tuple[Rows, Rows], how: How, form: Form, *, moving: bool
) -> Results:
    """The results of a batch.

    ``moving``: whether a left row may change its join key (form ``"left"``, left side preserved or
    inner): then one that meets nothing may have met something before, and takes it back.
    """
    if form == "key":
        return _by_key(groups, sides, how)
    parts = [_pairs(groups, sides, retracting=form == "pair")]
    if form == "pair":
        parts += [_alone(groups, sides, s) for s in (0, 1) if preserved(how)[s]]
    else:
        parts.append(_unmatched(groups, sides, preserved=preserved(how)[0], moving=moving))
        if preserved(how)[1]:
            parts.append(_alone(groups, sides, 1))
    return _concatenated(parts)


def key_rows(results: Results, form: Form) -> tuple[Ints, Ints]:
    """The rows that give a result's key, of form ``"pair"`` or ``"left"``: the left row, and the
    right one where the left row does not tell its results apart.
    """
    left, right = results.row
    return left, right if form == "pair" else np.where(left == ABSENT, right, ABSENT)


def match(group: Ints, rows: Ints, others: Ints, groups: int) -> tuple[Ints, Ints]:
    """All pairs of one of ``rows`` and one of the rows with the groups ``others`` that have its
    group: two arrays of row numbers. Rows without a group meet nothing.

    >>> match(np.array([0, 1, 1]), np.array([0, 2]), np.array([1, 0, 1]), 2)
    (array([0, 2, 2]), array([1, 0, 2]))
    """
    order = np.argsort(others, kind="stable")
    edges = np.searchsorted(others[order], np.arange(groups + 1))
    own = rows[group[rows] != NO_GROUP]
    which, place = expand(edges[group[own]], edges[group[own] + 1])
    return own[which], order[place]


def _pairs(groups: int, sides: tuple[Rows, Rows], *, retracting: bool) -> Results:
    """Rows that meet, at least one of them fresh; ``retracting``: also those of which one is gone,
    as tombstones.
    """
    left, right = sides
    emitted = [np.ones(len(s.group), np.bool_) if retracting else s.alive for s in sides]
    old = np.flatnonzero(~left.fresh)
    other = np.where(emitted[1], right.group, NO_GROUP)
    new_pairs = match(left.group, np.flatnonzero(left.fresh & emitted[0]), other, groups)
    fresh_other = np.where(right.fresh, other, NO_GROUP)
    old_pairs = match(left.group, old, fresh_other, groups)
    row = tuple(np.concatenate(both) for both in zip(new_pairs, old_pairs, strict=True))
    return Results(
        row=(row[0], row[1]),
        group=left.group[row[0]],
        deleted=left.gone[row[0]] | right.gone[row[1]],
        time_us=np.maximum(left.time_us[row[0]], right.time_us[row[1]]),
    )


def _alone(groups: int, sides: tuple[Rows, Rows], side: int) -> Results:
    """Rows of a preserved side by themselves: there while the other side of their group is empty,
    taken back when it gains a row.
    """
    own, other = sides[side], sides[1 - side]
    empty = ~_at(_marked(groups, other.group[other.alive]), own.group)
    touched = _at(_marked(groups, other.group[other.fresh]), own.group)
    gained = _at(_marked(groups, other.group[other.fresh & other.alive]), own.group)
    there = own.alive & empty & (own.fresh | touched)
    taken = own.gone | (own.alive & gained)
    rows = np.flatnonzero(there | taken)
    absent = np.full(len(rows), ABSENT)
    return Results(
        row=(rows, absent) if side == 0 else (absent, rows),
        group=own.group[rows],
        deleted=taken[rows],
        time_us=np.maximum(own.time_us[rows], _time_of(groups, other, own.group[rows])),
    )


def _unmatched(groups: int, sides: tuple[Rows, Rows], *, preserved: bool, moving: bool) -> Results:
    """Left rows that meet no right row, or are gone: of form ``"left"``."""
    left, right = sides
    empty = ~_at(_marked(groups, right.group[right.alive]), left.group)
    touched = _at(_marked(groups, right.group[right.fresh]), left.group)
    emitted = touched | (left.fresh & (preserved or moving))
    rows = np.flatnonzero(left.gone | (left.alive & empty & emitted))
    return Results(
        row=(rows, np.full(len(rows), ABSENT)),
        group=left.group[rows],
        deleted=left.gone[rows] | (not preserved),
        time_us=np.maximum(left.time_us[rows], _time_of(groups, right, left.group[rows])),
    )


def _by_key(groups: int, sides: tuple[Rows, Rows], how: How) -> Results:
    """One result per group that has a fresh row; a tombstone only where a row is gone."""
    touched, lost = np.zeros(groups, np.bool_), np.zeros(groups, np.bool_)
    row, time_us = [], np.full(groups, NO_TIME)
    for side in sides:
        touched[side.group[side.fresh]] = True
        lost[side.group[side.gone]] = True
        time_us = np.maximum(time_us, _time_of(groups, side, np.arange(groups)))
        alive = np.flatnonzero(side.alive)
        own = np.full(groups, ABSENT)
        own[side.group[alive]] = alive
        row.append(own)
    here = [own != ABSENT for own in row]
    kept = (here[0] & here[1]) | (here[0] & preserved(how)[0]) | (here[1] & preserved(how)[1])
    emitted = np.flatnonzero(touched & (kept | lost))
    return Results((row[0][emitted], row[1][emitted]), emitted, ~kept[emitted], time_us[emitted])


def _marked(groups: int, of: Ints) -> Mask:
    """Which groups occur among ``of``."""
    marked = np.zeros(groups, dtype=np.bool_)
    marked[of[of != NO_GROUP]] = True
    return marked


def _at(of_groups: Mask, group: Ints) -> Mask:
    """What groups have, per row; rows without a group have it not."""
    return np.append(of_groups, False)[group]


def _time_of(groups: int, side: Rows, group: Ints) -> Ints:
    """The largest time among a side's fresh rows in each of these groups."""
    time_us = np.full(groups + 1, NO_TIME)
    rows = np.flatnonzero(side.fresh & (side.group != NO_GROUP))
    np.maximum.at(time_us, side.group[rows], side.time_us[rows])
    return time_us[group]


def _concatenated(parts: Sequence[Results]) -> Results:
    return Results(
        row=(
            np.concatenate([part.row[0] for part in parts]),
            np.concatenate([part.row[1] for part in parts]),
        ),
        group=np.concatenate([part.group for part in parts]),
        deleted=np.concatenate([part.deleted for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
    )
