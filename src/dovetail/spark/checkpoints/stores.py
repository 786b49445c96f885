"""The stores of a checkpoint after a micro-batch: their description, and the blobs in which they
lie.

The description is in the checkpoint's own file and in the buckets' manifests. Blobs are read from
the files that the micro-batch has left. So a running query is not disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dovetail.arrays.timeline import NO_TIME
from dovetail.engine.store_contents import horizon_us
from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.physical.specs.law import Store
from dovetail.spark.checkpoints.stage_layout import (
    BINDING_FILE,
    FORMAT_VERSION,
    StageLayout,
    binding_of_text,
    stages_of_json,
)
from dovetail.spark.checkpoints.state_files import (
    CommittedBatches,
    StateFiles,
    StatefulOperator,
)
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dovetail.spark.checkpoints.spark_files import SparkFiles

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST = datetime(1, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


def runs_of(manifest: Manifest, store: str) -> Runs:
    """Return the sorted runs of the store named ``store`` in a bucket, the oldest first, without
    incomplete merges. A sorted run is a list of segments, which are blobs of rows, in ascending and
    disjoint ranges. ``manifest``: the list of all that the bucket has stored. The runs are empty if
    the bucket has no such store.
    """
    return Runs(manifest.stores.get(store, Runs()).runs)


class StageStore(NamedTuple):
    """A store of a stage: its layout and its Spark operator. ``buckets`` has the manifests of the
    stage's buckets by label, also of those without rows in this store.
    """

    stage: StageLayout
    name: str
    store: Store
    operator: StatefulOperator
    buckets: Mapping[int, Manifest]

    def runs(self, bucket: int) -> Runs:
        """Return the sorted runs of the store in a bucket, the oldest first: lists of segments in
        ascending and disjoint ranges. ``bucket``: its label, a key of ``buckets``, else
        ``KeyError``.
        """
        return runs_of(self.buckets[bucket], self.name)


@dataclass(frozen=True)
class CheckpointStores:
    """All stores after a micro-batch."""

    caller: str
    """The function that errors name."""
    files: StateFiles
    """The files of the checkpoint."""
    batch: int | None
    """The id of the micro-batch; None if none is committed."""
    topology: tuple[str, Mapping[str, Any]]
    """The fingerprint and the description of the plan to which the checkpoint is bound."""
    buckets: int
    """The count of buckets of each stage."""
    stages: Mapping[str, StageLayout]
    """The stages by the fingerprint of their state."""
    reads: Sequence[tuple[Any, int | None, Sequence[int] | None]] = ()
    """The inputs in the order of the plan's reads, each as (identity, sources, folders). They are
    what ``checkpoint.reads_of`` returns, with the identity None for a static input."""
    operators: Mapping[StatefulOperator, Mapping[int, MemoryBlobs]] = field(default_factory=dict)
    """The operators with state, or the stages that share one, each with the blobs of its buckets'
    manifests by label."""
    other_operators: Sequence[str] = ()
    """Spark's names of other operators with state (``CommittedBatches.others``)."""

    @classmethod
    def read_with_spark(
        cls, caller: str, spark: SparkSession, checkpoint: str, batch: int | None
    ) -> CheckpointStores:
        """Return the stores after a micro-batch, with their manifests read by Spark jobs. Before
        any state is stored, there are none.

        ``caller``: the user's function, to begin errors. ``checkpoint``: its folder. ``batch``: the
        id of the micro-batch, None for the last committed one. Raises ``CheckpointError`` for a
        folder that is no checkpoint, and for a micro-batch that it does not have. Raises
        ``ConfigurationError`` if Spark cannot read the state.
        """
        from dovetail.spark.checkpoints.spark_files import SparkFiles

        return cls.read(caller, SparkFiles(spark, checkpoint), batch)

    @classmethod
    def read(cls, caller: str, files: StateFiles, batch: int | None) -> CheckpointStores:
        """Return the stores after the micro-batch with the id ``batch``, None for the last one,
        read from ``files``.

        If nothing is stored yet, they have no operators, also for a ``batch``. ``caller``: the
        user's call, to begin errors. Raises ``CheckpointError`` if the folder is no checkpoint, or
        does not have the micro-batch. Errors in reading are those of
        ``StateFiles.committed_batches`` and ``StateFiles.manifests``.
        """
        bound = _read_binding(caller, files)
        committed = _committed_with(caller, files, batch)
        if committed is None:
            return cls.without_state(caller, files, bound, None)
        after = committed.last if batch is None else batch
        prefixes = [""]
        if bound["buckets"] == 1:  # stages may share operators
            prefixes += [f"{stage['topology']}/" for stage in bound["stages"]]
        stored = files.manifests(caller, committed.operators, after, bound["buckets"], prefixes)
        return replace(
            cls.without_state(caller, files, bound, after),
            operators=stored,
            other_operators=committed.others,
        )

    @classmethod
    def without_state(
        cls, caller: str, files: StateFiles, bound: Mapping[str, Any], batch: int | None
    ) -> CheckpointStores:
        """Return the stores of a checkpoint as its ``dovetail.json`` describes them, without their
        state after a micro-batch: ``operators`` and ``stores`` are empty.

        ``files``: the checkpoint's files; ``bound``: the content of its ``dovetail.json``.
        ``batch``: the id of the micro-batch, None if none is committed. ``caller``: the user's
        call, to begin errors. Nothing is read.
        """
        return cls(
            caller=caller,
            files=files,
            batch=batch,
            topology=(bound["topology"], bound["plan"]),
            buckets=bound["buckets"],
            stages={stage.topology: stage for stage in stages_of_json(bound["stages"])},
            reads=[
                (source_identity, leaves, *(folders or [None]))
                for source_identity, leaves, *folders in bound.get("reads", ())
            ],
        )

    @property
    def tables(self) -> Mapping[str, Store]:
        """The stores whose rows can be read, by the name of the table or stream whose rows they
        have; empty if there are none. If a table has several stores, it is the first by stage.
        Stores of records that wait for a time (``kind`` is ``"queue"``) count only if there is no
        other.

        They are known before anything is stored.
        """
        stages = sorted(self.stages.values(), key=lambda stage: stage.number)
        stores = [pair for stage in stages for pair in stage.stores.items()]
        readable = [pair for pair in stores if pair[1].kind is not None and pair[1].of]
        readable.sort(key=lambda pair: pair[1].kind == "queue")
        tables: dict[str, Store] = {}
        for _, store in readable:
            tables.setdefault(store.of, store)
        return tables

    @property
    def has_frames(self) -> bool:
        """True if Spark reads the stores, so that they can be read as frames."""
        return self.files.has_frames

    @property
    def checkpoint(self) -> str:
        """The folder of the checkpoint."""
        return self.files.checkpoint

    @property
    def spark(self) -> SparkSession:
        """The session that reads the stores. They must be read by Spark (``has_frames``)."""
        return self._spark_files.session

    @property
    def _spark_files(self) -> SparkFiles:
        """The stores' files as Spark reads them. They must be read by Spark."""
        assert self.has_frames
        return cast("SparkFiles", self.files)

    @cached_property
    def _buckets_by_stage(self) -> dict[str, tuple[StatefulOperator, Mapping[int, Manifest]]]:
        """By the fingerprint of each stage: its operator, and the manifests of its buckets by
        label. A bucket that has had no rows, and a stage without any, are absent. Raises
        ``StateError`` for manifests of another version.
        """
        by_topology = dict[str, tuple[StatefulOperator, Mapping[int, Manifest]]]()
        for operator, blobs in self.operators.items():
            buckets = {label: _read_manifest(bucket_blobs) for label, bucket_blobs in blobs.items()}
            for topology in {manifest.topology for manifest in buckets.values()}:
                by_topology[topology] = operator, buckets
        return by_topology

    @cached_property
    def stores(self) -> Sequence[StageStore]:
        """The stores of all stages that have state, in the order of stages; none if nothing is
        stored yet. Stores whose rows cannot be read back are among them. Raises ``StateError`` for
        manifests of another version.
        """
        stage_stores = []
        for topology, (operator, buckets) in self._buckets_by_stage.items():
            stage = self.stages[topology]
            stage_stores += [
                StageStore(stage, name, store, operator, buckets)
                for name, store in stage.stores.items()
            ]
        return sorted(stage_stores, key=lambda stage_store: stage_store.stage.number)

    def blobs_by_stage(self) -> dict[str, DataFrame]:
        """Return the blobs of each stage's buckets as a frame of ``bucket`` (the label), ``name``
        and ``blob`` (bytes), by the stage's fingerprint. A stage without any state is absent. A
        stage that keeps only a manifest, and no rows in a store, is there.

        Spark must read the files (``has_frames``). Raises ``ConfigurationError`` if it cannot.
        """
        return {
            topology: self.blobs(operator)
            for topology, (operator, _) in self._buckets_by_stage.items()
        }

    def store_of(
        self, table: str, among: Callable[[StageStore], bool] = lambda _: True
    ) -> StageStore:
        """Return the store with the rows of ``table``; if there is none, the store whose own name
        is ``table``. Of several stores of a table, prefer its rows to records that wait, then the
        first stage.

        ``among``: the condition that a store must fulfil. Raises ``ConfigurationError`` if no such
        store can be read. The error lists the names that could be.
        """
        stores = [stage_store for stage_store in self.stores if among(stage_store)]
        readable = [
            stage_store
            for stage_store in stores
            if stage_store.store.kind is not None and stage_store.store.of
        ]
        by_table = [stage_store for stage_store in readable if stage_store.store.of == table]
        by_table.sort(key=lambda stage_store: stage_store.store.kind == "queue")
        for stage_store in [
            *by_table,
            *(stage_store for stage_store in readable if stage_store.name == table),
        ]:
            return stage_store
        names = dict.fromkeys(
            name for stage_store in readable for name in (stage_store.store.of, stage_store.name)
        )
        problem = f"the checkpoint {self.checkpoint} holds no rows of {table!r}"
        if any(table in (stage_store.name, stage_store.store.of) for stage_store in stores):
            problem = f"what {table!r} holds cannot be read by itself"
        has = f"It has {', '.join(names) or 'none yet'}"
        raise ConfigurationError(self.caller, problem, f"{has}; a join's result takes topology=")

    def offsets(self) -> list[str | None]:
        """Return the offset up to which each of the query's Spark sources is read, in Spark's order
        and as its JSON text; None for a source that has brought nothing yet.

        The file ``offsets/<batch>`` must exist: the micro-batch is planned.
        """
        text = self.files.text(self.caller, f"offsets/{self.batch}")
        assert text is not None
        _, _, *offsets = text.splitlines()
        return [None if offset == "-" else offset for offset in offsets]

    def blobs(self, operator: StatefulOperator) -> DataFrame:
        """Return the blobs of a stage's buckets as a frame with the columns ``bucket`` (the label),
        ``name`` and ``blob``. ``operator``: Spark's operator that has the stage's state.

        Spark must read the files (``has_frames``), and ``batch`` must not be None. Raises
        ``ConfigurationError`` if Spark cannot read the checkpoint.
        """
        return self._spark_files.frame(self.caller, operator, self.batch)


