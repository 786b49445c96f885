"""A table's array as rows of their own.

A change of a row has an array before and an array after. Elements that are no longer in the array
leave. All elements of the new array are emitted, even unchanged ones, because the row's other
values or its time may be new.

Source: Spark, ``explode`` and ``posexplode``, of the table's rows; spec/view/rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask


@dataclass(frozen=True)
class Elements:
    """The n elements in the arrays of m changes."""

    change: Ints
    """int64[n]: the change that the element belongs to."""
    is_new: Mask
    """bool[n]: the element is in the array after the change, not before it."""
    place: Ints
    """int64[n]: the index in its array."""
    number: Ints
    """int64[n]: the identity of the element, equal for equal elements of one row."""

    def select(self, which: Ints | Mask) -> Elements:
        """Return the elements that ``which`` selects by indices or flags, in that order."""
        return Elements(
            self.change[which], self.is_new[which], self.place[which], self.number[which]
        )

    def element_ids(self, row: Ints) -> Ints:
        """Return an id per element, equal for equal elements of one row and different for all
        others: int64[n]. Elements are equal if their ``number`` is. ``row``: int64[m], the row to
        which each of the m changes belongs.
        """
        element_id: Ints = row[self.change] * (self.number.max(initial=0) + 1) + self.number
        return element_id

    @property
    def repeated(self) -> Mask:
        """The mask of the elements that equal an earlier element of the same array, by their
        ``number``: bool[n]. The first of equal elements is not among them. Old and new array of a
        change are separate arrays.
        """
        order = np.lexsort((self.place, self.number, self.is_new, self.change))
        same = [np.diff(part[order]) == 0 for part in (self.change, self.is_new, self.number)]
        repeated = np.zeros(len(order), np.bool_)
        repeated[order[1:]] = np.logical_and.reduce(same)
        return repeated


def elements_to_emit(elements: Elements, arrival: Ints) -> Ints:
    """Return the indices of the elements to emit, int64, by the arrival of their change. Within a
    change, elements that leave come before those of the new array, each in the order of its array.
    ``elements``: those of the arrays before and after each of m changes.

    All elements of the new array are emitted, even unchanged ones. An old element that is also in
    the new array is not emitted as leaving. ``arrival``: int64[m], distinct, the order of the m
    changes.
    """
    element_id = elements.element_ids(np.arange(len(arrival)))
    stays = ~elements.is_new & np.isin(element_id, element_id[elements.is_new])
    changed = np.flatnonzero(~stays)
    part = elements.select(changed)
    ordered: Ints = changed[np.lexsort((part.place, part.is_new, arrival[part.change]))]
    return ordered
