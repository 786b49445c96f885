"""The two ways of a step, and the estimate by which one of them is taken. No Spark job is needed.

A step merges what has changed, or computes the whole join again and overwrites the target. The
second way costs what it has cost before. The first way is estimated as a part of that:

    changes / all  =  f · (READ + ROW · share)

``share``: about which share of the target's rows changes. ``READ``: a step looks for rows with the
keys that have changed all over the tables, and does not write them. ``ROW``: a changed row costs
more than one of the batch join. ``f`` is what earlier steps of the target took, as a part of this
estimate; 1 before there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["changes", "all"]

READ, ROW = 0.75, 5.0
"""The part of the whole join's time that a step takes if hardly any row changes, and what each
share of changed rows adds to it. Both are guesses, for tables so large that the number of Spark
jobs does not matter. The first steps of a target correct them.
"""
STEPS_MAX = 3
"""The number of steps of each way whose times count: the last ones."""


@dataclass(frozen=True)
class RefreshStep:
    """One step that refreshes a target, as the record of its commit describes it."""

    way: Way
    """``"changes"`` if changed rows are merged, ``"all"`` if the target is overwritten."""
    share: float
    """The estimated share of the target's rows that change, from 0 to 1."""
    size: int
    """The bytes of all sources' data files; 0 if they are not known."""
    started_ms: int
    """The time at which the step began, in milliseconds since 1970."""


@dataclass(frozen=True)
class Took:
    """An earlier step, and the seconds from its begin to its commit."""

    step: RefreshStep
    seconds: float


@dataclass(frozen=True)
class Choice:
    """The way that a step takes, and the reason for it as a text for people."""

    way: Way
    reason: str


def choose(share: float, earlier: Sequence[Took]) -> Choice:
    """Return the cheaper way of a step, with the estimate as its reason.

    ``share``: the part of the target's rows that changes, from 0 to 1. ``earlier``: steps of this
    target, the latest first; they correct the estimate. Equal costs give ``"changes"``.
    """
    part = (READ + ROW * share) * _factor(earlier)
    reason = (
        f"about {share:.2%} of the rows change, and to merge them is estimated at {part:.2f} of "
        "the time that all rows take"
    )
    return Choice("all" if part > 1 else "changes", reason)


def _factor(earlier: Sequence[Took]) -> float:
    """Return the factor by which earlier merges took longer than estimated, relative to overwrites.

    It compares medians of the latest ``STEPS_MAX`` steps of each way. It is 1 until both ways have
    a step. ``earlier``: the latest step first.
    """
    rates = []
    for way in ("changes", "all"):
        steps = [took for took in earlier if took.step.way == way][:STEPS_MAX]
        if not steps:
            return 1
        rates.append(median(took.seconds / _estimated(took.step) for took in steps))
    return rates[0] / rates[1]


def _estimated(step: RefreshStep) -> float:
    """Return the estimated time of a step. The unit is the time to read and write one byte. A step
    without a known size counts as one byte.
    """
    part = READ + ROW * step.share if step.way == "changes" else 1
    return max(step.size, 1) * part