def _read_binding(caller: str, files: StateFiles) -> dict[str, Any]:
    """Return the content of the checkpoint's ``dovetail.json`` as JSON data, with the checkpoint's
    present path. ``caller``: the user's call, to begin errors.

    Raises ``CheckpointError`` if it is missing, no UTF-8, no mapping in JSON or of another version.
    Also, on Spark Connect, if the checkpoint was moved. Raises ``ConfigurationError`` if Spark
    cannot read the file.
    """
    path = f"{files.checkpoint}/{BINDING_FILE}"
    try:
        text = files.text(caller, BINDING_FILE)
        bound = None if text is None else binding_of_text(text)
    except ValueError as error:
        problem = f"{path} cannot be read"
        raise CheckpointError(caller, problem, "Restore it from a copy") from error
    if bound is None:
        raise CheckpointError(
            caller,
            f"{files.checkpoint} has no {BINDING_FILE}",
            "Give the checkpoint= of a query that was started with write_stream",
        )
    if bound.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            caller,
            f"{path} has format {bound.get('version')}, this version reads {FORMAT_VERSION}",
            "Read it with the version that wrote it",
        )
    return files.with_present_path(bound, caller)


def _read_manifest(blobs: MemoryBlobs) -> Manifest:
    """Return a bucket's manifest, the list of all that it has stored. ``blobs`` must have the
    manifest's blob and those of its pages. A page is a part of the manifest, a list of segments, in
    a blob of its own. Other blobs are not read.

    Raises ``AssertionError`` if one of these blobs is missing, and ``StateError`` for a manifest or
    a page of another version.
    """
    manifest = manifests.read(blobs)
    assert manifest is not None, "pages without a manifest"
    return manifest


