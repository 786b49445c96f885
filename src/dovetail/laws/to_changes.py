"""The rows before and after each change of a table (``ToChanges``).

A change that leaves a row as it was is none. Any other says the row that was there, if there was
one, then the one that is there, if there is one: a row that comes is ``INSERT``, one that is
replaced ``BEFORE`` and its successor ``AFTER``, one that goes ``DELETE``.

Source: Flink, the changelog of a table with update-before rows; spec/view/changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask

INSERT, BEFORE, AFTER, DELETE = range(4)


@dataclass(frozen=True)
class Said:
    """Of m changes: ``before``, ``after``: bool[m], whether the former row is said, and whether the
    present one; ``kind_before``, ``kind_after``: int64[m], as what.
    """

    before: Mask
    after: Mask
    kind_before: Ints
    kind_after: Ints


def said(old: Mask, new: Mask, same: Mask) -> Said:
    """What m changes say: bool[m] each, whether there is a row before and after, and whether both
    have the same values.
    """
    changed = ~(old & new & same)
    return Said(
        old & changed,
        new & changed,
        np.where(new, BEFORE, DELETE),
        np.where(old, AFTER, INSERT),
    )
