"""A topology over static frames: the same stages, one batch, state in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dovetail.engine import flow
from dovetail.engine.batches.parts import PartJoiner
from dovetail.engine.batches.pieces import Piece, high_time_us
from dovetail.engine.fragment import process_batch
from dovetail.engine.pack import unpack_piece, whole_rows
from dovetail.physical.fragment import Emit, Fragment
from dovetail.physical.planner import plan_of
from dovetail.physical.routing import RouteStep
from dovetail.physical.stage import Port
from dovetail.plan.joins.stream_table_join import sources_that_wait
from dovetail.plan.nodes import Entry, Node, Source
from dovetail.spark.execution import projection
from dovetail.spark.execution.buckets import split_passing
from dovetail.spark.execution.emission import Emission, as_pandas
from dovetail.spark.execution.frames import Frames, session_of
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def changelog(
    node: Node,
    *,
    emit: Emit,
    buckets: int | None,
    sources: Mapping[Entry, Source] | None = None,
) -> DataFrame:
    """Return the changelog of a node with static inputs, as a static frame with the columns of
    ``changelog_schema``. Rows are in no order; ``_position`` orders the changes of a key. State is
    in memory. Inputs end, so rows that wait for a time come out. No job runs yet.

    ``emit``: ``"change"`` for every change, ``"batch"`` for the last one of each key in a batch.
    There is one batch, or a second one for streams that wait for tables (``load="first"``).
    ``buckets``: the count of buckets, None for the session's count of shuffle partitions.
    ``sources``: static sources that are read in place of inputs, or of nodes below the inputs'
    views.

    Raises ``ConfigurationError`` if the session was stopped, and ``PlanError`` for a node that
    cannot be computed or emitted so.
    """
    session = session_of(node)
    if buckets is None:
        buckets = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    plan = plan_of([node], buckets=buckets, emit=emit)
    (result,) = plan.results
    static = Static(
        list(range(buckets)),
        buckets,
        sources=sources or {},
        waiting=frozenset(sources_that_wait(node)),
    )
    changes = flow.run_single_result(plan, static)
    return reduce(projection.changelog_of_view, result.views, changes)


@dataclass
class Static(Frames):
    """The steps of a plan over static frames, in one batch."""

    waiting: frozenset[Source] = frozenset()
    """The sources whose rows come after all others (``load="first"``)."""

    flat = False

    def run_on_buckets(self, packed: DataFrame, step: RouteStep, emission: Emission) -> DataFrame:
        """Return the rows that the step's stage, which has state, emits by ``applyInPandas``, in
        the columns of ``emission``. ``packed``: the stage's whole input, rows of ``PACKED``.

        Inputs that get rows of the sources in ``waiting`` are processed after all others. Rows for
        other readers come out unchanged, after the stage's.
        """
        held = [
            source_index
            for source_index, port in enumerate(step.stage.ports)
            if not self.waiting.isdisjoint(_origins(port))
        ]
        run = _bucket_function(step.stage.fragment, emission, step.number, held)
        return packed.groupBy("bucket").applyInPandas(run, emission.columns)


def _origins(port: Port) -> Iterator[Source]:
    """Yield the sources whose rows come to a port (the route to one input of a stage), through all
    stages before it. A source that is read in several ways comes several times.
    """
    if isinstance(port.origin, Source):
        yield port.origin
    else:
        for before in port.origin.ports:
            yield from _origins(before)


def _bucket_function(
    fragment: Fragment, emission: Emission, stage_number: int, later_inputs: Sequence[int]
) -> Any:
    """Return the function for ``applyInPandas`` that processes one bucket to the end of its input,
    so that nothing waits. It returns a frame of the changes in the columns of ``emission``, named
    by index, or one without columns. Rows for other stages than ``stage_number`` come out
    unchanged, after the changes. The wall-clock time is 0.

    ``later_inputs``: the indices of inputs whose rows come after those of all others, as in a next
    micro-batch; empty to take all at once.
    """

    def run(key: Any, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that the bucket whose label is ``key[0]`` emits. ``rows``: its rows of
        ``PACKED``.
        """
        import pandas as pd

        stage_rows, others = split_passing(rows, [stage_number])
        joiner = PartJoiner()
        pieces = [*map(unpack_piece, whole_rows(stage_rows, joiner))]
        joiner.finish()
        first = [piece for piece in pieces if later_inputs and piece.source not in later_inputs]
        rest = [piece for piece in pieces if not later_inputs or piece.source in later_inputs]
        # The end of the input, which ends all waiting.
        rest += Piece.end_heartbeats(len(fragment.sources))
        blobs, cache, tables = MemoryBlobs(), SegmentCache(), list[pa.Table]()
        for part in (first, rest) if first else (rest,):
            done = process_batch(fragment, part, blobs, cache, bucket=key[0])
            for emitted in emission.rows(done, key[0], high_time_us(part)):
                batches = [emitted] if isinstance(emitted, pa.RecordBatch) else emitted.to_batches()
                tables.append(pa.Table.from_batches(batches, emitted.schema))
        if len(others):
            tables.append(others)
        return as_pandas(pa.concat_tables(tables)) if tables else pd.DataFrame()

    return run
