"""What dovetail raises.

- ``DovetailError``            everything below
    - ``PlanError``            a mistake in how a topology is written; also a ``ValueError``
    - ``ConfigurationError``   a Spark setting or a missing piece that a query needs
    - ``CheckpointError``      a checkpoint that belongs to another topology
    - ``DataError``            a row that no rule of the topology can place
    - ``BatchError``           a batch that fails with something else
    - ``StateError``           stored state that this version cannot read
    - ``StorageError``         a local disk that a query needs and cannot write
    - ``TargetError``          a target table that cannot be brought up to date
- ``DovetailWarning``          what a query runs in spite of; a ``UserWarning``

Every message names the operator, what is wrong and what to do about it.
"""

from __future__ import annotations


class DovetailError(Exception):
    """Base of all errors: ``operator: problem; remedy``. Of one in a batch ``where``, in a second
    line, names the tables and, as far as it is known, the key.

    The parts stay readable as attributes, and the error survives pickling, so that one raised in a
    worker says the same on the driver.
    """

    def __init__(self, operator: str, problem: str, remedy: str) -> None:
        super().__init__(operator, problem, remedy)
        self.operator = operator
        self.problem = problem
        self.remedy = remedy
        self.where = ""

    def __str__(self) -> str:
        where = f"\n  {self.where}" if self.where else ""
        return f"{self.operator}: {self.problem}. {self.remedy}.{where}"


class PlanError(DovetailError, ValueError):
    """The topology cannot mean what was written; raised while it is built."""


class ConfigurationError(DovetailError):
    """Spark lacks a setting the query needs; raised before the query starts."""


class CheckpointError(DovetailError):
    """The checkpoint was written by another topology or another number of buckets."""


class DataError(DovetailError, ValueError):
    """A row cannot be placed in event time or decoded; raised while a batch runs."""


class BatchError(DovetailError):
    """A batch fails with an error that is not the library's, which is its cause."""


class StateError(DovetailError):
    """Stored state has a format that this version does not read."""


class StorageError(DovetailError):
    """A micro-batch is larger than memory, and the local disk for its rows cannot be written."""


class TargetError(DovetailError):
    """The target is another join's or query's, was changed by others, or its sources no longer have
    the changes since the versions that it covers.
    """


class DovetailWarning(UserWarning):
    """Something that a query runs in spite of, and that will do harm in time."""


def line_of(error: BaseException) -> str:
    """An error in one line: its class and the first line of what it says.

    >>> line_of(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])
