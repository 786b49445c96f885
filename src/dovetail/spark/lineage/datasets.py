"""The datasets of a query: what its inputs read and its sinks write, with columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from pyspark.sql.types import StructType

from dovetail.base.datasets import Dataset, folder, topic
from dovetail.plan.column_origins import Origin, column_origins, row_origins
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.nodes import Source
from dovetail.plan.spark_sources import SparkSource, spark_sources_of
from dovetail.spark.query.results import Outcome


@dataclass(frozen=True)
class InputDatasets:
    """The datasets that one input of a topology reads, or a store that it asks."""

    name: str
    """The name of the input, or the title of the store."""
    datasets: tuple[Dataset, ...]
    """A folder, a table or topics."""
    columns: StructType
    """The columns that the topology reads; empty for a store."""


@dataclass(frozen=True)
class ColumnUse:
    """A column of a dataset, and the use that an output makes of it."""

    dataset: Dataset
    column: str
    use: str
    """The use, a word of ``plan.column_origins``, such as ``identity`` or ``filter``."""


@dataclass(frozen=True)
class OutputDataset:
    """The dataset that one sink writes."""

    dataset: Dataset
    columns: StructType
    """The columns that are written."""
    made_of: dict[str, tuple[ColumnUse, ...]] = field(default_factory=dict)
    """For each column, the columns that its values are made of; empty for dead letters."""
    decided_by: tuple[ColumnUse, ...] = ()
    """The columns that decide which rows there are."""


@dataclass(frozen=True)
class QueryDatasets:
    """All datasets of a query."""

    inputs: tuple[InputDatasets, ...]
    outputs: tuple[OutputDataset, ...]


def datasets_of(outcomes: Sequence[Outcome], namespace: str) -> QueryDatasets:
    """Return the datasets of a query. ``outcomes``: its results with their sinks, and the dead
    letters with theirs.

    Inputs come in the order of first use, then the stores that are asked. There is an output for
    each sink, in order. ``namespace``: that of inputs, stores and sinks that are no datasets of a
    known system; these are named by their name or title.
    """
    nodes = [o.node for o in outcomes if not isinstance(o.node, DeadLetters)]
    sources = list(dict.fromkeys(source for node in nodes for source in node.origins))
    places = {source: _datasets_of_input(source, namespace) for source in sources}
    uses = {node: (column_origins(node), row_origins(node)) for node in nodes}
    stores = {
        origin.source: StructType()
        for columns, rows in uses.values()
        for origin in sorted(
            {*rows, *(used for origins in columns.values() for used in origins)}, key=_sort_key
        )
        if not isinstance(origin.source, Source)
    }
    inputs = [InputDatasets(source.name, places[source], source.row) for source in sources]
    for store, fields in stores.items():
        inputs.append(InputDatasets(store.title, (Dataset(namespace, store.title),), fields))
    outputs = []
    for outcome in outcomes:
        columns, rows = uses.get(outcome.node, ({}, frozenset()))
        made_of = {
            name: _column_uses(origins, places, namespace) for name, origins in columns.items()
        }
        for sink, title in zip(outcome.sinks, outcome.titles, strict=True):
            dataset = getattr(sink, "dataset", Dataset(namespace, title))
            outputs.append(
                OutputDataset(
                    dataset, outcome.node.row, made_of, _column_uses(rows, places, namespace)
                )
            )
    return QueryDatasets(tuple(inputs), tuple(outputs))


def _column_uses(
    origins: Iterable[Origin], places: dict[Source, tuple[Dataset, ...]], namespace: str
) -> tuple[ColumnUse, ...]:
    """Return the ``origins`` of a column, or of rows, as columns of datasets with their uses, such
    as ``identity`` or ``filter`` (``plan.column_origins.Use``). They are sorted by input, column
    and use. An input of several datasets gives one element for each of them. Nothing is merged.

    ``places``: the datasets of each source. ``namespace``: that of lookup stores.
    """
    return tuple(
        ColumnUse(dataset, origin.column, origin.use)
        for origin in sorted(origins, key=_sort_key)
        for dataset in (
            places[origin.source]
            if isinstance(origin.source, Source)
            else [Dataset(namespace, origin.source.title)]
        )
    )


def _sort_key(origin: Origin) -> tuple[str, str, str]:
    """Return the texts by which origins of columns are sorted: the name of the input or store, the
    column and the use.
    """
    name = origin.source.name if isinstance(origin.source, Source) else origin.source.title
    return name, origin.column, origin.use


def _datasets_of_input(source: Source, namespace: str) -> tuple[Dataset, ...]:
    """Return the distinct datasets that an input reads: its topics, folders or tables, in order. If
    none is known, as for a static frame, return one of the input's name in ``namespace``.
    """
    streams = [] if source.frame is None or source.static else spark_sources_of(source.frame)
    datasets = chain.from_iterable(map(_datasets_of_leaf, streams))
    return tuple(dict.fromkeys(datasets)) or (Dataset(namespace, source.name),)


def _datasets_of_leaf(leaf: SparkSource) -> list[Dataset]:
    """Return the datasets of ``leaf``, one of Spark's streaming sources: its topics in the order
    given, or its folder. A pattern of topics counts as the name of one topic. Empty if the source
    is of another kind.
    """
    if leaf.format == "kafka":
        servers = leaf.options.get("kafka.bootstrap.servers", "")
        return [topic(servers, name) for name in _topics_of(leaf.options)]
    return [] if leaf.folder is None else [folder(leaf.folder)]


def _topics_of(options: Mapping[str, str]) -> list[str]:
    """Return the topics that the ``options`` of a Kafka source name, in the order given, or the
    pattern of their names. Spark takes exactly one of the three options.
    """
    if "subscribepattern" in options:
        return [options["subscribepattern"].strip()]
    if "assign" in options:
        return [*json.loads(options["assign"])]
    names = options.get("subscribe", "").split(",")
    return [name.strip() for name in names if name.strip()]