def _committed_with(caller: str, files: StateFiles, batch: int | None) -> CommittedBatches | None:
    """Return the committed micro-batches; None if nothing is stored yet, also for a ``batch``.

    ``batch``: the id of one that must be among them, None for any. Raises ``CheckpointError`` for
    an id that Spark no longer or not yet has. Further errors are those of
    ``StateFiles.committed_batches``.
    """
    committed = files.committed_batches(caller)
    if committed is None or batch is None or committed.first <= batch <= committed.last:
        return committed
    raise CheckpointError(
        caller,
        f"{files.checkpoint} has no micro-batch {batch}",
        f"Spark has kept {committed.first} to {committed.last}",
    )


def refuse_other_times(caller: str, table: str, stage_store: StageStore, as_of: datetime) -> None:
    """Raise ``ConfigurationError`` if ``as_of`` lies before the stored history of a table, or if
    the table is not versioned.

    Buckets begin their history at different times. ``as_of`` must be at or after the latest of
    these beginnings; before anything is stored, any time passes. ``as_of`` must have a time zone.
    ``table``: the name in errors.
    """
    if stage_store.store.kind != "versions":
        raise ConfigurationError(
            caller,
            f"as_of= asks for the past of {table}, which is not a versioned table",
            "Leave it out, or keep its history with versioned=",
        )
    horizons = (
        horizon_us(stage_store.store, manifest) for manifest in stage_store.buckets.values()
    )
    begin_us = max(horizons, default=NO_TIME)
    if begin_us != NO_TIME and as_of < utc_datetime(begin_us):
        raise ConfigurationError(
            caller,
            f"as_of={as_of} lies before the history of {stage_store.store.of}, which begins at "
            f"{utc_datetime(begin_us)}",
            "Ask for a later time",
        )


