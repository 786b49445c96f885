"""The description of stages and their stores in a checkpoint's file.

With it, state can be read without the topology that wrote it, and without pyspark, whose import
takes longer than to read a checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.collect import CollectList, CollectSet, LastRow
from dovetail.aggregates.distinct import CountDistinct
from dovetail.aggregates.first_last import End
from dovetail.aggregates.hyperloglog import ApproxCountDistinct
from dovetail.aggregates.min_max import ChangingExtreme, Extreme
from dovetail.aggregates.sums import Count, ExactMean, ExactSum, FloatMean, FloatSum
from dovetail.aggregates.top_values import Top
from dovetail.physical.specs.law import AccumulatedColumn, Store

if TYPE_CHECKING:
    from dovetail.physical.stage import Stage
    from dovetail.plan.nodes import Entry

BINDING_FILE = "dovetail.json"
"""The name of a checkpoint's own file."""
FORMAT_VERSION = 3
"""The version of what that file says."""
OPERATORS = "operators"
"""Key of that file: the stages with state of each of Spark's operators, by their indices from 0.
Without it, each has an operator of its own."""
_KERNELS: dict[str, Any] = {
    kernel.__name__: kernel
    for kernel in (
        *(Count, ExactSum, ExactMean, FloatSum, FloatMean),
        *(Extreme, ChangingExtreme, Top, End, CollectList, CollectSet, LastRow),
        *(CountDistinct, ApproxCountDistinct),
    )
}
_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Spark's types by their names in JSON."""
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


@dataclass(frozen=True)
class StageLayout:
    """A stage of a checkpoint's query: its index as ``explain`` shows it, its stores and its
    inputs.
    """

    number: int
    """Counted from 1."""
    title: str
    """The stage in words."""
    topology: str
    """The fingerprint to which its state is bound."""
    stores: Mapping[str, Store]
    """Its stores by their names. Those whose rows cannot be read back are among them."""
    inputs: Mapping[str, Mapping[str, Any]]
    """The inputs whose rows its stores have, by their names there
    (``fingerprint.describe_input``)."""


def binding_of_text(text: str) -> dict[str, Any]:
    """Return the content of ``dovetail.json`` as JSON data from its text. Raises ``ValueError`` for
    a text that is no JSON, or JSON of anything but a mapping.
    """
    binding = json.loads(text)
    if not isinstance(binding, dict):
        raise ValueError(f"{BINDING_FILE} holds no mapping")
    return binding


