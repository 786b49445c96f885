"""The progress of a query: the figures of a micro-batch, by input and by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

from dovetail.base.text_cells import escaped
from dovetail.base.validation import Rule, validated
from dovetail.engine.bucket_report import BucketReport
from dovetail.physical.source import number_repeated_names
from dovetail.plan.metrics import metric_name
from dovetail.spark.checkpoints.state_files import STATE_OPERATOR
from dovetail.spark.checkpoints.stores import utc_datetime
from dovetail.spark.execution.observations import unused_rows
from dovetail.spark.metrics.query_parts import QueryParts, StagePart
from dovetail.spark.query.topology_query import TopologyQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

AQuery = Annotated[
    TopologyQuery,
    Rule("what write_stream or dt.run returned", lambda q: isinstance(q, TopologyQuery)),
]
PHASES = {
    "latestOffset": "offsets",
    "getOffset": "offsets",
    "getBatch": "offsets",
    "queryPlanning": "planning",
    "addBatch": "work",
    "walCommit": "log",
    "commitOffsets": "log",
    "commitBatch": "log",
}
"""The phase of a micro-batch to which each of Spark's durations belongs."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class InputProgress:
    """The figures of one input in a micro-batch, from ``dt.progress``.

    Attributes
    ----------
    name : str
        The input's name in the topology; empty where Spark's sources cannot be told apart.
    source : str
        Spark's description of the source, with the folder, table or topic.
    rows : int
        The number of rows read.
    behind : dict of str to float
        How far the source is behind, under its own names; empty if the source does not tell. Kafka
        has ``maxOffsetsBehindLatest`` in records, Delta Lake ``numFilesOutstanding``.
    lag_s : float or None
        How far the input is behind in event time, in seconds: the end of the micro-batch less the
        input's stream time; None before its first row.

    See Also
    --------
    progress : Return the figures of a query.

    Examples
    --------
    >>> from dovetail.metrics import InputProgress
    >>> InputProgress("orders", "KafkaV2[Subscribe[orders]]", 120, {}).rows
    120
    """

    name: str
    source: str
    rows: int
    behind: Mapping[str, float] = field(default_factory=dict)
    lag_s: float | None = None


@dataclass(frozen=True)
class StageProgress:
    """The figures of one stage in a micro-batch, from ``dt.progress``.

    Attributes
    ----------
    number : int
        The number of the stage, as ``explain`` shows it.
    title : str
        The stage, as ``explain`` and errors name it.
    rows : dict of str to int
        The number of rows that came, by input. An input that is read twice is numbered.
    changes : int
        The number of emitted changes, deletes among them.
    deletes : int
    stream_time : dict of str to datetime
        The stream time in UTC, by input. Inputs without rows so far are missing. Times after the
        year 9999 are its last day, those before the year 1 its first.
    work_ms : float
        The time of the operators in all buckets together, including calls of the state store.
    state_ms : float
        The time of reads and writes of the state store, in all buckets together.
    slowest_ms : float
        The time of the slowest bucket. It shows a hot key.
    buckets : int
        The number of buckets with work.
    state_bytes : int
        The size of the files of RocksDB. With one bucket, stages may share them; the last of
        these stages has this figure and the other figures of RocksDB, and the others have 0.
    memory_bytes : int
        The memory that RocksDB uses.
    commit_ms : int
        The time in which RocksDB committed, in all tasks together.
    tombstones : dict of str to int
        The number of tombstones among ``rows``, by input.
    matched : dict of str to int
        For joins, the number of records that found rows on all other sides when they came, by
        input.
    unmatched : dict of str to int
        The number of records that did not.
    waiting : dict of str to int
        The number of stored rows that wait for a time, by input and reason, such as
        ``clicks.on_close``.
    stored_rows : int
        The number of stored rows in the buckets with work. Replaced rows count until they are
        merged.
    stored_bytes : int
        Their size in memory, without compression.
    read_ms : float
        The time in which tasks waited for the rows that they packed for the stage.
    pack_ms : float
        The time in which they packed them, in all tasks together.
    shuffle_ms : float
        The time by the clock from the last packed rows until the first bucket began.
    receive_ms : float
        The time in which workers took in shuffled rows, in all buckets together.
    load_ms : int
        The time in which RocksDB loaded the state, in all tasks together.
    began_ms : float
        The time from the start of the micro-batch until the first bucket began, by the workers'
        clocks.
    ended_ms : float
        The time from the start of the micro-batch until the last bucket was done.

    See Also
    --------
    progress : Return the figures of a query.

    Examples
    --------
    >>> from dovetail.metrics import StageProgress
    >>> StageProgress(1, "inner join of orders and payments", rows={"orders": 3}).rows["orders"]
    3
    """

    number: int
    title: str
    rows: Mapping[str, int] = field(default_factory=dict)
    changes: int = 0
    deletes: int = 0
    stream_time: Mapping[str, datetime] = field(default_factory=dict)
    work_ms: float = 0.0
    state_ms: float = 0.0
    slowest_ms: float = 0.0
    buckets: int = 0
    state_bytes: int = 0
    memory_bytes: int = 0
    commit_ms: int = 0
    tombstones: Mapping[str, int] = field(default_factory=dict)
    matched: Mapping[str, int] = field(default_factory=dict)
    unmatched: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    stored_rows: int = 0
    stored_bytes: int = 0
    read_ms: float = 0.0
    pack_ms: float = 0.0
    shuffle_ms: float = 0.0
    receive_ms: float = 0.0
    load_ms: int = 0
    began_ms: float = 0.0
    ended_ms: float = 0.0


