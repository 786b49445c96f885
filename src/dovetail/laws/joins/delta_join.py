"""The eventual delta join: the changes of a join, from a micro-batch's changes of its two tables.
The tables' other rows are looked up instead of stored.

A *group* is one value of the join key. Each side of a group has two kinds of rows: *fresh* rows of
the batch, the last of each primary key, and looked-up rows that no fresh row replaces. A fresh row
may be *gone*: a tombstone. Let A' be the left rows that are not gone, and B' the right ones. The
batch gives ΔA⋈B' + A'⋈ΔB, each pair once, and retracts results that these changes end.

If the join preserves a side, its rows without a match are results, too. Such a result comes when
the other side of its group is empty. It is retracted when the other side gains a row.

The *form* defines the key of a result:

| form     | result key             | requires                                              |
|----------|------------------------|-------------------------------------------------------|
| ``pair`` | both primary keys      | nothing; a row may match many                         |
| ``left`` | the left primary key   | the join key is the whole right primary key           |
| ``key``  | the join key           | the join key is the whole primary key of both sides   |

In form ``left`` a left row has at most one match, and its result replaces its former one, matched
or not. In form ``key`` a group has one result, a function of at most one row of each side.

There is at most one result per result key, so results need no order among themselves. Source:
FLIP-486 "Delta Join with Eventual Consistency"; docs/joins/delta_join.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.search import expand_ranges
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask
from dovetail.laws.joins.table_join import How, sides_preserved

Form: TypeAlias = Literal["pair", "left", "key"]
NO_GROUP = -1
"""The group of a row with a null in its join key: it matches no row."""


@dataclass(frozen=True)
class SideRows:
    """The n rows of one side of a delta join that a micro-batch concerns."""

    group: Ints
    """int64[n]: the index of the row's join key, or ``NO_GROUP`` (-1)."""
    fresh: Mask
    """bool[n]: the row comes with the batch."""
    gone: Mask
    """bool[n]: the row is a tombstone. Gone rows are fresh."""
    time_us: Ints
    """int64[n]: event time, ``NO_TIME`` for a row that was looked up."""

    @property
    def alive(self) -> Mask:
        """The mask of the rows that their table has after the batch, all but the gone ones:
        bool[n].
        """
        return ~self.gone


@dataclass(frozen=True)
class Results:
    """The m results of a batch, in no order."""

    row: tuple[Ints, Ints]
    """The row of each side that gives values and keys, ABSENT for none: int64[m] each."""
    group: Ints
    """int64[m]: the join key's group, used where it is the result key."""
    deleted: Mask
    """bool[m]: the result is a tombstone."""
    time_us: Ints
    """int64[m]: event time, the largest of the fresh rows that take part."""

    def __len__(self) -> int:
        """Return the count of results."""
        return len(self.deleted)


def groups_to_look_up(
    groups: int, sides: tuple[SideRows, SideRows], how: How, unique: tuple[bool, bool]
) -> tuple[Mask, Mask]:
    """Return masks of the groups whose other rows must be looked up, on the left and on the right:
    bool[groups] each. A group is a value of the join key.

    A side is looked up in groups with fresh rows on the other side. If ``how`` preserves the other
    side, groups in which this side loses rows count, too, for it may now be empty.

    ``groups``: the count of groups. ``sides``: the fresh rows of left and right, those of the
    batch, each with its ``group`` and true in ``gone`` for a tombstone. ``unique``: for each side
    True if its rows are unique by join key. Then a group with a fresh row of that side needs no
    lookup there.
    """
    touched = [_groups_with_members(groups, side.group) for side in sides]
    lost = [_groups_with_members(groups, side.group[side.gone]) for side in sides]
    first, second = (
        (touched[1 - s] | (lost[s] & sides_preserved(how)[1 - s])) & ~(touched[s] & unique[s])
        for s in (0, 1)
    )
    return first, second


def delta_join(
    groups: int,
    sides: tuple[SideRows, SideRows],
    how: How,
    form: Form,
    *,
    moving: bool,
    deletes: tuple[bool, bool],
) -> Results:
    """Return the results of a batch, in no order. The sides' rows are those of the batch (fresh),
    and those looked up in stores. A result's time is the largest of the fresh rows that take part.

    - ``groups``: the count of join keys.
    - ``sides``: the rows of left and right, each with its join key (``group``), ``fresh``, ``gone``
      for a tombstone, and its time. A result has the index of a row of each side, ABSENT for none.
    - ``how``: the kind of join: ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``.
    - ``form``: the key of a result. ``"pair"``: both primary keys. ``"left"``: the left primary
      key; a left row has at most one match. ``"key"``: the join key; a group has at most one row of
      each side.
    - ``moving``: a left row may change its join key (form ``"left"``, inner or left preserved).
      Then a fresh left row without a match is emitted, because it may have had a match before. Its
      result is a row if the left is preserved, else a tombstone.
    - ``deletes``: for each side, True if its rows may be deleted.

    A left join of form ``pair``, one group; right row r0 is fresh and gone, and is the only one:

    | left row        | pair with r0 | alone     |
    |-----------------|--------------|-----------|
    | l0, looked up   | tombstone    | row       |
    | l1, fresh       | tombstone    | row       |
    | l2, fresh, gone | tombstone    | tombstone |
    """
    if form == "key":
        return _results_by_key(groups, sides, how)
    parts = [_pair_results(groups, sides, retracting=form == "pair")]
    if form == "pair":
        parts += [
            _unmatched_results(groups, sides, side, deletes=deletes[side])
            for side in (0, 1)
            if sides_preserved(how)[side]
        ]
    else:
        parts.append(
            _unmatched_left_results(groups, sides, preserved=sides_preserved(how)[0], moving=moving)
        )
        if sides_preserved(how)[1]:
            parts.append(_unmatched_results(groups, sides, 1, deletes=deletes[1]))
    return _concatenate_results(parts)


