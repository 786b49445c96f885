"""The two ways of a step, and the estimate by which one of them is taken. No Spark job is needed.

A step merges what has changed, or computes the whole join again and overwrites the target. Either
way takes some time for its many small Spark jobs, however few rows there are, and some time for
bytes. Overwriting reads and writes all bytes once. Merging looks for changed keys all over the
tables, which takes a part of that time. Each changed byte costs as much as many others:

    overwriting   JOBS_S + size / rate
    merging       JOBS_S + (READ · size + CHANGED · changed) / rate

The constants come from a cheap join of narrow rows on two cores. Earlier steps of the same target
correct them: the estimate of a way is multiplied by what the last steps took beside theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["changes", "all"]

JOBS_S = {"all": 2.4, "few": 4.4, "many": 9.0}
"""The seconds that a step takes without any bytes, by kind. A step that merges a few changes holds
them in this process, and so has fewer jobs than one that merges many.
"""
BYTES_S = 3.7e6
"""The bytes of Delta files that a core reads, joins and writes in a second."""
READ, CHANGED = 0.2, 14.0
"""What merging costs for each byte of the sources, and for each changed byte, as a part of
overwriting a byte.
"""
STEPS_MAX = 3
"""The most steps of each way whose times count: the last ones."""


@dataclass(frozen=True)
class StepWork:
    """The amount of work of a step, and the means for it."""

    size: int
    """The bytes of the sources."""
    changed: int
    """About how many of them have changed: the sources' changed shares, added up to 1 at most, of
    ``size``. So a source that has changed as a whole counts as all of them.
    """
    rows: int | None
    """The count of rows that have changed; None if it is not known."""
    few: bool
    """True if the changes are few enough to be collected to this process."""
    cores: int
    """The count of tasks that run at the same time."""


@dataclass(frozen=True)
class RefreshStep:
    """A step that is made, as its commit records it."""

    way: Way
    """The way that is taken."""
    estimated_s: float
    """The seconds that the way takes by the constants of this module; 0 if that is not known."""
    started_ms: int
    """When the step began, in milliseconds since 1970."""


@dataclass(frozen=True)
class TimedStep:
    """An earlier step, and the time that it took until its commit."""

    step: RefreshStep
    seconds: float


@dataclass(frozen=True)
class ChosenWay:
    """A way, and the reason why it is taken, for people."""

    way: Way
    reason: str


def choose_way(work: StepWork, earlier: Sequence[TimedStep]) -> ChosenWay:
    """Return the cheaper way of a step, ``"changes"`` or ``"all"``, with both estimates as the
    reason; ``"changes"`` if both cost the same.

    ``work``: the bytes of the sources and of their changes, and the cores. ``earlier``: steps of
    the target, the last one first; empty before there are any. They correct the estimates.
    """
    merging, overwriting = (_expected_s(work, way, earlier) for way in ("changes", "all"))
    share = min(work.changed / max(work.size, 1), 1.0)
    reason = (
        f"about {share:.2%} of the rows change, which takes an estimated {merging:.1f} s to merge, "
        f"and {overwriting:.1f} s to compute and overwrite all"
    )
    return ChosenWay("changes" if merging <= overwriting else "all", reason)


def estimated_s(work: StepWork, way: Way) -> float:
    """Return the seconds that a step takes by this way, more than 0, by the constants of this
    module alone. ``"changes"`` merges changed rows, ``"all"`` overwrites the target. ``work``: the
    bytes of the sources and of their changes, and the cores. Earlier steps do not count.
    """
    rate = BYTES_S * max(work.cores, 1)
    if way == "all":
        return JOBS_S["all"] + work.size / rate
    jobs_s = JOBS_S["few" if work.few else "many"]
    return jobs_s + (READ * work.size + CHANGED * work.changed) / rate


def _expected_s(work: StepWork, way: Way, earlier: Sequence[TimedStep]) -> float:
    """Return the estimated seconds of a step by this way, multiplied by a factor from earlier
    steps, which come with the last one first.

    The factor is the median of seconds taken / seconds estimated. The last ``STEPS_MAX`` (3) steps
    of the same way count, or those of any way if there are none. Steps without an estimate (0) do
    not count, not even among these last ones. Without any step the factor is 1.
    """
    known = [took for took in earlier if took.step.estimated_s > 0]
    alike = [took for took in known if took.step.way == way] or known
    factors = [took.seconds / took.step.estimated_s for took in alike[:STEPS_MAX]]
    return estimated_s(work, way) * (median(factors) if factors else 1.0)
