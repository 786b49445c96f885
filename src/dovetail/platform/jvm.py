"""The JVM of a classic session, which Spark's Python classes reach by private names.

Spark Connect has no JVM in reach. So each caller asks for the kind of session first and has the
replacement beside the call. No other module uses these private names, so a version of Spark that
changes them concerns this one only.

A result of type ``Any`` is an object of the JVM. Each call of its methods goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column, SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing."
"""The package of Spark's classes that write the files of a checkpoint."""


def has_context(session: SparkSession) -> bool:
    """Return True if the Spark of a classic session runs, False once it was stopped."""
    return getattr(session.sparkContext, "_jsc", None) is not None


def cloned_session(session: SparkSession) -> SparkSession:
    """Return a new classic session that begins with a copy of this one's settings, functions and
    views, as streaming queries make it for themselves.
    """
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def started_with(session: SparkSession, name: str) -> str:
    """Return the value of the setting ``name`` with which the Spark of a classic session was
    started; empty if it was not set. Later values of the session are left out.
    """
    # The copy of all settings that PySpark makes for this takes three calls of the JVM for each.
    context: Any = session.sparkContext
    return str(context._jsc.sc().conf().get(name, ""))


def activate(session: SparkSession) -> None:
    """Make a classic session the active one of this thread in the JVM."""
    spark: Any = session._jvm
    spark.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def has_read_all(query: StreamingQuery) -> bool:
    """Return True if an ended query with the trigger ``availableNow`` has read all its input. False
    if it was stopped before, has failed before, or has never run.

    Spark's status of a query is the same once it is done and once it was stopped. So this asks if
    the query has found no new data at a trigger, after which ``availableNow`` ends it.
    """
    return bool(query._jsq.streamingQuery().noNewData())


def newest_reports(query: StreamingQuery) -> Iterator[Any]:
    """Yield the reports of a query's progress that Spark still has, the newest first, as objects of
    the JVM; nothing without any.

    Spark keeps many, so each is fetched only when it is asked for.
    """
    reports = query._jsq.recentProgress()
    return (reports[index] for index in reversed(range(len(reports))))


def has_active_query(session: SparkSession, query_id: str) -> bool:
    """Return True if a query runs in any session of this application. ``query_id``: its id, a UUID
    as text, which stays the same over restarts. The JVM's error passes for another text.
    """
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    return bool(running.containsKey(_packages(session).java.util.UUID.fromString(query_id)))


