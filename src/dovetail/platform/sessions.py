"""The two kinds of session: classic, whose JVM is in reach, and Spark Connect, which has a server.

Features that both kinds have are used directly. A feature that only classic sessions have, or have
at less cost, is in ``platform.jvm``. Each caller has the replacement for Spark Connect beside the
call, or says what Spark Connect lacks. Features that several modules need are here, for both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, utils
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from dovetail.platform import jvm

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OfBatches: TypeAlias = Callable[[DataFrame, int], None]
"""A function that gets a micro-batch's rows and its id."""
BATCH_TAG = "dovetail-batch-"
"""The prefix of the tag of a micro-batch's jobs; the batch's id and the run's name follow."""

_NO_SOURCE = ("DATA_SOURCE_NOT_FOUND", "Failed to find data source")
_PROBED = 1 << 16
_NOTING = "_enable_debugging_cache"
"""PySpark's own flag: True to note call sites, None before it has asked the session."""


def is_remote(session: SparkSession) -> bool:
    """Return True for a session of Spark Connect, False for a classic session."""
    return not isinstance(session, SparkSession)


def is_stopped(session: SparkSession) -> bool:
    """Return True if the session, or the Spark behind a classic session, was stopped, so that
    nothing can be done with it.
    """
    if is_remote(session):
        return bool(getattr(session, "is_stopped", False))
    return not jvm.has_context(session)


def cloned_session(session: SparkSession) -> SparkSession:
    """Return a new session of the same Spark, which begins with copies of this session's settings,
    functions and views. Later changes to either have no effect on the other.
    """
    if not is_remote(session):
        return jvm.cloned_session(session)
    untyped_session: Any = session
    cloned = untyped_session.cloneSession()
    # Spark leaves this attribute out of the copy.
    cloned.release_session_on_close = untyped_session.release_session_on_close
    return cloned  # type: ignore[no-any-return]


@contextmanager
def without_call_sites() -> Iterator[None]:
    """Keep PySpark, in the block and in the whole process, from noting the user's line at each call
    of its functions. The former flag is restored afterwards.

    Each note takes ten calls of the JVM. In a frame that is built here it would name no line of the
    user's.
    """
    noted = getattr(utils, _NOTING, None)
    setattr(utils, _NOTING, False)
    try:
        yield
    finally:
        setattr(utils, _NOTING, noted)


def register(session: SparkSession, source: type[DataSource]) -> None:
    """Make the data source ``source`` known to a session, under the source's own name; a repeated
    call is allowed. A classic session becomes the active one of this thread.
    """
    # Spark refuses a name that the thread's active session knows and this one does not. So this one
    # becomes the active one, as it does with each frame that is made of rows.
    if not is_remote(session):
        jvm.activate(session)
    session.dataSource.register(source)


def batch_writer(rows: DataFrame, write: OfBatches) -> DataStreamWriter:
    """Return Spark's writer that calls ``write`` with the rows of each micro-batch of the streaming
    frame ``rows``, and the micro-batch's id. The writer is configured but not started.

    The jobs of ``write`` know their micro-batch (``spark.task``). On Spark Connect, ``write`` runs
    in a process of the server's. Its jobs are those of any client there, so a tag marks them:
    ``BATCH_TAG``, the id and a random name.
    """
    if not is_remote(rows.sparkSession):
        return rows.writeStream.foreachBatch(write)
    run = uuid4().hex

    def write_tagged(batch: DataFrame, batch_id: int) -> None:
        """Call ``write`` while the session's jobs have the tag of the micro-batch."""
        batch_session, tag = batch.sparkSession, f"{BATCH_TAG}{batch_id}-{run}"
        batch_session.addTag(tag)
        try:
            write(batch, batch_id)
        finally:
            batch_session.removeTag(tag)

    return rows.writeStream.foreachBatch(write_tagged)