@dataclass(frozen=True)
class Unused:
    """The number of rows without use under one counter, from ``dt.progress``.

    Attributes
    ----------
    rows : int
        The number of rows in the micro-batch.
    example : str or None
        The key and the time of one of them.

    See Also
    --------
    progress : Return the figures of a query.

    Examples
    --------
    >>> from dovetail.metrics import Unused
    >>> Unused(2, "id=7 at 2024-05-01T10:00:00Z").rows
    2
    """

    rows: int
    example: str | None = None


@dataclass(frozen=True)
class Progress:
    """The figures of one micro-batch, from ``dt.progress``. ``print`` shows them as text.

    Attributes
    ----------
    batch : int
        The number of the micro-batch.
    started : datetime
        The time at which it began, in UTC.
    total_ms : int
        Its duration.
    phases_ms : dict of str to int
        The duration of its phases: ``"offsets"`` asks the sources for what is new, ``"planning"``
        is Spark's planning, ``"work"`` has all stages and the sink, ``"log"`` writes the
        checkpoint's files.
    inputs : tuple of InputProgress
    stages : tuple of StageProgress
        The stages with state, by their numbers.
    unused : dict of str to Unused
        The rows without use, by counter; counters at zero are left out.
    lookups : dict of str to dict of str to int
        The requests of delta joins and lookups, by counter and by kind, such as ``"hits"``.
    steps_ms : dict of str to float
        The parts of the phase ``"work"``: ``"read"``, ``"pack"``, ``"shuffle"``, ``"receive"``,
        ``"load"``, ``"operators"``, ``"state"``, ``"commit"`` and ``"sink"``. ``"shuffle"`` and
        ``"sink"`` are times of the clock, the others are added up over all tasks. ``"sink"`` is the
        time from the last bucket's end to the end of the phase.

    See Also
    --------
    progress : Return the figures of a query.

    Examples
    --------
    >>> from datetime import datetime, timezone
    >>> from dovetail.metrics import Progress
    >>> print(Progress(3, datetime(2024, 5, 1, tzinfo=timezone.utc), 250, {"work": 180}))
    micro-batch 3 of 2024-05-01 00:00:00: 250 ms (work 180)
    """

    batch: int
    started: datetime
    total_ms: int
    phases_ms: Mapping[str, int]
    inputs: tuple[InputProgress, ...] = ()
    stages: tuple[StageProgress, ...] = ()
    unused: Mapping[str, Unused] = field(default_factory=dict)
    lookups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    steps_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows read from all inputs.

        See Also
        --------
        InputProgress : The rows of each.

        Examples
        --------
        >>> from datetime import datetime
        >>> from dovetail.metrics import InputProgress, Progress
        >>> Progress(0, datetime.now(), 10, {}, (InputProgress("orders", "", 120),)).rows
        120
        """
        return sum(input_.rows for input_ in self.inputs)

    def __str__(self) -> str:
        return "\n".join(_text_lines(self))

    def _repr_html_(self) -> str:
        return f"<pre>{escaped(str(self))}</pre>"


@validated
def progress(query: AQuery) -> Progress | None:
    """Return the figures of a query's last micro-batch.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started; it may have ended.

    Returns
    -------
    Progress or None
        Rows, changes, stream time and durations by input and by stage; None before the first
        micro-batch has ended.

    Raises
    ------
    PlanError
        If ``query`` is no query of dovetail's.

    See Also
    --------
    metrics.recent : Return the figures of the last micro-batches.
    metrics.prometheus : Serve the figures for Prometheus.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
    >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(1) AS at")
    >>> rows.write.parquet(f"{folder.name}/orders")
    >>> live = spark.readStream.schema(rows.schema).parquet(f"{folder.name}/orders")
    >>> orders = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders")
    >>> query = orders.group_by("amount").agg(n=dt.count()).write_stream(
    ...     dt.to_memory("amounts"),
    ...     checkpoint=f"{folder.name}/checkpoint",
    ...     trigger={"availableNow": True},
    ...     buckets=1,
    ... )
    >>> query.awaitTermination()
    >>> dt.progress(query).stages[0].rows
    {'orders': 1}
    >>> folder.cleanup()
    """
    last = query.lastProgress
    if last is not None and not _has_run(last):
        last = next(reversed(_micro_batches(query)), None)
    return None if last is None else progress_of_spark(last, query.parts)


@validated
def recent(query: AQuery) -> list[Progress]:
    """Return the figures of a query's last micro-batches, the oldest first.

    Spark keeps 100 reports (``spark.sql.streaming.numRecentProgressUpdates``). Some of them only
    say that the query waits for data. These are left out here, so there may be fewer micro-batches.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started; it may have ended.

    Returns
    -------
    list of Progress
        One item per micro-batch.

    Raises
    ------
    PlanError
        If ``query`` is no query of dovetail's.

    See Also
    --------
    progress : Return the figures of the last micro-batch.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
    >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(1) AS at")
    >>> rows.write.parquet(f"{folder.name}/orders")
    >>> live = spark.readStream.schema(rows.schema).parquet(f"{folder.name}/orders")
    >>> orders = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders")
    >>> query = orders.group_by("amount").agg(n=dt.count()).write_stream(
    ...     dt.to_memory("recent_amounts"),
    ...     checkpoint=f"{folder.name}/checkpoint",
    ...     trigger={"availableNow": True},
    ...     buckets=1,
    ... )
    >>> query.awaitTermination()
    >>> [progress.batch for progress in dt.metrics.recent(query)]
    [0]
    >>> folder.cleanup()
    """
    return [progress_of_spark(progress, query.parts) for progress in _micro_batches(query)]


def _has_run(spark_progress: StreamingQueryProgress) -> bool:
    """Return True if Spark's report is of a micro-batch that ran. Spark also reports that a query
    waits for data, under the id of the micro-batch that is to come: return False for that.
    """
    return "addBatch" in spark_progress.durationMs


def _micro_batches(query: TopologyQuery) -> list[StreamingQueryProgress]:
    """Return Spark's progress of the micro-batches that Spark still has, the oldest first. Reports
    of waiting are left out.
    """
    return [progress for progress in query.recentProgress if _has_run(progress)]


class ProgressFollower:
    """A reader of a query's progress, which returns each micro-batch once, if Spark still has it.
    Callers in several threads need a lock.
    """

    def __init__(self, query: TopologyQuery) -> None:
        """Begin before the first report of ``query``. Nothing is read yet."""
        self._query, self._latest = query, ""
        """The time of the last report that was read."""

    def new_batches(self) -> list[Progress]:
        """Return the micro-batches that have ended since the last call, the oldest first; empty for
        none. The first call returns all that Spark still has. Micro-batches that Spark has dropped
        between two calls are missing, without an error. Reports that the query waits are skipped.
        """
        reports = self._query.progress_since(self._latest)
        if reports:
            self._latest = reports[-1].timestamp
        return [
            progress_of_spark(report, self._query.parts) for report in reports if _has_run(report)
        ]


def progress_of_spark(spark_progress: StreamingQueryProgress, parts: QueryParts) -> Progress:
    """Return Spark's progress of a micro-batch, which must have run, as a ``Progress``. ``parts``:
    the query's inputs and stages, by which Spark's figures are named. Figures that Spark does not
    tell are 0, and stages are in the order of their ``number``.
    """
    durations = spark_progress.durationMs
    phases: dict[str, int] = {}
    for name, phase in PHASES.items():
        if name in durations:
            phases[phase] = phases.get(phase, 0) + int(durations[name])
    observed: Mapping[str, Any] = {
        name: row.asDict() for name, row in spark_progress.observedMetrics.items()
    }
    unused = {
        name: Unused(rows, example) for name, (rows, example) in unused_rows(observed).items()
    }
    lookups = {
        name: {kind: int(number or 0) for kind, number in row.items()}
        for name, row in observed.items()
        if metric_name("", "lookups") in name
    }
    started, total_ms = (
        _parse_time(spark_progress.timestamp),
        int(durations.get("triggerExecution", 0)),
    )
    stages = sorted(
        _stage_figures(spark_progress, parts, observed, started), key=lambda s: s.number
    )
    ended = started + timedelta(milliseconds=total_ms)
    return Progress(
        batch=spark_progress.batchId,
        started=started,
        total_ms=total_ms,
        phases_ms=phases,
        inputs=tuple(_input_figures(spark_progress, parts, stages, ended)),
        stages=tuple(stages),
        unused=unused,
        lookups=lookups,
        steps_ms=_step_times_ms(stages, total_ms - phases.get("log", 0)),
    )


def _step_times_ms(stages: Sequence[StageProgress], end_ms: float) -> dict[str, float]:
    """Return the milliseconds of each step of the phase ``work``, by step. The keys are those of
    ``Progress.steps_ms``. All but ``"sink"`` are sums over ``stages``, whose tasks run at the same
    time, so they may exceed the phase. ``"sink"`` is the time from the last stage's end to
    ``end_ms``, at least 0. It is missing if no stage has told its end.

    ``end_ms``: the end of the phase, in milliseconds from the start of the micro-batch.
    """
    steps = {
        "read": sum(stage.read_ms for stage in stages),
        "pack": sum(stage.pack_ms for stage in stages),
        "shuffle": sum(stage.shuffle_ms for stage in stages),
        "receive": sum(stage.receive_ms for stage in stages),
        "load": sum(stage.load_ms for stage in stages),
        "operators": sum(stage.work_ms - stage.state_ms for stage in stages),
        "state": sum(stage.state_ms for stage in stages),
        "commit": sum(stage.commit_ms for stage in stages),
    }
    last_ms = max((stage.ended_ms for stage in stages), default=0.0)
    if last_ms:
        steps["sink"] = max(end_ms - last_ms, 0.0)
    return {step: round(ms, 3) for step, ms in steps.items()}


def _input_figures(
    spark_progress: StreamingQueryProgress,
    parts: QueryParts,
    stages: Sequence[StageProgress],
    ended: datetime,
) -> Iterator[InputProgress]:
    """Yield the figures of each of Spark's sources, in Spark's order, so several with one name for
    an input of several sources. Names are empty if Spark does not list as many sources as ``parts``
    has inputs.

    ``lag_s`` is ``ended`` less the input's stream time (largest timestamp read) in any stage, in
    seconds. It is None for an input without a name or without stream time. ``stages``: their
    figures, with stream times. ``ended``: the end of the micro-batch.
    """
    sources = spark_progress.sources
    known = len(parts.inputs) == len(sources)
    inputs_of = {part.number: part.inputs for part in parts.stages}
    times = [
        (name, stage.stream_time[shown])
        for stage in stages
        for name, shown in zip(
            inputs_of[stage.number], number_repeated_names(inputs_of[stage.number]), strict=True
        )
        if shown in stage.stream_time
    ]
    for index, source in enumerate(sources):
        name = parts.inputs[index] if known else ""
        behind = _numeric_metrics(source.metrics or {})
        latest = max((time for of, time in times if of == name), default=None)
        lag_s = None if latest is None else (ended - latest).total_seconds()
        yield InputProgress(name, source.description, source.numInputRows, behind, lag_s)


def _numeric_metrics(metrics: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of a source whose texts are numbers, by name, as floats; empty if there
    are none.
    """
    numbers = {}
    for name, text in metrics.items():
        with suppress(TypeError, ValueError):
            numbers[name] = float(text)
    return numbers


