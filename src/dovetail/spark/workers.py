"""The Python workers of a session, made ready for a query."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from weakref import WeakSet

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dovetail.errors import ConfigurationError
from dovetail.platform.jvm import cloned_session
from dovetail.platform.sessions import runs_in_one_jvm
from dovetail.platform.spark_errors import reason
from dovetail.spark.driver_workers import fork_driver_workers, is_program

INSTALL = "Set PYSPARK_PYTHON to a Python that has dovetail, on a cluster in each executor's image"

TRACEBACK = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""Spark's setting that leaves its own frames out of tracebacks. Only functions without state know
it, and it is part of their workers' environment. If it is false, they share their workers with
stages with state."""

_PREPARED: WeakSet[SparkSession] = WeakSet()
"""The sessions whose workers have been asked or started."""


def prepare_workers(spark: SparkSession) -> None:
    """Prepare the Python workers of a session for its queries. Do nothing if that is done already.

    If workers clearly run the driver's own Python, start one of them in the background, while Spark
    plans. A failure there is ignored, since the query will raise it. Also let the session's later
    driver workers be forked from a server (``fork_driver_workers``). These are Python processes
    that Spark starts on the driver.

    Otherwise ask a worker by a job of one row if it has this version of the library. Raises
    ``ConfigurationError`` if it lacks it, or if no worker starts.
    """
    if spark in _PREPARED:
        return
    if runs_in_one_jvm(spark) and _run_own_python(spark.sparkContext):
        fork_driver_workers(spark.sparkContext)
        Thread(target=_start_a_worker, args=(spark,), daemon=True).start()
    else:
        lack = workers_lack(spark)
        if lack is not None:
            raise ConfigurationError("write_stream", f"its workers cannot run it: {lack}", INSTALL)
    _PREPARED.add(spark)


def _start_a_worker(spark: SparkSession) -> None:
    """Start the daemon of Python workers and one worker, by a job of one row in a copy of the
    session. Errors of Spark are ignored, because the query will raise them, too.
    """
    with suppress(Py4JError, PySparkException, OSError):
        session = cloned_session(spark)
        session.conf.set(TRACEBACK, "false")
        session.sparkContext.setJobDescription("dovetail: start Python workers")
        answer_of_worker(session, str)


def workers_lack(spark: SparkSession) -> str | None:
    """Return in words why the workers' Python cannot run queries, or None if it can. Run a job of
    one row.

    It cannot if no worker starts, or if the worker lacks the driver's version of the library.
    """
    own_version = import_module("dovetail").__version__

    def version() -> str:
        """Return the version of the worker's library if it is the driver's. Otherwise return in
        words which version the worker has, or why it cannot import the library.
        """
        try:
            installed = import_module("dovetail").__version__
            return (
                installed
                if installed == own_version
                else f"{sys.executable} has dovetail {installed}"
            )
        except ImportError as error:
            return f"{sys.executable} cannot import dovetail: {error}"

    try:
        installed = answer_of_worker(spark, version)
    except (Py4JError, PySparkException) as error:
        return f"no worker starts: {reason(error)}"
    return None if installed == own_version else installed


def answer_of_worker(spark: SparkSession, question: Callable[[], str]) -> str:
    """Run the function ``question`` in a worker, in a job of one row, and return its text.

    The worker may lack the library. Spark's errors pass, those that ``question`` raises among them.
    """

    def answering(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row with the text of ``question()``, in the column ``answer``, for each of
        ``batches``. The job has one batch.
        """
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"answer": [question()]})

    # All rows are fetched, since Spark ends a worker whose rows are not.
    (row,) = spark.range(1).mapInArrow(answering, "answer string").collect()
    return str(row["answer"])


def _run_own_python(context: SparkContext) -> bool:
    """Return True if workers on this machine run with the driver's Python, or by a program that
    runs it (``driver_workers.make_program``). Return False if that is not certain: for a Python
    that is missing or not in the driver's folder.
    """
    python = shutil.which(context.pythonExec)
    if python is None:
        return False
    if is_program(python):
        return True
    driver_python = Path(sys.executable)
    return Path(python).parent == driver_python.parent and Path(python).samefile(driver_python)
