"""What a checkpoint's file says of its stages and of what they store, so that state can be read
without the topology that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dovetail.physical.law import Store
from dovetail.physical.stage import Stage, stages


@dataclass(frozen=True)
class StageLayout:
    """A stage as ``explain`` numbers it; ``topology``: what its state is bound to."""

    number: int
    title: str
    topology: str
    stores: Mapping[str, Store]


def described(last: Stage) -> list[dict[str, Any]]:
    """All stages, as JSON's own data."""
    return [
        {
            "title": stage.fragment.title,
            "topology": stage.fragment.topology,
            "stores": {name: _store(store) for name, store in stage.fragment.stores.items()},
        }
        for stage in stages(last)
    ]


def layout(described: Sequence[Mapping[str, Any]]) -> Iterator[StageLayout]:
    """The stages that ``described`` has written down."""
    for number, stage in enumerate(described, start=1):
        stores = {name: _read(store) for name, store in stage["stores"].items()}
        yield StageLayout(number, stage["title"], stage["topology"], stores)


def _store(store: Store) -> dict[str, Any]:
    fields = from_arrow_schema(pa.schema(store.fields)).jsonValue()
    return {**asdict(store), "fields": fields}


def _read(store: Mapping[str, Any]) -> Store:
    fields = to_arrow_schema(StructType.fromJson(store["fields"]))
    lists = {name: tuple(store[name]) for name in ("key", "clocks")}
    return Store(**{**store, **lists, "fields": tuple(fields)})
