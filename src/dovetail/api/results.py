"""Several results in one query, and the upgrade of a checkpoint to another topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import fspath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, overload

from dovetail.api.topology import ATopology, Planned, Topology
from dovetail.base.validation import Path, Rule, validated
from dovetail.errors import CheckpointError, PlanError
from dovetail.io.sinks.spark_sinks import FunctionSink
from dovetail.physical.fragment import Buckets
from dovetail.pictures.formats import ExplainFormat, PictureFormat, print_or_draw
from dovetail.plan.changelog_source import Session
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.fingerprint import in_checkpoint_order
from dovetail.spark.checkpoints.checkpoint import BEGINNING, FOLLOWS
from dovetail.spark.metrics.progress import AQuery
from dovetail.spark.query import first_batch, start, takeover
from dovetail.spark.query.options import QueryOptions
from dovetail.spark.query.results import BatchSink, Outcome
from dovetail.spark.query.start import A_SINK
from dovetail.spark.query.topology_query import TopologyQuery
from dovetail.spark.query.writer import StartRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Unpack


class _DeadLetters:
    """The result ``dt.dead_letters`` of ``run``: the rows that a query leaves out as unusable.

    They are rows on which an expression fails: one of a foreign key, or of a call with
    ``errors="dead_letter"``. The records that sources with ``malformed="dead_letter"``
    cannot read are among them.

    See Also
    --------
    run : Write several results, dead letters among them, by one query.
    Table.dead_letters : Read dead letters by a query of their own.

    Notes
    -----
    The result is a stream with the columns of every changelog and:

    - ``_operator``: the source, view or join that left the row out;
    - ``_problem``: the reason;
    - ``row``: the row as JSON.

    ``_timestamp`` is the row's event time, or the time of the micro-batch if the row has
    none.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.dead_letters
    dead_letters
    """

    plan = DeadLetters()

    def __repr__(self) -> str:
        return "dead_letters"


dead_letters = _DeadLetters()

AResult: TypeAlias = Annotated[
    Topology | _DeadLetters, Rule("a Table, a Stream or dt.dead_letters")
]
ABatchSink: TypeAlias = Annotated[BatchSink, Rule(A_SINK)]
Sinks: TypeAlias = ABatchSink | Sequence[ABatchSink]
Topologies: TypeAlias = Annotated[
    ATopology | Sequence[ATopology],
    Rule("a Table or a Stream, or a list of them", lambda results: results not in ([], ())),
]
Results: TypeAlias = Annotated[
    Mapping[AResult, Sinks],
    Rule(
        "a mapping of Tables, Streams and dt.dead_letters to sinks, or to lists of sinks",
        lambda outputs: bool(outputs) and all(map(_as_tuple, outputs.values())),
    ),
]


@validated
def run(
    results: Results,
    *,
    checkpoint: Path,
    **options: Unpack[QueryOptions],
) -> StreamingQuery:
    """Start one query that keeps the sinks of several results up to date.

    Parts that results have in common run once and are stored once. These are the stages
    that ``explain`` shows, and the sources, each of which a micro-batch reads once.

    Parameters
    ----------
    results : mapping
        The sink of each result, or a list of its sinks, by the result. A result is a
        ``Table``, a ``Stream`` or ``dt.dead_letters``, which stands for rows that are left
        out as unusable.
    checkpoint : str or path
        The folder for the query's state. Started again with it, the query goes on where it
        stopped, and loses and doubles nothing.
    **options : QueryOptions
        Settings of the query, each an argument of its own. ``dt.typing.QueryOptions``
        describes them.

    Returns
    -------
    StreamingQuery
        The running query.

    Raises
    ------
    PlanError
        If ``results`` has dead letters only, one result twice, or one target in two sinks.
        Also if a frame is not a streaming one. Two inputs of one name and the same columns
        are refused, because the checkpoint could not tell them apart. Also for arguments
        that contradict each other, such as two triggers.
    CheckpointError
        If the checkpoint belongs to other results or to a query that runs.
    ConfigurationError
        If the session or its workers lack something that the query needs.
    TargetError
        If a sink refuses its target.

    See Also
    --------
    Table.write_stream : Start a query with one result and one sink.
    explain : Print the stages of several results.
    upgrade : Turn a checkpoint into one for other results.

    Notes
    -----
    - The changelog of each result is that of a query for it alone.
    - All results of a micro-batch are computed from the same input.
    - Sinks are written at the same time, and each keeps the promises that it has alone.
      After a failure, the micro-batch is written again to all sinks. A sink that takes a
      micro-batch once doubles nothing.
    - A checkpoint belongs to its set of results, in any order. At each start, sinks may be
      others, and dead letters may be added or left out. A target that is left out for some
      starts and then named again lacks the changes in between, and no sink notices.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = rows.selectExpr("value AS id", "10 * value AS amount", "timestamp AS at")
    >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    >>> large = orders.where("amount > 5")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     query = dt.run(
    ...         {orders: dt.to_parquet(f"{folder}/orders"), large: dt.to_memory("large_orders")},
    ...         checkpoint=f"{folder}/checkpoint",
    ...         trigger={"availableNow": True},
    ...         buckets=1,
    ...     )
    ...     query.awaitTermination()
    >>> spark.table("large_orders").select("id", "amount").orderBy("id").collect()
    [Row(id=1, amount=10), Row(id=2, amount=20)]
    """
    nodes = [result.plan for result in results if isinstance(result, Topology)]
    if not nodes:
        raise PlanError("run", "results= has dead letters only", "Name what they are left out of")
    if len(set(nodes)) < len(nodes):
        raise PlanError("run", "results= has one of them twice", "Give it a list of sinks")
    outcomes = [Outcome(r.plan, _as_tuple(sinks)) for r, sinks in results.items()]
    named = [s for o in outcomes for s in o.sinks if not isinstance(s, FunctionSink)]
    targets = [getattr(sink, "target", sink.title) for sink in named]
    for sink, target in zip(named, targets, strict=True):
        if targets.count(target) > 1:
            raise PlanError("run", f"results= has {sink.title} twice", "Give each one of its own")
    return start.start_query(
        "run",
        outcomes,
        checkpoint,
        options,
    )


def _as_tuple(sinks: Any) -> tuple[Any, ...]:
    """Return sinks as a tuple: a single one alone, or those of a sequence in its order."""
    return tuple(sinks) if isinstance(sinks, Sequence) else (sinks,)


@validated
def upgrade(
    spark: Session,
    old: Path,
    new: Path,
    topology: Topologies,
    *,
    buckets: Buckets | None = None,
    partitions: Buckets | None = None,
    running: bool = False,
    dry_run: bool = False,
) -> DataFrame:
    """Turn a checkpoint into another one, for another topology or other buckets.

    The query of ``old`` must be stopped, or may go on with ``running``. ``old`` stays as it
    is. Nothing is written to sinks.

    Parameters
    ----------
    spark : SparkSession
        The session that copies the state.
    old : str or path
        The checkpoint of a query.
    new : str or path
        The checkpoint to make. It must not have begun, except by an earlier call with
        ``running``.
    topology : Table, Stream or list of these
        The table or stream whose ``write_stream`` will be called with ``new``, or all
        results of ``run``.
    buckets : int, optional
        The number of parts of the key space, 1 to 65536. By default it is that of ``old``.
    partitions : int, optional
        The number of tasks over which buckets are spread, at most the number of buckets. By
        default 2, whatever ``old`` has.
    running : bool, default False
        True if the query of ``old`` runs, here or in another application. The state is
        built beside it, and follows it as far as it has come. The query of ``new`` takes
        over where the old one has stopped.
    dry_run : bool, default False
        True to return what would happen, and change nothing. The query of ``old`` may run.

    Returns
    -------
    DataFrame
        A row for each stage, by number, with the columns ``stage`` (its number in ``explain``),
        ``computes`` and ``begins``: ``carried over`` or ``with the rows of ...``. With
        ``dry_run`` there are two more. ``rows`` is the number of stored rows to read or to
        take over, and ``seconds`` roughly the time of that.

    Raises
    ------
    CheckpointError
        If a stage needs rows that ``old`` does not have, or if ``new`` has begun. Also if a
        query writes either of them, or if one that runs cannot be followed: some of its rows
        wait by ``align`` or ``idle``, or its source removes files that it has read.
    ConfigurationError
        On Spark Connect.
    PlanError
        If a frame of the topology is not a streaming one, or if there are more partitions
        than buckets.

    See Also
    --------
    Table.write_stream : Start a query that goes on from ``initial=old``.
    repartition : Change the number of partitions alone.

    Notes
    -----
    A query that is started with ``new`` emits what it would emit there, had it run from the
    beginning. It reads the sources from where the old query stopped. Sources that the old
    query did not read are read from their beginning. A table's history reaches back as far
    as the old query kept it.

    ``write_stream(initial=old, emit_initial=True)`` does the same and writes the present
    rows to its sink. A call that is killed may be repeated, with the same arguments; ``old``
    is untouched in any case. Source: docs/upgrades.md, which lists the possible changes.

    With ``running``, repeat the call to come nearer to the old query. Then stop that one and
    start the query of ``new``. It processes the rest without its sinks, then goes on with
    them. In one application, ``write_stream(initial=query)`` does all of this.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = rows.selectExpr("value AS id", "10 * value AS amount", "timestamp AS at")
    >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoint = f"{folder.name}/checkpoint"
    >>> sink = dt.to_parquet(f"{folder.name}/orders")
    >>> query = orders.write_stream(
    ...     sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=1
    ... )
    >>> query.awaitTermination()
    >>> steps = dt.checkpoints.upgrade(
    ...     spark, checkpoint, f"{folder.name}/next", orders, buckets=2
    ... )
    >>> steps.collect()
    [Row(stage=1, computes='orders', begins='with the rows of orders')]
    """
    nodes = [result.plan for result in (topology if isinstance(topology, Sequence) else [topology])]
    nodes = in_checkpoint_order(nodes)
    start.streaming_session(*nodes)
    run = StartRequest("upgrade", nodes, (), fspath(new), "change", buckets, partitions)
    bound = run.file.read("upgrade")
    if bound is not None and (FOLLOWS if running else BEGINNING) not in bound:
        raise CheckpointError("upgrade", f"{new} has begun", "Name a folder that is not there yet")
    if dry_run:
        forecast = (takeover if running else first_batch).forecast_of(run, fspath(old))
        return spark.createDataFrame(
            forecast, "stage int, computes string, begins string, rows long, seconds double"
        )
    if bound is None and running:
        bound = takeover.store_running_state(run, fspath(old), emits=False)
    elif bound is None:
        bound = first_batch.prepare_checkpoint(run, old, emits=False)
    steps = first_batch.stage_beginnings(run, bound)
    if BEGINNING in bound:
        bound = first_batch.finish_first_batch(run, bound)
    if FOLLOWS in bound:
        takeover.refuse_another(run, bound, fspath(old))
        takeover.follow_running(run, bound)
    return spark.createDataFrame(steps, "stage int, computes string, begins string")


@overload
def explain(
    *results: Planned | AQuery, format: Literal["text"] = "text", reasons: bool = False
) -> None: ...


@overload
def explain(*results: Planned | AQuery, format: PictureFormat, reasons: bool = False) -> str: ...


@validated
def explain(
    *results: Planned | AQuery,
    format: ExplainFormat = "text",  # noqa: A002
    reasons: bool = False,
) -> str | None:
    """Print or draw the topology of results or of a query: joins, stages, shuffles and state.

    A stage is a step of the query with a shuffle before it. Results share the stages that
    they have in common, and each stage shows the results that leave it. A part that several
    results share is printed once; later trees refer to it with "as above".

    Parameters
    ----------
    *results : Table, Stream, WindowedTable or StreamingQuery
        The results, as for ``run``. Or a query of dovetail's alone, which shows its sinks, too.
    format : {"text", "mermaid", "svg", "html"}, default "text"
        ``"text"`` prints trees of joins and the stages. ``"mermaid"`` is a flowchart, as
        text. ``"svg"`` is an image, and ``"html"`` a page with the image and a table of its
        boxes.
    reasons : bool, default False
        True to say why each stage shuffles and stores rows.

    Returns
    -------
    str or None
        The picture, or None for ``"text"``, which is printed.

    Raises
    ------
    PlanError
        If no result is given, or a query and something else.
    ConfigurationError
        If ``"svg"`` or ``"html"`` is asked for and the package ``grandalf`` is missing.

    See Also
    --------
    Table.explain : Print the topology of one result.
    run : Start a query with several results.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> orders = testing.table("orders", key="id", schema={"id": pa.int64(), "shop": pa.string()})
    >>> counts = orders.group_by("shop").agg(orders=dt.count())
    >>> dt.explain(orders, counts)  # doctest: +ELLIPSIS
    Topology
    orders  (key id; shop)
    ...
    Stage 3
      shuffle  orders by group (shop string)
      state    groups: accumulators per key
      result   aggregate of orders by shop
    """
    if not results:
        raise PlanError("explain", "no result is given", "Give tables and streams: explain(table)")
    queries = [result for result in results if isinstance(result, TopologyQuery)]
    if not queries:
        nodes = tuple(result.plan for result in results if isinstance(result, Planned))
        return print_or_draw(nodes, format, reasons=reasons)
    if len(results) > 1:
        raise PlanError("explain", "a query is given with other arguments", "Explain it alone")
    parts = queries[0].parts
    return print_or_draw(parts.results, format, reasons=reasons, sinks=parts.sinks)
