"""Rows of results, explained by the rows that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import fspath
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.base.validation import Path, Positive, Text, validated
from dovetail.engine import store_contents
from dovetail.engine.fragment import latest_times
from dovetail.errors import ConfigurationError
from dovetail.operators.job import END_OF_TIME
from dovetail.physical.stage import Stage
from dovetail.plan.nodes import Node
from dovetail.provenance.explanation import RowExplanation
from dovetail.provenance.key import KeyValue, key_of, key_of_named_texts
from dovetail.provenance.stored_rows import in_microseconds, key_columns, matching
from dovetail.provenance.walk import Walk
from dovetail.spark.checkpoints.state_lookup import Lookups, index_of, with_latest_state
from dovetail.spark.checkpoints.state_reader import Topologies
from dovetail.spark.checkpoints.state_results import find_result, stages_as_stored
from dovetail.spark.checkpoints.stores import CheckpointStores, StageStore
from dovetail.spark.execution.expressions import Evaluator


@validated
def explain_row(
    checkpoint: Path,
    topology: Topologies,
    key: KeyValue,
    *,
    result: Text | None = None,
    members: Positive = 20,
) -> RowExplanation:
    """Explain a row of a result: the rows of inputs that make it, or why there is no such row.

    The query may run meanwhile. What it has stored after its last committed micro-batch is
    read, a few rows of each table.

    Parameters
    ----------
    checkpoint : str or path
        The checkpoint of the query.
    topology : Table, Stream or list of these
        The table that the query keeps, one of the results of ``run``, or the list of all.
    key : value, tuple or dict
        The key of the row: a value or, of several columns, a tuple or a mapping.
    result : str, optional
        The name of a join, an aggregate or a view within the topology whose row is explained. With
        a list, it may be the name of a result. By default it is the only result.
    members : int, default 20
        The largest number of rows of a group that are named; the reason has the count of the
        others. Of a join of two streams it holds for each side.

    Returns
    -------
    RowExplanation
        A tree, which prints as text. Its leaves are rows of inputs.

    Raises
    ------
    CheckpointError
        If the folder is no checkpoint of a query, or of another topology's.
    ConfigurationError
        If nothing in the topology has the name ``result``, or several results have it. Also
        if ``result`` is missing with a list of several, or if Spark cannot read the checkpoint.
    PlanError
        If a value of the key has another type, or if the key has other columns. Also for a null,
        unless keys of the result may have nulls.
    StateError
        If the state is in the format of another version.

    See Also
    --------
    read_state : Read all rows of a table or of a join's result.
    Driver.explain_row : Explain a row of a topology in process.

    Notes
    -----
    The active Spark session computes the topology's expressions.

    A row is found by its key within milliseconds after the first call, as ``lookup_state`` does.
    The rows of a group, and the rows that refer to a row, are sought in the whole store. Records of
    streams are not stored once they are written or aggregated, and the explanation says so.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = rows.selectExpr("value AS id", "10 * value AS amount", "timestamp AS at")
    >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    >>> large = orders.where("amount > 10")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoint = f"{folder.name}/checkpoint"
    >>> query = large.write_stream(
    ...     dt.to_parquet(f"{folder.name}/large"),
    ...     checkpoint=checkpoint,
    ...     trigger={"availableNow": True},
    ...     buckets=1,
    ... )
    >>> query.awaitTermination()
    >>> dt.checkpoints.explain_row(checkpoint, large, 2).values
    {'amount': 20}
    >>> dt.checkpoints.explain_row(checkpoint, large, 7).reason
    'orders has no row with id 7, or none that meets `amount > 10`'
    """
    topologies = topology if isinstance(topology, Sequence) else [topology]
    nodes = [planned.plan for planned in topologies]
    spark = SparkSession.active()
    return explain_stored_row("explain_row", spark, fspath(checkpoint), nodes, key, result, members)


def explain_stored_row(
    caller: str,
    spark: SparkSession,
    checkpoint: str,
    nodes: Sequence[Node],
    key: Any,
    result: str | None,
    members: int = 20,
    *,
    as_text: bool = False,
) -> RowExplanation:
    """Return the explanation of the row with a key, in the state after the last committed
    micro-batch, for ``explain_row``.

    ``nodes``: one result of the query, or all. ``result``: the name of the one that is meant, or of
    a join, aggregate or view within them; None for the only one. ``members``: the most rows of a
    group that are named. ``as_text``: True if ``key`` is a mapping of texts. ``spark``: the session
    that computes expressions, and reads files that are not local. ``caller``: the user's call, to
    begin errors.

    Raises ``PlanError`` for a key of other columns or types, and for a null in the key of a result
    that allows none. Raises ``CheckpointError`` if the folder is no checkpoint, or of another
    topology. Raises ``ConfigurationError`` for a ``result`` that is unknown, ambiguous, or missing
    with several results, and if Spark cannot read the checkpoint.
    """

    def walk(lookups: Lookups, stored: CheckpointStores) -> RowExplanation:
        """Return the explanation of the row with ``key`` from the stores ``stored``, whose rows
        ``lookups`` reads. Raises ``PlanError`` for a key that does not fit, and the errors of
        ``_find_node``.
        """
        node, whole = _find_node(stored, nodes, result)
        stages = stages_as_stored(stored, whole)
        state = CheckpointState(lookups, stored)
        columns = (key_of_named_texts if as_text else key_of)(caller, node, key)
        return Walk(stages, state, Evaluator(spark), members).row(node, columns)

    return with_latest_state(caller, checkpoint, walk, spark)


def _find_node(
    stored: CheckpointStores, nodes: Sequence[Node], result: str | None
) -> tuple[Node, Node]:
    """Return the node that is called ``result``, and the query's result within which it is
    computed. If ``result`` is None, both are the only one of ``nodes``.

    Raises ``ConfigurationError`` for a name that is unknown, ambiguous, or missing with several
    results. Raises ``CheckpointError`` if ``nodes`` are not results of the checkpoint's query.
    """
    meant = find_result(stored, nodes, result)
    if meant is None:
        names = ", ".join(repr(node.name) for node in nodes)
        raise ConfigurationError(
            stored.caller, f"nothing in the topology is called {result!r}", f"It has {names}"
        )
    return meant


class CheckpointState:
    """The stores of a checkpoint after a micro-batch, as ``provenance.walk.Walk`` reads them."""

    def __init__(self, lookups: Lookups, stored: CheckpointStores) -> None:
        """Take the stores ``stored`` of the same checkpoint as ``lookups``, which read and cache
        rows.
        """
        self._lookups, self._stored = lookups, stored

    def rows(
        self, stage: Stage, store: str, match: Mapping[str, Any], at_us: int | None = None
    ) -> pa.Table:
        """Return the rows of the stage's store named ``store`` whose columns equal ``match``,
        values by column name. Before anything is stored, return an empty table of the columns.
        ``at_us``: of versions, return the last at or before this time in microseconds, if it is no
        delete; None for the last of all. Other stores ignore it.

        Rows are looked up if ``match`` has just the key's columns, in order and without nulls. Else
        they are sought in the whole store, with all its versions and deletes and without regard to
        ``at_us``. Null then equals null, and an empty ``match`` gives all rows.

        The columns are those of ``store_contents.schema_of``, with ``_timestamp`` and ``_due`` as
        int64, in microseconds.
        """
        stage_store = self._find_store(stage, store)
        if stage_store is None:
            schema = store_contents.schema_of(stage.fragment.stores[store])
            return in_microseconds(schema.empty_table())
        if self._is_key(stage_store, match):
            columns = key_columns(
                [_type_of(stage_store, name) for name in match], [*match.values()]
            )
            time_us = END_OF_TIME if at_us is None else at_us
            return in_microseconds(
                self._lookups.rows_of_keys(self._stored, stage_store, columns, time_us)
            )
        tables = self._lookups.all_rows(self._stored, stage_store)
        return pa.concat_tables([matching(in_microseconds(table), match) for table in tables])

    def _is_key(self, stage_store: StageStore, match: Mapping[str, Any]) -> bool:
        """Return True if ``match`` has just the key columns of a store, in order and without nulls,
        and the store finds rows by its key.
        """
        store = stage_store.store
        key_names = [field.name for field in store.own_key]
        if key_names != [*match] or any(value is None for value in match.values()):
            return False
        hashed = store.hashed and store.kind != "queue"
        return hashed or index_of(self._stored, stage_store) is not None

    def stream_times_us(self, stage: Stage) -> Sequence[int | None]:
        """Return the latest stream time (largest timestamp read) of each input over all buckets, in
        microseconds, in the order of the stage's sources. None stands for an input without rows so
        far. Before the stage has stored anything, all are None.
        """
        topology = stage.fragment.topology
        manifests = (
            manifest
            for stage_store in self._stored.stores
            if stage_store.stage.topology == topology
            for manifest in stage_store.buckets.values()
        )
        none = (None,) * len(stage.fragment.sources)
        return latest_times(none, *(manifest.stream_time_us for manifest in manifests))

    def _find_store(self, stage: Stage, store: str) -> StageStore | None:
        """Return the store named ``store`` of a stage as the checkpoint has it, None before the
        stage has stored anything.
        """
        topology = stage.fragment.topology
        return next(
            (k for k in self._stored.stores if (k.stage.topology, k.name) == (topology, store)),
            None,
        )


def _type_of(stage_store: StageStore, name: str) -> pa.DataType:
    """Return the Arrow type of the column ``name`` of a store, which must have it."""
    return next(field.type for field in stage_store.store.fields if field.name == name)