def _stage_figures(
    spark_progress: StreamingQueryProgress,
    parts: QueryParts,
    observed: Mapping[str, Any],
    started: datetime,
) -> Iterator[StageProgress]:
    """Yield the figures of each stage in ``parts``, in that order. Figures of Spark's state store
    are 0 for fused stages, as the last stage of their operator has them. All are 0 if Spark does
    not list as many operators as there are other stages.

    ``observed``: Spark's observed metrics, each a dict of its fields, by name. ``started``: the
    start of the micro-batch.
    """
    operators = [
        operator
        for operator in spark_progress.stateOperators
        if operator.operatorName == STATE_OPERATOR
    ]
    known = sum(not part.fused for part in parts.stages) == len(operators)
    remaining = iter(operators)
    for part in parts.stages:
        texts = observed.get(part.report, {}).get("buckets") or []
        reports = [BucketReport.from_text(text) for text in texts]
        progress = _figures_of_reports(part, reports, started)
        if known and not part.fused:
            operator = next(remaining)
            progress = replace(
                progress,
                state_bytes=int(operator.customMetrics.get("rocksdbSstFileSize", 0)),
                memory_bytes=operator.memoryUsedBytes,
                commit_ms=operator.commitTimeMs,
                load_ms=int(operator.customMetrics.get("rocksdbLoadLatencyMs", 0)),
            )
        yield progress


