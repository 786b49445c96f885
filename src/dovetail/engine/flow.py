"""The physical plan, run: from stage to stage, in whatever way rows travel.

One walk for all that run a topology. What differs is a ``Flow``: DataFrames of a streaming query or
of a batch run (``spark.frames``), or tables in this process (``engine.local``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dovetail.physical.stage import Port, Stage
from dovetail.plan.nodes import Source

R = TypeVar("R")
P = TypeVar("P")


class Flow(ABC, Generic[R, P]):
    """How rows travel: ``R``, the changes of a stage as flat rows; ``P``, rows that are packed, on
    their way to the buckets of a stage.
    """

    @abstractmethod
    def packed(self, stage: Stage, number: int, port: Port, rows: R | None) -> P:
        """The rows of a stage's input, packed by key: of its source or, if given, those ``rows`` of
        another stage.
        """

    @abstractmethod
    def partitioned(self, stage: Stage, inputs: list[P], by: str, number: int) -> P:
        """What a stage makes of its inputs, packed and partitioned by the hash in column ``by``, as
        input ``number`` of another.
        """

    @abstractmethod
    def changes(self, stage: Stage, inputs: list[P]) -> R:
        """What a stage makes of its inputs, as the changelog of its node."""


def changes(stage: Stage, flow: Flow[R, P]) -> R:
    """The changelog of a stage's node, through all stages that feed it."""
    return flow.changes(stage, _inputs(stage, flow))


def _inputs(stage: Stage, flow: Flow[R, P]) -> list[P]:
    return [_reaching(stage, number, port, flow) for number, port in enumerate(stage.ports)]


def _reaching(stage: Stage, number: int, port: Port, flow: Flow[R, P]) -> P:
    origin = port.origin
    if isinstance(origin, Source):
        return flow.packed(stage, number, port, None)
    if port.hash_column is not None:
        return flow.partitioned(origin, _inputs(origin, flow), port.hash_column, number)
    return flow.packed(stage, number, port, changes(origin, flow))