def items(sequence: Any) -> list[Any]:
    """Return the items of an indexed sequence of Scala, an object of the JVM, in order. Each takes
    a call of the JVM.
    """
    return [sequence.apply(index) for index in range(sequence.size())]


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the analyzed plan of a frame, in which names are resolved, as an object of the JVM."""
    return _execution(frame).analyzed()


def streaming_leaves(frame: DataFrame) -> int:
    """Return the count of streaming sources that a frame reads; 0 for a static frame. A source that
    is read twice counts twice.
    """
    return sum(leaf.isStreaming() for leaf in items(analyzed_plan(frame).collectLeaves()))


def is_of_the_moment(session: SparkSession, expression: Any) -> bool:
    """Return True if ``expression`` or a part of it depends on the moment: the present time, the
    user, or the session's current catalog or database. An example is ``now()``. Randomness, as in
    ``rand()``, does not count. ``expression``: one of an analyzed plan, an object of the JVM.
    """
    patterns = _packages(session).org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(expression.containsPattern(patterns.CURRENT_LIKE()))


def null_on_failure(session: SparkSession, column: Column) -> Column:
    """Return a column that has the values of ``column``, and null in rows where one of Spark's own
    expressions in it fails. Errors of Python functions are raised all the same. ``session``: a
    classic one, for its JVM.
    """
    spark = _packages(session).org.apache.spark.sql
    utils = spark.classic.ExpressionUtils
    untyped: Any = column
    tried = spark.catalyst.expressions.TryEval(utils.expression(untyped._jc))
    return Column(utils.column(tried))


def unpersist(frame: DataFrame) -> None:
    """Drop the stored rows of a frame that ``localCheckpoint`` returned, without waiting. The frame
    can no longer be read.
    """
    rdd = _execution(frame).logical().rdd()
    rdd.sparkContext().unpersistRDD(rdd.id(), False)  # the RDD's own method logs a warning


def delta_snapshot(session: SparkSession, path: str) -> Any:
    """Return the latest snapshot of the Delta table in the folder ``path``, an object of the JVM
    with its version and metadata. Its version is -1 if there is no table.
    """
    return _delta(session).DeltaLog.forTableWithSnapshot(session._jsparkSession, path)._2()


def delta_snapshot_at(session: SparkSession, path: str, version: int) -> Any:
    """Return the snapshot of the Delta table in the folder ``path`` at version ``version``, an
    object of the JVM. Delta's own error passes if the table's log no longer has the version.
    """
    log = _delta(session).DeltaLog.forTable(session._jsparkSession, path)
    none = _packages(session).scala.Option.empty()
    return log.getSnapshotAt(version, none, none, False)


def delta_transaction(session: SparkSession, path: str, application: str) -> int | None:
    """Return the version of the last commit that a writer has numbered in the log of the Delta
    table in the folder ``path``; None if it has numbered none. ``application``: the writer's name.
    """
    version = delta_snapshot(session, path).transactions().get(application)
    return int(version.get()) if version.isDefined() else None


def clean_delta_log(session: SparkSession, path: str) -> None:
    """Delete from the log of the Delta table in the folder ``path`` commits that are older than the
    property ``delta.logRetentionDuration`` allows, by default 30 days. The present version stays
    readable. The cut-off is rounded down to a whole minute.

    Raises ``TypeError`` if the jar of Delta Lake lacks a class.
    """
    delta = _delta(session)
    log = delta.DeltaLog.forTable(session._jsparkSession, path)
    none = _packages(session).scala.Option.empty()
    minute = delta.TruncationGranularity.MINUTE()
    log.cleanUpExpiredLogs(log.unsafeVolatileSnapshot(), none, none, minute)


class _ProgressListener:
    """Spark's interface of listeners. It hands on each progress as JSON, in one call.

    PySpark's own class fetches each field of a progress by a call of its own.
    """

    def __init__(
        self,
        progress: Callable[[str], None],
        paused: Callable[[str], None],
        ended: Callable[[str, bool], None],
    ) -> None:
        """Take the functions to call, in a thread of Py4J. ``progress`` gets a progress as JSON
        text. ``paused`` gets the id of a query that waits for data, as text. ``ended`` gets the id
        of a query that ends, and True if it has failed.
        """
        self._progress, self._paused, self._ended = progress, paused, ended

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the caller has logged the start by then."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Call ``progress`` with the event's progress as JSON text."""
        self._progress(str(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Call ``paused`` with the id, as text, of the query that waits for data."""
        self._paused(str(event.id().toString()))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Call ``ended`` with the query's id, as text, and True if it has failed, False if it ended
        or was stopped.
        """
        self._ended(str(event.id().toString()), bool(event.exception().isDefined()))

    class Java:
        """The interface that Py4J implements by the class around it."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def listen(
    session: SparkSession,
    progress: Callable[[str], None],
    paused: Callable[[str], None],
    ended: Callable[[str, bool], None],
) -> None:
    """Call these functions, in a thread of Py4J, when something happens to a query of this classic
    session, from now on. Queries of other sessions do not count, even of the same Spark. A second
    call adds further functions; none are removed.

    ``progress`` gets each progress of a query as JSON text. ``paused`` gets the id of a query that
    waits for data, as text. ``ended`` gets the id of a query that ends, and True if it has failed.
    """
    start_callbacks: Any = ensure_callback_server_started
    start_callbacks(session.sparkContext._gateway)
    wrapper = _packages(session).org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
    session._jsparkSession.streams().addListener(
        wrapper(_ProgressListener(progress, paused, ended))
    )


def deny_log_lines(session: SparkSession, pattern: str) -> None:
    """Leave messages that match the regular expression ``pattern`` as a whole out of the log of the
    JVM from now on.

    Raises ``TypeError`` if the JVM does not log by Log4j.
    """
    log4j = _packages(session).org.apache.logging.log4j
    results: Any = getattr(log4j.core, "Filter$Result")
    regex = log4j.core.filter.RegexFilter
    denied = regex.createFilter(pattern, None, False, results.DENY, results.NEUTRAL)
    log4j.LogManager.getContext(False).getConfiguration().getRootLogger().addFilter(denied)


class Hadoop:
    """Hadoop's file systems, with the settings of a session."""

    def __init__(self, session: SparkSession) -> None:
        """Take the JVM of ``session``, a classic one. Its settings are read at each call."""
        self._jvm = _packages(session)
        self._state = session._jsparkSession.sessionState()

    def settings(self) -> Any:
        """Return a new configuration object of Hadoop with the settings of the session."""
        return self._state.newHadoopConf()

    def has_class(self, name: str) -> bool:
        """Return True if the JVM finds the class with the full name ``name``, its package
        included.
        """
        return self.settings().getClassByNameOrNull(name) is not None

    def located(self, *parts: Any) -> tuple[Any, Any]:
        """Return Hadoop's path object and its file system, both objects of the JVM. ``parts``: one
        path, or a folder and a name in it; each is a text or a path object.

        The JVM's error passes if Hadoop does not know or reach the file system.
        """
        path = self._jvm.org.apache.hadoop.fs.Path(*parts)
        return path, path.getFileSystem(self.settings())

    def text(self, files: Any, path: Any) -> str:
        """Return the text of an existing file, read as UTF-8. ``files``, ``path``: its file system
        and its path, two objects of the JVM (``located``). The JVM's error passes for a missing
        file.
        """
        return str(self._read(files, path, "toString", "UTF-8"))

    def blob(self, files: Any, path: Any) -> bytes:
        """Return the bytes of an existing file. ``files``, ``path``: its file system and its path,
        two objects of the JVM (``located``). The JVM's error passes for a missing file.
        """
        return bytes(self._read(files, path, "toByteArray"))

    def _read(self, files: Any, path: Any, by: str, *arguments: str) -> Any:
        """Return the content of the file ``path``, read by the JVM's function ``IOUtils.<by>``, and
        close the file: a text or a byte array. The JVM's error passes for a missing file.

        ``files``, ``path``: the file system and the path, objects of the JVM. ``arguments``: those
        of the function after the stream.
        """
        stream = files.open(path)
        try:
            return getattr(self._jvm.org.apache.commons.io.IOUtils, by)(stream, *arguments)
        finally:
            stream.close()

    def checkpoint_manager(self, folder: Any) -> Any:
        """Return Spark's manager of checkpoint files, an object of the JVM, that writes files in
        ``folder`` as a whole or not at all. ``folder``: a path object of the JVM.
        """
        managers: Any = getattr(self._jvm, f"{MANAGERS}CheckpointFileManager$")
        return getattr(managers, "MODULE$").create(folder, self.settings())

    def copy(self, files: Any, path: Any, target_files: Any, target: Any) -> None:
        """Copy an existing file or folder with its content; the source stays. A file at ``target``
        is overwritten.

        ``files``, ``path``: the source's file system and path, objects of the JVM (``located``).
        ``target_files``, ``target``: those of the copy.
        """
        copy = self._jvm.org.apache.hadoop.fs.FileUtil.copy
        copy(files, path, target_files, target, False, self.settings())


def _packages(session: SparkSession) -> Any:
    """Return py4j's view of the JVM, by whose attributes packages and classes are found."""
    return session._jvm


def _delta(session: SparkSession) -> Any:
    """Return py4j's view of Delta Lake's package ``org.apache.spark.sql.delta``, by whose
    attributes its classes are found.
    """
    return _packages(session).org.apache.spark.sql.delta


def _execution(frame: DataFrame) -> Any:
    """Return the query execution of a frame, an object of the JVM that has its plans."""
    untyped: Any = frame
    return untyped._jdf.queryExecution()
