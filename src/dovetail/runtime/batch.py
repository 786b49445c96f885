"""A topology over static frames: the same stage, one batch, state in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.errors import PlanError
from dovetail.plan.nodes import Node, sources
from dovetail.plan.output import Output, output_of
from dovetail.plan.spec import Emit, StageSpec
from dovetail.plan.stages import plan_stage
from dovetail.runtime import project, spark
from dovetail.runtime.job import END_OF_TIME
from dovetail.runtime.pack import to_ipc, unpack_piece
from dovetail.runtime.stage import Piece, process
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def changelog(node: Node, *, emit: Emit, buckets: int | None) -> DataFrame:
    """The changelog of a node whose inputs are static, as a static frame."""
    for source in sources(node):
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
    packed = spark.pack_inputs(stage, list(range(buckets)))
    output = output_of(stage)
    staged = packed.groupBy("bucket").applyInPandas(_bucket(stage.spec, output), "changes binary")
    rows = spark.unpack(staged, output)
    return rows if output.held is not None else project.changelog(rows, stage)


def _bucket(spec: StageSpec, output: Output) -> Any:
    def run(rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        pieces = [
            unpack_piece(row.source, row.partition, row.number, row.high_time_us, row.payload)
            for row in rows.itertuples(index=False)
        ]
        # The end of the input ends all waiting.
        pieces += [Piece(n, 0, 0, END_OF_TIME, None) for n in range(len(spec.sources))]
        changes = process(spec, pieces, MemoryBlobs(), SegmentCache()).output
        payloads = [] if changes is None else [to_ipc(output.rows(changes))]
        return pd.DataFrame({"changes": payloads})

    return run