def utc_datetime(us: int) -> datetime:
    """Return a time in microseconds since 1970 as a ``datetime`` in UTC. A time after 9999-12-31
    00:00 becomes that. One before the year 1, such as ``NO_TIME``, becomes the start of that year.
    """
    return _EPOCH + max(_FIRST - _EPOCH, min(timedelta(microseconds=us), _LAST - _EPOCH))


def microseconds_since_1970(time: datetime) -> int:
    """Return a ``datetime``, which must have a time zone, as microseconds since 1970 in UTC. Times
    before 1970 are negative.
    """
    return (time - utc_datetime(0)) // timedelta(microseconds=1)


def list_stores(stored: CheckpointStores) -> Iterator[dict[str, Any]]:
    """Yield a dict for each store, in the order of stages. Its keys are ``stage``, ``operator``,
    ``store``, ``table``, ``holds``, ``rows``, ``bytes`` and ``segments``. They are followed by
    ``buckets``, ``stream_time``, ``batch`` and ``offsets``.

    - ``stage`` counts from 1. ``operator`` is the stage in words, ``store`` the store's name.
    - ``table`` is None for a store of no table. ``holds`` is the content in words.
    - ``rows``, ``bytes`` (before compression) and ``segments`` are sums over all buckets. Rows that
      newer ones replace count, too. ``buckets`` counts the buckets with rows.
    - ``stream_time`` is the latest of all buckets, in UTC, None before the first row.
    - ``batch`` is the micro-batch's id. ``offsets`` has its end in each of Spark's sources, as a
      text, None for a source that has brought nothing yet.

    Yield nothing before anything is stored.
    """
    stores = stored.stores
    offsets = stored.offsets() if stores else []
    for stage_store in stores:
        runs = [stage_store.runs(bucket) for bucket in stage_store.buckets]
        segments = [
            segment for bucket_part in runs for run in bucket_part.runs for segment in run.segments
        ]
        times = [
            bucket_part.stream_time_us[clock]
            for bucket_part in stage_store.buckets.values()
            for clock in stage_store.store.clocks or range(len(bucket_part.stream_time_us))
        ]
        yield {
            "stage": stage_store.stage.number,
            "operator": stage_store.stage.title,
            "store": stage_store.name,
            "table": stage_store.store.of or None,
            "holds": stage_store.store.holds,
            "rows": sum(segment.rows for segment in segments),
            "bytes": sum(segment.size_bytes for segment in segments),
            "segments": len(segments),
            "buckets": sum(bool(bucket_part.runs) for bucket_part in runs),
            "stream_time": max((utc_datetime(t) for t in times if t is not None), default=None),
            "batch": stored.batch,
            "offsets": offsets,
        }
