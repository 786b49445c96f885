"""The exceptions and warnings of dovetail.

- ``DovetailError``: all exceptions below.

    - ``PlanError``: a mistake in how a topology is written. It is a ``ValueError``, too.
    - ``ConfigurationError``: a Spark setting or a missing piece that a query needs.
    - ``CheckpointError``: a checkpoint that belongs to another topology.
    - ``DataError``: a row that no rule of the topology can place.
    - ``BatchError``: a batch that fails with something else.
    - ``StateError``: stored state that this version cannot read.
    - ``StorageError``: a local disk that a query needs and cannot write.
    - ``TargetError``: a target table that cannot be brought up to date.

- ``DovetailWarning``: a harm in spite of which a query runs. It is a ``UserWarning``.

Every message names the operator, the problem and the remedy.
"""

from __future__ import annotations


class DovetailError(Exception):
    """Base of all errors: ``operator: problem. remedy.``

    For an error in a batch, a second line (``where``) names the tables and, if known, the key.

    The parts stay readable as attributes. The error survives pickling, so one that is raised in a
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
    """A target that cannot be brought up to date.

    It is another join's or query's, or was changed by others. Or its sources no longer have the
    changes since the versions that it covers.
    """


class DovetailWarning(UserWarning):
    """A problem that does not stop a query, but will do harm in time."""


def line_of(error: BaseException) -> str:
    """Return an error in one line: its class and the first line of its message.

    >>> line_of(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])
