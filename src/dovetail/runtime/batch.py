"""A topology over static frames: the same stages, one batch, state in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.errors import PlanError
from dovetail.plan.nodes import Node, origins
from dovetail.plan.spec import Emit, StageSpec
from dovetail.plan.stages import plan_stage
from dovetail.runtime import spark
from dovetail.runtime.job import END_OF_TIME
from dovetail.runtime.pack import unpack_piece
from dovetail.runtime.stage import Piece, process
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def changelog(node: Node, *, emit: Emit, buckets: int | None) -> DataFrame:
    """The changelog of a node whose inputs are static, as a static frame."""
    for source in origins(node):
        if source.frame is None or source.frame.isStreaming:
            raise PlanError(
                source.title,
                "its frame is a streaming one, to_batch() takes static ones",
                "Read it with spark.read, or run the topology with write_stream()",
            )
    session = spark.session_of(node)
    if buckets is None:
        buckets = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    stage = plan_stage(node, buckets=buckets, emit=emit)
    return spark.changelog(stage, Static(list(range(buckets)), buckets))


@dataclass
class Static(spark.Run):
    """Over static frames, in one batch."""

    flat = False

    def staged(self, packed: DataFrame, spec: StageSpec, emission: spark.Emission) -> DataFrame:
        """What a stage emits of its packed inputs."""
        return packed.groupBy("bucket").applyInPandas(_bucket(spec, emission), emission.columns)


def _bucket(spec: StageSpec, emission: spark.Emission) -> Any:
    def run(key: Any, rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        pieces = [unpack_piece(row) for row in rows.itertuples(index=False)]
        high_time_us = spark.high_time_us(pieces)
        # The end of the input ends all waiting.
        pieces += [Piece.beat(n, END_OF_TIME) for n in range(len(spec.sources))]
        done = process(spec, pieces, MemoryBlobs(), SegmentCache(), bucket=key[0])
        frames = list(emission.frames(done, key[0], high_time_us))
        return pd.concat(frames) if frames else pd.DataFrame()

    return run