@contextmanager
def frame_in_session(frame: DataFrame, session: SparkSession) -> Iterator[DataFrame]:
    """Yield a frame with the rows of ``frame`` in another session of the same Spark, within the
    block. After the block it can no longer be read.

    ``frame``: a result of ``keep``, so that its rows are not computed again. It becomes a global
    temporary view with a random name, which is dropped after the block.
    """
    name = f"dovetail_{uuid4().hex}"
    frame.createGlobalTempView(name)
    try:
        yield session.table(f"global_temp.{name}")
    finally:
        frame.sparkSession.catalog.dropGlobalTempView(name)


def keep(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows, which are computed and stored on the executors once, by the
    first job that reads all of it. ``release`` drops them. This runs no job.

    Lost rows fail their readers and are not computed again, so all readers see the same rows.
    """
    checkpointed: Any = frame.localCheckpoint(eager=False)
    if is_remote(frame.sparkSession):
        # Spark assigns the kept frame to the active session.
        checkpointed._session = checkpointed._plan._spark_session = frame.sparkSession  # noqa: SLF001
    return checkpointed  # type: ignore[no-any-return]


def release(frame: DataFrame) -> None:
    """Drop the stored rows of a frame that ``keep`` returned; it can no longer be read. On Spark
    Connect do nothing: the server drops the rows once Python no longer has the frame.
    """
    if not is_remote(frame.sparkSession):
        jvm.unpersist(frame)


@contextmanager
def stored_frame(frame: DataFrame) -> Iterator[DataFrame]:
    """Yield a frame of the same rows, which are computed and stored once, by the first job that
    reads all of it (``keep``). Drop the stored rows after the block, also on an error.
    """
    stored = keep(frame)
    try:
        yield stored
    finally:
        release(stored)


def null_on_failure(session: SparkSession, parts: Sequence[Column]) -> Column:
    """Return a struct of ``parts``, one column at least, as fields ``_0``, ``_1`` and so on. The
    struct is null in rows where computing any part fails; a part that is null is no failure.

    Errors of Python functions are raised all the same.
    """
    # Spark would compute common parts first, where a failure is not forgiven. It takes nothing out
    # of an expression that depends on where it is computed. On Spark Connect try_add of two times
    # forgives a failure in either. So the parts are hashed into one time there, and computed twice:
    # a microsecond a row.
    here = F.spark_partition_id() >= 0
    struct = F.struct(*(part.alias(f"_{index}") for index, part in enumerate(parts)))
    if is_remote(session):
        hashed = F.xxhash64(*(F.size(F.array(part)) for part in parts))  # no hash of maps
        whole = F.timestamp_micros(hashed % F.lit(1 << 20))
        done = F.try_add(whole, F.expr("INTERVAL '0' SECOND")).isNotNull()
        return F.when(here, F.when(done, struct))
    return F.when(here, jvm.null_on_failure(session, struct))


def cores(session: SparkSession) -> int:
    """Return the count of tasks that the session runs at the same time. On Spark Connect this is
    the count of partitions of a large range, which runs a job.
    """
    if not is_remote(session):
        return session.sparkContext.defaultParallelism
    parts = session.range(_PROBED).select(F.spark_partition_id().alias("part"))
    return max(int(row["part"]) for row in parts.distinct().collect()) + 1


def runs_in_one_jvm(session: SparkSession) -> bool:
    """Return True if tasks run in the JVM of a classic session itself: its master is ``local`` or
    ``local[...]``. Return False for a cluster, ``local-cluster[...]`` too, and on Spark Connect.
    """
    if is_remote(session):
        return False
    master = str(session.sparkContext.master)
    return master == "local" or master.startswith("local[")


def has_source(session: SparkSession, source: str) -> bool:
    """Return True if Spark has the data source ``source``, such as ``kafka``. Any error but that of
    a missing source counts as True, such as one about missing options.
    """
    try:
        _ = session.read.format(source).load().schema
    except (Py4JError, PySparkException) as error:
        return not any(sign in str(error) for sign in _NO_SOURCE)
    return True


def started_with(session: SparkSession, name: str) -> str:
    """Return the value of the setting ``name`` with which Spark itself was started; empty if it was
    not set.

    In a classic session, later values of the session are left out: they have no effect. On Spark
    Connect they look the same and are returned.
    """
    if is_remote(session):
        return str(session.conf.get(name, ""))
    return jvm.started_with(session, name)
