"""What an upgrade will do: how each stage begins, with how many rows, and about how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dovetail.physical.routing import Plan
from dovetail.physical.stage import Stage
from dovetail.spark.checkpoints.stores import CheckpointStores, StageStore
from dovetail.spark.migration.carried_over import CarriedOver

ROWS_PER_CORE_S: Final = 120_000
"""Rows with which a stage begins, in a second on one core: ten million of them took 42 s on two."""
BYTES_PER_CORE_S: Final = 50_000_000
"""Bytes of state that a stage takes over, in a second on one core."""


class Step(NamedTuple):
    """The way in which one stage of an upgraded query begins."""

    stage: int
    """The number in ``explain``."""
    computes: str
    begins: str
    rows: int
    """The stored rows that are copied or read, those that newer ones replace among them."""
    seconds: float
    """The time that this takes, roughly."""


def forecast(
    stored: CheckpointStores, plan: Plan, carried: CarriedOver, begins: Sequence[str], cores: int
) -> Iterator[Step]:
    """Yield a ``Step`` for each stage of ``plan``, in order: its index from 1, its name, how it
    begins, its rows, and the estimated seconds. The estimate for a carried stage is 50 MB of its
    state per second and core. For another stage it is 120,000 rows. A stage that begins empty has 0
    rows and takes no time. Only lists of segments are read.

    ``stored``: the state of the other query. ``carried``: what is carried over. ``begins``: the
    beginning of each stage in words, in order. ``cores``: the count of tasks that run at the same
    time, at least 1.
    """
    carried_stages = carried.stages_of(plan)
    for number, (stage, how) in enumerate(zip(plan.stages, begins, strict=True), start=1):
        if stage in carried_stages:
            topology = stage.fragment.topology
            stores = [store for store in stored.stores if store.stage.topology == topology]
            rows, size_bytes = map(sum, zip((0, 0), *map(_size_of_store, stores), strict=True))
            seconds = size_bytes / BYTES_PER_CORE_S
        else:
            rows = sum(_rows_of_inputs(stored, stage)) if how != "empty" else 0
            seconds = rows / ROWS_PER_CORE_S
        yield Step(number, stage.node.name, how, rows, round(seconds / cores, 1))


def _rows_of_inputs(stored: CheckpointStores, stage: Stage) -> Iterator[int]:
    """Yield a count of stored rows for each table that ``stage`` reads, in the order of its inputs.
    It is 0 for a table that is not stored. Streams are left out.

    The rows of another stage's result are not known before it is computed. The count of the largest
    stored table below it stands for them.
    """
    for entry in dict.fromkeys(stage.inputs.values()):
        names = {entry.name, *(source.name for source in entry.origins)}
        stores = (store for store in stored.stores if store.store.of in names)
        if not entry.stream:
            yield max((_size_of_store(store)[0] for store in stores), default=0)


def _size_of_store(store: StageStore) -> tuple[int, int]:
    """Return (rows, bytes) of a store over all its buckets, (0, 0) for an empty store. Rows that
    newer ones hide count, too. Bytes are before compression.
    """
    segments = [
        segment
        for bucket in store.buckets
        for run in store.runs(bucket).runs
        for segment in run.segments
    ]
    return sum(segment.rows for segment in segments), sum(s.size_bytes for s in segments)
