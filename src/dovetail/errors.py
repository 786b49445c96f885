"""The exceptions and warnings of dovetail.

- ``DovetailError``: all exceptions below.

    - ``PlanError``: a mistake in how a topology is written. It is a ``ValueError``, too.
    - ``ConfigurationError``: a Spark setting or a missing piece that a query needs.
    - ``CheckpointError``: a checkpoint that a call cannot use.

        - ``TakenOverError``: a checkpoint whose query another one has taken over.

    - ``DataError``: a row that no rule of the topology can place.
    - ``BatchError``: a batch that fails with something else.
    - ``StateError``: stored state that this version cannot read.
    - ``StorageError``: a local disk that a query needs and cannot write.
    - ``TargetError``: a target table that cannot be brought up to date.

- ``DovetailWarning``: a harm in spite of which a query runs. It is a ``UserWarning``.

Every message names the operator, the problem and the remedy. IPython and notebooks show it with the
user's own line, and the whole traceback on request.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = [
    "BatchError",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DovetailError",
    "DovetailWarning",
    "PlanError",
    "StateError",
    "StorageError",
    "TakenOverError",
    "TargetError",
]


class DovetailError(Exception):
    """Base of all errors of the library; the message is ``operator: problem. remedy.``.

    The parts are the attributes ``operator``, ``problem`` and ``remedy``. In a batch, the
    attribute ``where`` names the tables and, if known, the key. It is the second line of
    the message.

    The error survives pickling, so one that is raised in a worker says the same on the
    driver.

    In IPython and notebooks the message comes with the line that made the call, without a
    traceback. Then ``%tb`` shows the whole traceback, and ``%xmode Verbose`` does so for
    all errors.

    See Also
    --------
    PlanError : A mistake in how a topology is written.
    BatchError : An error in a batch that is not the library's.
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

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows for the error. IPython calls this by its name.

        In the cell that failed they are the message, the user's line if it is known, and the cause.
        A cause that the message quotes is left out. In mode Verbose, in later cells, as for
        ``%tb``, and outside of IPython they are the whole traceback.
        """
        shell = _shell()
        if shell is None:
            return traceback.format_exception(self)
        first = vars(self).setdefault("_shown", shell.execution_count)
        if shell.InteractiveTB.mode == "Verbose" or shell.execution_count != first:
            whole: list[str] = shell.InteractiveTB.structured_traceback(
                type(self), self, self.__traceback__
            )
            return whole
        lines = [f"{type(self).__name__}: {self}", *_users_line(self, shell)]
        if self.__cause__ is not None and (cause := line_of(self.__cause__)) not in lines[0]:
            lines.append(f"caused by {cause}")
        return [*lines, "%tb shows the whole traceback."]


class PlanError(DovetailError, ValueError):
    """A topology or an argument that is not valid, raised by the call that gets it.

    It is a ``ValueError``, too. No query has started then.

    See Also
    --------
    ConfigurationError : A setting or a part that the session lacks.
    DataError : A row that the topology cannot take, in a batch.
    """


class ConfigurationError(DovetailError):
    """A Spark setting or another part that is missing, raised before a query starts.

    It is also raised by calls that ask a checkpoint for rows that it does not hold.

    See Also
    --------
    doctor : Check a session for what queries need.
    configure : Build a session with these settings.
    """


class CheckpointError(DovetailError):
    """A checkpoint that a call cannot use.

    Examples are the checkpoint of another topology, of another number of buckets, or of a
    query that runs.

    See Also
    --------
    TakenOverError : A checkpoint whose query another one has taken over.
    upgrade : Turn a checkpoint into one for another topology.
    rewind : Set a checkpoint back to an earlier micro-batch.
    """


class TakenOverError(CheckpointError):
    """A checkpoint whose query another one has taken over, raised before a query starts.

    It is raised as long as the checkpoint of the newer query is there. Nothing has been read
    or written then. Catch it in a program that may be started again after a takeover.

    See Also
    --------
    CheckpointError : A checkpoint that a call cannot use.
    upgrade : Build a checkpoint beside a running query, with ``running=True``.
    """


class DataError(DovetailError, ValueError):
    """A row that the topology cannot take, raised while a batch runs.

    Examples are a row without an event time, two rows of one unique key, and a sum that
    does not fit its type. It is a ``ValueError``, too. A record of bytes that cannot be
    decoded fails a query by Spark's own error, with the library's words in it.

    See Also
    --------
    Table.dead_letters : Keep rows that cannot be used.
    BatchError : An error in a batch that is not the library's.
    """


class BatchError(DovetailError):
    """A batch that fails with an error that is not the library's, which is the ``__cause__``.

    See Also
    --------
    DataError : A row that the topology cannot take.
    StorageError : A local disk that cannot be written.
    """


class StateError(DovetailError):
    """Stored state in a format that this version does not read.

    See Also
    --------
    CheckpointError : A checkpoint that a call cannot use.
    """


class StorageError(DovetailError):
    """A local disk that cannot be written, for a micro-batch that is larger than memory.

    See Also
    --------
    BatchError : An error in a batch that is not the library's.
    """


class TargetError(DovetailError):
    """A target table that cannot be brought up to date.

    It is the target of another join or query, or others have changed it. Or its sources no
    longer have the changes since the versions that it covers.

    See Also
    --------
    SnapshotTable.refresh : Bring a target to the present versions of its sources.
    to_delta : Write a Delta table that equals a query's result.
    """


class DovetailWarning(UserWarning):
    """A problem that does not stop a query, but will do harm in time.

    It is a ``UserWarning``, so ``warnings.filterwarnings`` can make it an error.

    See Also
    --------
    doctor : Check a session for what queries need.
    """


def line_of(error: BaseException) -> str:
    """Return an error in one line: its class and the first line of its message that is not blank.
    It is the class alone if there is none.

    >>> line_of(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])


_PACKAGE = f"{Path(__file__).parent}{os.sep}"
"""The folder of the library, with a separator at its end."""


def _shell() -> Any:
    """Return IPython's shell, an ``InteractiveShell``; None if IPython does not run in this
    process.
    """
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _users_line(error: BaseException, shell: Any) -> list[str]:
    """Return two lines: the place of the line that called the library, and its text. The list is
    empty if the traceback does not begin with a call from outside of the library.

    ``error``: the error with its traceback. ``shell``: IPython's shell, which names notebook cells.
    """
    frames = traceback.extract_tb(error.__traceback__)
    entered = (n for n, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE))
    caller = next(entered, 0) - 1
    if caller < 0:
        return []
    frame = frames[caller]
    cell = shell.compile.format_code_name(frame.filename)
    place = f"File {frame.filename}" if cell is None else " ".join(cell)
    return [f"{place}, line {frame.lineno}", f"----> {frame.line}"]