def stages_as_json(
    stages: Iterable[Stage], describe: Callable[[Entry], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return stages as JSON data, a dict for each in the order given. Its keys are ``title``,
    ``topology`` (the stage's fingerprint), and ``stores`` and ``inputs``, both by name.

    ``describe``: the function that describes an input as JSON data
    (``fingerprint.describe_input``).
    """
    return [
        {
            "title": stage.fragment.title,
            "topology": stage.fragment.topology,
            "stores": {
                name: _store_as_json(store) for name, store in stage.fragment.stores.items()
            },
            "inputs": {name: describe(entry) for name, entry in stage.inputs.items()},
        }
        for stage in stages
    ]


def stages_of_json(described: Sequence[Mapping[str, Any]]) -> Iterator[StageLayout]:
    """Yield the layout of each stage from the JSON data that ``stages_as_json`` returned, in order.
    Their ``number`` begins at 1. Stages without recorded inputs have none.
    """
    for stage_number, stage in enumerate(described, start=1):
        stores = {name: _store_of_json(store) for name, store in stage["stores"].items()}
        inputs = stage.get("inputs", {})
        yield StageLayout(stage_number, stage["title"], stage["topology"], stores, inputs)


def _store_as_json(store: Store) -> dict[str, Any]:
    """Return a store's attributes by name as JSON data. ``results``, its aggregates, is empty if
    its rows cannot be read back (``store.kind`` is None).
    """
    readable = store.kind is not None
    attributes = {field.name: getattr(store, field.name) for field in fields(store)}
    results = [
        {"kernel": _aggregate_as_json(result.kernel), "lists": result.lists}
        for result in store.results
        if readable
    ]
    return {**attributes, "fields": _columns_as_json(store.fields), "results": results}


def _store_of_json(store: Mapping[str, Any]) -> Store:
    """Return the store from the JSON data that ``_store_as_json`` made of it. Attributes that older
    data lacks have their defaults.
    """
    lists = {name: tuple(store.get(name, ())) for name in ("key", "clocks", "columns")}
    results = (
        AccumulatedColumn(_aggregate_of_json(result["kernel"]), tuple(result["lists"]))
        for result in store["results"]
    )
    columns = _columns_of_json(store["fields"])
    return Store(**{**store, **lists, "fields": columns, "results": tuple(results)})


def _aggregate_as_json(kernel: Aggregate) -> dict[str, Any]:
    """Return an aggregate as JSON data: the ``name`` of its class and the ``parameters`` of its
    constructor. Arrow types are Spark types as JSON data. The class is not checked here: only those
    among ``_KERNELS`` can be read back.
    """
    untyped: Any = kernel
    parameters = {field.name: getattr(kernel, field.name) for field in fields(untyped)}
    types = {
        n: _columns_as_json([pa.field(n, v)])
        for n, v in parameters.items()
        if isinstance(v, pa.DataType)
    }
    return {"name": type(kernel).__name__, "parameters": parameters | types}


def _aggregate_of_json(kernel: Mapping[str, Any]) -> Aggregate:
    """Return the aggregate from the JSON data that ``_aggregate_as_json`` made of it. Raises
    ``KeyError`` if the name of its class is not among ``_KERNELS``.
    """
    parameters = {
        name: _columns_of_json(value)[0].type if isinstance(value, dict) else value
        for name, value in kernel["parameters"].items()
    }
    aggregate: Aggregate = _KERNELS[kernel["name"]](**parameters)
    return aggregate


def _columns_as_json(columns: Sequence[pa.Field]) -> dict[str, Any]:
    """Return columns as the JSON data of a Spark schema: ``type`` and the list ``fields``. This
    imports pyspark, which takes long.
    """
    from dovetail.plan.types.arrow import spark_schema

    return spark_schema(pa.schema(columns)).jsonValue()


def _columns_of_json(columns: Mapping[str, Any]) -> tuple[pa.Field, ...]:
    """Return the columns of a Spark schema's JSON data, nullable at every depth."""
    return tuple(pa.field(field["name"], _arrow_type(field["type"])) for field in columns["fields"])


def _arrow_type(type_: str | Mapping[str, Any]) -> pa.DataType:
    """Return the Arrow type of a Spark type's JSON data: a name, or a mapping for an array, a map
    or a struct. Nested values may be null. An unknown name raises pyspark's error.
    """
    if isinstance(type_, str):
        decimal = _DECIMAL.fullmatch(type_)
        if decimal is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _TYPES[type_] if type_ in _TYPES else _rare_arrow_type(type_)
    if type_["type"] == "array":
        return pa.list_(pa.field("element", _arrow_type(type_["elementType"])))
    if type_["type"] == "map":
        value = pa.field("value", _arrow_type(type_["valueType"]))
        return pa.map_(pa.field("key", _arrow_type(type_["keyType"]), nullable=False), value)
    return pa.struct(_columns_of_json(type_))


def _rare_arrow_type(type_: str) -> pa.DataType:
    """Return the Arrow type of a Spark type that is not in ``_TYPES``, such as an interval, by its
    name in JSON. This imports pyspark, which takes long.
    """
    from pyspark.sql.types import StructType

    from dovetail.plan.types.arrow import arrow_schema

    column = {"name": "value", "type": type_, "nullable": True, "metadata": {}}
    return arrow_schema(StructType.fromJson({"fields": [column]})).field("value").type
