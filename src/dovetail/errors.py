"""What dovetail raises.

- ``DovetailError``            everything below
    - ``PlanError``            a mistake in how a topology is written; also a ``ValueError``
    - ``ConfigurationError``   a Spark setting or a missing piece that a query needs
    - ``CheckpointError``      a checkpoint that belongs to another topology
    - ``DataError``            a row that no rule of the topology can place
    - ``StateError``           stored state that this version cannot read
    - ``TargetError``          a target table that cannot be brought up to date
- ``DovetailWarning``          what a query runs in spite of; a ``UserWarning``

Every message names the operator, what is wrong and what to do about it.
"""

from __future__ import annotations


class DovetailError(Exception):
    """Base of all errors: ``operator: problem; remedy``.

    The parts stay readable as attributes, and the error survives pickling, so that one raised in a
    worker says the same on the driver.
    """

    def __init__(self, operator: str, problem: str, remedy: str) -> None:
        super().__init__(operator, problem, remedy)
        self.operator = operator
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.operator}: {self.problem}. {self.remedy}."


class PlanError(DovetailError, ValueError):
    """The topology cannot mean what was written; raised while it is built."""


class ConfigurationError(DovetailError):
    """Spark lacks a setting the query needs; raised before the query starts."""


class CheckpointError(DovetailError):
    """The checkpoint was written by another topology or another number of buckets."""


class DataError(DovetailError, ValueError):
    """A row cannot be placed in event time or decoded; raised while a batch runs."""


class StateError(DovetailError):
    """Stored state has a format that this version does not read."""


class TargetError(DovetailError):
    """The target is another join's or query's, was changed by others, or its sources no longer have
    the changes since the versions that it covers.
    """


class DovetailWarning(UserWarning):
    """Something that a query runs in spite of, and that will do harm in time."""