def _figures_of_reports(
    part: StagePart, reports: Sequence[BucketReport], started: datetime
) -> StageProgress:
    """Return the figures of the stage ``part`` from the ``reports`` of its buckets, without those
    of Spark's state store. Without reports all figures are 0 or empty. ``started``: the start of
    the micro-batch, with a time zone.
    """
    if not reports:
        return StageProgress(part.number, part.title)
    names = number_repeated_names(part.inputs)
    times = [
        max((t for report in reports if (t := report.stream_us[index]) is not None), default=None)
        for index in range(len(names))
    ]
    began_us = min(report.began_us for report in reports)
    packed_us = max(report.packed_us for report in reports)
    started_us = (started - EPOCH) // timedelta(microseconds=1)
    return StageProgress(
        part.number,
        part.title,
        rows=_sums_by_name(names, [report.rows for report in reports]),
        changes=sum(report.changes for report in reports),
        deletes=sum(report.deletes for report in reports),
        stream_time={
            name: utc_datetime(time_us)
            for name, time_us in zip(names, times, strict=True)
            if time_us is not None
        },
        work_ms=sum(report.work_us for report in reports) / 1000,
        state_ms=sum(report.state_us for report in reports) / 1000,
        slowest_ms=max(report.work_us for report in reports) / 1000,
        buckets=len(reports),
        tombstones=_sums_by_name(names, [report.tombstones for report in reports]),
        matched=_sums_by_name(part.pairs, [report.matched for report in reports]),
        unmatched=_sums_by_name(part.pairs, [report.unmatched for report in reports]),
        waiting=_sums_by_name(part.waits, [report.waiting for report in reports]),
        stored_rows=sum(report.stored_rows for report in reports),
        stored_bytes=sum(report.stored_bytes for report in reports),
        read_ms=sum(report.read_us for report in reports) / 1000,
        pack_ms=sum(report.pack_us for report in reports) / 1000,
        shuffle_ms=max(began_us - packed_us, 0) / 1000 if packed_us else 0.0,
        receive_ms=sum(report.receive_us for report in reports) / 1000,
        began_ms=(began_us - started_us) / 1000,
        ended_ms=(max(report.ended_us for report in reports) - started_us) / 1000,
    )