def key_rows(results: Results, form: Form) -> tuple[Ints, Ints]:
    """Return the left and the right row that give the key of each result: int64[results] each, row
    indices, ABSENT for none.

    ``form``: the key of a result. ``"pair"``, both primary keys, uses both rows as they are.
    ``"left"``, the left primary key, uses the right row only if there is no left one. It must not
    be ``"key"``.
    """
    left, right = results.row
    return left, right if form == "pair" else np.where(left == ABSENT, right, ABSENT)


def matching_pairs(group: Ints, rows: Ints, others: Ints, groups: int) -> tuple[Ints, Ints]:
    """Return all pairs of a row of ``rows`` and a row of the other side in the same group: two
    int64 arrays of row indices. Pairs lie in the order of ``rows``, then ascending by the other
    row. An index that is twice in ``rows`` gives its pairs twice.

    ``group``, ``others``: the group of each row of the two sides, ``NO_GROUP`` (-1) for a row that
    matches nothing. ``rows``: int64, indices into ``group``. ``groups``: the count of groups.

    >>> matching_pairs(np.array([0, 1, 1]), np.array([0, 2]), np.array([1, 0, 1]), 2)
    (array([0, 2, 2]), array([1, 0, 2]))
    """
    order = np.argsort(others, kind="stable")
    edges = np.searchsorted(others[order], np.arange(groups + 1))
    grouped_row = rows[group[rows] != NO_GROUP]
    which, sorted_index = expand_ranges(edges[group[grouped_row]], edges[group[grouped_row] + 1])
    return grouped_row[which], order[sorted_index]


def _pair_results(groups: int, sides: tuple[SideRows, SideRows], *, retracting: bool) -> Results:
    """Return the pairs of a left and a right row of one group, of which at least one is fresh (of
    the batch). Pairs with a gone row (a tombstone) are tombstones if ``retracting``, else left out.

    Pairs of fresh left rows come first, then those of looked-up left rows with fresh right ones.
    ``groups``: the count of groups. ``sides``: the left and the right rows.
    """
    left, right = sides
    emitted = [np.ones(len(s.group), np.bool_) if retracting else s.alive for s in sides]
    old = np.flatnonzero(~left.fresh)
    other = np.where(emitted[1], right.group, NO_GROUP)
    new_pairs = matching_pairs(left.group, np.flatnonzero(left.fresh & emitted[0]), other, groups)
    fresh_other = np.where(right.fresh, other, NO_GROUP)
    old_pairs = matching_pairs(left.group, old, fresh_other, groups)
    row = tuple(np.concatenate(side_rows) for side_rows in zip(new_pairs, old_pairs, strict=True))
    return Results(
        row=(row[0], row[1]),
        group=left.group[row[0]],
        deleted=left.gone[row[0]] | right.gone[row[1]],
        time_us=np.maximum(left.time_us[row[0]], right.time_us[row[1]]),
    )


# A right join of one group. The store is ahead of the changelogs, so a row may go and come unseen:
#
# | batch | changes | the store has | alone | pair |
# |---|---|---|---|---|
# | 1 | r0 | r0 | r0 | |
# | 2 | l0 | l0; r0 is deleted | r0: l0 finds no row to retract | |
# | 3 | r0 deleted, r0 | l0, r0 | r0 is retracted, for it may have been alone | l0 r0 |
def _unmatched_results(
    groups: int, sides: tuple[SideRows, SideRows], side: int, *, deletes: bool
) -> Results:
    """Return the results without a match that the batch changes, of the preserved ``side``: 0 for
    the left, 1 for the right. They lie in the order of its rows.

    A row is emitted alone if the other side of its group is empty. The row must be fresh (of the
    batch), or the other side must have fresh rows. The row alone is retracted if it is gone (a
    tombstone), or if the other side gains a row. That holds even if it never was emitted alone.
    With ``deletes``, rows of the side may be deleted. A fresh row with a match is then retracted,
    too. ``groups``: the count of groups. ``sides``: the left and the right rows.
    """
    preserved_side, other = sides[side], sides[1 - side]
    empty = ~_flag_of_rows(
        _groups_with_members(groups, other.group[other.alive]), preserved_side.group
    )
    touched = _flag_of_rows(
        _groups_with_members(groups, other.group[other.fresh]), preserved_side.group
    )
    gained = _flag_of_rows(
        _groups_with_members(groups, other.group[other.fresh & other.alive]), preserved_side.group
    )
    there = preserved_side.alive & empty & (preserved_side.fresh | touched)
    came_again = preserved_side.fresh & ~empty & deletes
    taken = preserved_side.gone | (preserved_side.alive & (gained | came_again))
    rows = np.flatnonzero(there | taken)
    absent = np.full(len(rows), ABSENT)
    return Results(
        row=(rows, absent) if side == 0 else (absent, rows),
        group=preserved_side.group[rows],
        deleted=taken[rows],
        time_us=np.maximum(
            preserved_side.time_us[rows],
            _latest_fresh_time(groups, other, preserved_side.group[rows]),
        ),
    )


