"""A topology over static frames: the same stages, one batch, state in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.engine import flow
from dovetail.engine.fragment import process
from dovetail.engine.pack import unpack_piece
from dovetail.engine.pieces import Piece, high_time_us
from dovetail.operators.job import END_OF_TIME
from dovetail.physical.fragment import Emit, Fragment
from dovetail.physical.planner import physical_plan
from dovetail.plan.nodes import Node
from dovetail.spark.emission import Emission
from dovetail.spark.frames import Frames, session_of
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def changelog(node: Node, *, emit: Emit, buckets: int | None) -> DataFrame:
    """The changelog of a node whose inputs are static, as a static frame."""
    session = session_of(node)
    if buckets is None:
        buckets = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    stage = physical_plan(node, buckets=buckets, emit=emit)
    return flow.changes(stage, Static(list(range(buckets)), buckets))


@dataclass
class Static(Frames):
    """Over static frames, in one batch."""

    flat = False

    def staged(self, packed: DataFrame, fragment: Fragment, emission: Emission) -> DataFrame:
        """By ``applyInPandas``."""
        return packed.groupBy("bucket").applyInPandas(_bucket(fragment, emission), emission.columns)


def _bucket(fragment: Fragment, emission: Emission) -> Any:
    def run(key: Any, rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        pieces = [unpack_piece(row) for row in rows.itertuples(index=False)]
        high_us = high_time_us(pieces)
        # The end of the input ends all waiting.
        pieces += [Piece.beat(number, END_OF_TIME) for number in range(len(fragment.sources))]
        done = process(fragment, pieces, MemoryBlobs(), SegmentCache(), bucket=key[0])
        frames = list(emission.frames(done, key[0], high_us))
        return pd.concat(frames) if frames else pd.DataFrame()

    return run