def _sums_by_name(names: Sequence[str], lists: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the sum of each name's counts over all buckets, by name; 0 without buckets. ``names``:
    distinct. ``lists``: for each bucket a count per name, in the order of ``names``.
    """
    sums = dict.fromkeys(names, 0)
    for numbers in lists:
        for name, number in zip(names, numbers, strict=True):
            sums[name] += number
    return sums


def _parse_time(text: str) -> datetime:
    """Return the time in a text of Spark's, such as ``2024-05-01T10:00:00.000Z``, as a datetime
    with the zone UTC.
    """
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _text_lines(progress: Progress) -> Iterator[str]:
    """Yield a micro-batch's figures as lines of text: the micro-batch, then each input, each stage
    with its details, and each counter of unused rows. Lookups and steps are not shown.
    """
    phases = ", ".join(f"{phase} {ms}" for phase, ms in progress.phases_ms.items())
    began = progress.started.strftime("%Y-%m-%d %H:%M:%S")
    yield f"micro-batch {progress.batch} of {began}: {progress.total_ms} ms ({phases})"
    for input_ in progress.inputs:
        behind = "".join(f", {name} {number:g}" for name, number in input_.behind.items())
        yield f"  {input_.name or input_.source}: {input_.rows} rows read{behind}"
    for stage in progress.stages:
        came = ", ".join(f"{rows} of {name}" for name, rows in stage.rows.items())
        yield (
            f"  {stage.number}. {stage.title}: {came} -> {stage.changes} changes, "
            f"{stage.deletes} of them deletes; {stage.work_ms:.0f} ms in {stage.buckets} buckets, "
            f"{stage.state_ms:.0f} of them in the state store"
        )
        for name, rows in stage.unmatched.items():
            yield f"     {name}: {stage.matched[name]} matched, {rows} unmatched"
        for name, rows in stage.waiting.items():
            yield f"     {name}: {rows} rows wait"
    for name, unused in progress.unused.items():
        yield f"  {name}: {unused.rows}, such as {unused.example}"