def _unmatched_left_results(
    groups: int, sides: tuple[SideRows, SideRows], *, preserved: bool, moving: bool
) -> Results:
    """Return results for the left rows that are gone (tombstones) or have no match, in order. The
    key of a result is the left primary key. Gone rows give tombstones; the others too, unless left
    rows are ``preserved``.

    Of rows without a match only some are emitted: those whose group has fresh right rows (rows of
    the batch) and, if ``preserved`` or ``moving``, all fresh ones. ``moving``: a left row may
    change its join key. ``groups``: the count of groups. ``sides``: the left and the right rows.
    """
    left, right = sides
    empty = ~_flag_of_rows(_groups_with_members(groups, right.group[right.alive]), left.group)
    touched = _flag_of_rows(_groups_with_members(groups, right.group[right.fresh]), left.group)
    emitted = touched | (left.fresh & (preserved or moving))
    rows = np.flatnonzero(left.gone | (left.alive & empty & emitted))
    return Results(
        row=(rows, np.full(len(rows), ABSENT)),
        group=left.group[rows],
        deleted=left.gone[rows] | (not preserved),
        time_us=np.maximum(left.time_us[rows], _latest_fresh_time(groups, right, left.group[rows])),
    )


def _results_by_key(groups: int, sides: tuple[SideRows, SideRows], how: How) -> Results:
    """Return at most one result per group with a fresh row (one of the batch), in the order of
    groups. The key of a result is the join key. A group without a joined row gives a tombstone if a
    side lost a row, else nothing.

    ``groups``: the count of groups. ``sides``: the left and the right rows; each row has a group,
    and each side at most one row of a group. ``how``: the kind of join.
    """
    touched, lost = np.zeros(groups, np.bool_), np.zeros(groups, np.bool_)
    row, time_us = [], np.full(groups, NO_TIME)
    for side in sides:
        touched[side.group[side.fresh]] = True
        lost[side.group[side.gone]] = True
        time_us = np.maximum(time_us, _latest_fresh_time(groups, side, np.arange(groups)))
        alive = np.flatnonzero(side.alive)
        row_by_group = np.full(groups, ABSENT)
        row_by_group[side.group[alive]] = alive
        row.append(row_by_group)
    here = [row_by_group != ABSENT for row_by_group in row]
    is_present = (
        (here[0] & here[1])
        | (here[0] & sides_preserved(how)[0])
        | (here[1] & sides_preserved(how)[1])
    )
    emitted = np.flatnonzero(touched & (is_present | lost))
    return Results(
        (row[0][emitted], row[1][emitted]), emitted, ~is_present[emitted], time_us[emitted]
    )


def _groups_with_members(groups: int, members: Ints) -> Mask:
    """Return a mask of the groups that have a row: bool[groups]. ``members``: the group of each
    row, ``NO_GROUP`` (-1) for a row without one, which counts nowhere.
    """
    marked = np.zeros(groups, dtype=np.bool_)
    marked[members[members != NO_GROUP]] = True
    return marked


def _flag_of_rows(of_groups: Mask, group: Ints) -> Mask:
    """Return the flag of each row's group: bool[rows], false for a row without a group.
    ``of_groups``: bool[groups]. ``group``: int64[rows], the group of each row, ``NO_GROUP`` (-1)
    for none.
    """
    return np.append(of_groups, False)[group]


def _latest_fresh_time(groups: int, side: SideRows, group: Ints) -> Ints:
    """Return the largest time in microseconds among a side's fresh rows of each group in ``group``:
    int64, one per element, ``NO_TIME`` without such rows and for ``NO_GROUP``. ``groups``: the
    count of all groups.
    """
    time_us = np.full(groups + 1, NO_TIME)
    rows = np.flatnonzero(side.fresh & (side.group != NO_GROUP))
    np.maximum.at(time_us, side.group[rows], side.time_us[rows])
    return time_us[group]


def _concatenate_results(parts: Sequence[Results]) -> Results:
    """Return the results of all parts, at least one, one after the other."""
    return Results(
        row=(
            np.concatenate([part.row[0] for part in parts]),
            np.concatenate([part.row[1] for part in parts]),
        ),
        group=np.concatenate([part.group for part in parts]),
        deleted=np.concatenate([part.deleted for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
    )
