"""Drawing a case by its number, and saying whether it holds."""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Callable

from fuzz import commits, counted, deltas, families, graphs, latest, transactions, waits
from fuzz.case import Case

WEIGHTS = {
    "graph": 8,
    "tree": 1,
    "matrix": 4,
    "foreign": 2,
    "windows": 5,
    "expiring": 2,
    "views": 4,
    "aligned": 3,
    "idle": 3,
    "delta": 3,
    "commits": 2,
    "counted": 2,
    "guarded": 2,
    "latest": 2,
    "transactions": 2,
}
ON_SPARK = ("computed",)
"""Families whose expressions a session evaluates; drawn by ``--family`` alone."""
MODULES = {
    "graph": graphs,
    "aligned": waits,
    "idle": waits,
    "delta": deltas,
    "commits": commits,
    "counted": counted,
    "guarded": counted,
    "latest": latest,
    "transactions": transactions,
}
"""Those that draw and judge; ``families`` does the others."""

LARGEST = 40_000


def drawn(seed: int, number: int, *, only: str | None = None, largest: int = LARGEST) -> Case:
    """Case ``number`` of a seed, the same for the same code; ``only``: of one family; ``largest``:
    of at most so many records.
    """
    random_ = random.Random(f"{seed} {number}")
    family = random_.choices([*WEIGHTS], [*WEIGHTS.values()])[0] if only is None else only
    if family == "graph":
        return graphs.drawn(random_, largest)
    return MODULES.get(family, families).drawn(random_, family)


def build(case: Case) -> None:
    """Make a case's topology."""
    MODULES.get(case.family, families).topology_of(case)


def difference(case: Case) -> str | None:
    """Say how dovetail breaks the law of a case; None if it keeps it.

    A case that dovetail took and then fails on is wrong, whatever the error.
    """
    try:
        return MODULES.get(case.family, families).difference(case)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def like(problem: str) -> Callable[[Case], bool]:
    """Return a test for smaller cases: they are wrong by the same error, or by no error."""
    errors = re.compile(r"\w+(Error|Exception|Iteration)(?=: )")
    kind = errors.match(problem)

    def fails(case: Case) -> bool:
        found = difference(case)
        error = None if found is None else errors.match(found)
        return found is not None and (error and error[0]) == (kind and kind[0])

    return fails
