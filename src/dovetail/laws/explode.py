"""A table's array as rows of their own.

A change of a row says its elements before and after. Those that are there no longer leave. The
others come, also those that were there: the row's other values, or its time, may be new.

Source: Spark, ``explode`` and ``posexplode``, of the table's rows; spec/view/rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask


@dataclass(frozen=True)
class Elements:
    """The elements of m changes' arrays, n in all.

    ``change``: int64[n], the change of each; ``is_new``: bool[n], whether the array is the one
    after the change; ``place``: int64[n], where in it; ``number``: int64[n], by what the element is
    known among those of its row.
    """

    change: Ints
    is_new: Mask
    place: Ints
    number: Ints

    def where(self, which: Ints | Mask) -> Elements:
        """Some of the elements."""
        return Elements(
            self.change[which], self.is_new[which], self.place[which], self.number[which]
        )

    def known_by(self, row: Ints) -> Ints:
        """A number for each element that is the same where row and element are: int64[n].
        ``row``: int64[m], the row of each change.
        """
        known: Ints = row[self.change] * (self.number.max(initial=0) + 1) + self.number
        return known

    @property
    def repeated(self) -> Mask:
        """Which elements are in their array before: bool[n]."""
        order = np.lexsort((self.place, self.number, self.is_new, self.change))
        same = [np.diff(part[order]) == 0 for part in (self.change, self.is_new, self.number)]
        repeated = np.zeros(len(order), np.bool_)
        repeated[order[1:]] = np.logical_and.reduce(same)
        return repeated


def emitted(elements: Elements, arrival: Ints) -> Ints:
    """The elements that changes say, in order: those that leave, then those that come.
    ``arrival``: int64[m], the order of the changes.
    """
    known = elements.known_by(np.arange(len(arrival)))
    stays = ~elements.is_new & np.isin(known, known[elements.is_new])
    said = np.flatnonzero(~stays)
    part = elements.where(said)
    ordered: Ints = said[np.lexsort((part.place, part.is_new, arrival[part.change]))]
    return ordered


def last_of_each(known: Ints) -> Ints:
    """The last place of each number, ascending."""
    places = len(known) - 1 - np.unique(known[::-1], return_index=True)[1]
    return np.sort(places)
