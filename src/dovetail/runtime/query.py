"""Starting a topology as a streaming query: settings, the checkpoint's binding, the sink."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.errors import CheckpointError, ConfigurationError, PlanError
from dovetail.plan.fingerprint import describe, fingerprint, refuse_alike, refuse_other
from dovetail.plan.nodes import Node, origins
from dovetail.plan.spec import Emit
from dovetail.plan.stages import plan_stage
from dovetail.runtime import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BUCKETS_DEFAULT = 8
BINDING_VERSION = 1

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"

_LOCAL_CHECKPOINT = {
    # The one that Spark finds by itself is Hive's, which refuses to rename over a file: under the
    # manager below a micro-batch that is run again would leave the state of its first run where it
    # is. So these come first, and go last.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
}

_STARTING = Lock()
"""Held while a query starts: its session has the query's settings meanwhile."""


class Sink(Protocol):
    """Where a changelog goes."""

    def writer(self, changes: DataFrame, node: Node) -> DataStreamWriter:
        """The configured writer; the query adds checkpoint, trigger and name, and starts it."""


def settings(partitions: int) -> dict[str, str]:
    """The Spark SQL settings a query runs under."""
    return {
        _PROVIDER: _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        _PARTITIONS: str(partitions),
    }


def changelog(node: Node, *, emit: Emit, buckets: int | None) -> DataFrame:
    """The node's changelog under the session's own settings."""
    session = streaming_session(node)
    if session.conf.get(_PROVIDER) != _ROCKSDB:
        raise ConfigurationError(
            node.name,
            "the session's state store is not RocksDB, which the stage needs",
            f"Set {_PROVIDER} to {_ROCKSDB}, or use write_stream, which does it for its query",
        )
    partitions = int(str(session.conf.get(_PARTITIONS)))
    count = BUCKETS_DEFAULT if buckets is None else buckets
    return _changelog(node, emit, count, partitions, timers=False)


def start(
    node: Node,
    sink: Sink,
    *,
    checkpoint: str,
    trigger: str | None,
    emit: Emit,
    buckets: int | None,
    name: str | None,
) -> StreamingQuery:
    """Start the query, bound to its checkpoint."""
    session = streaming_session(node)
    triggered = parse_trigger(trigger)
    with _STARTING:
        file = CheckpointFile(session, checkpoint)
        bound = file.read()
        binding = _binding(node, session, buckets, bound)
        plan_stage(node, buckets=binding["buckets"], emit=emit)
        partitions = binding["partitions"]
        with _settings(session, settings(partitions) | file.settings()):
            timers = "availableNow" not in triggered
            changes = _changelog(node, emit, binding["buckets"], partitions, timers=timers)
            writer = sink.writer(changes, node).option("checkpointLocation", checkpoint)
            if name is not None:
                writer = writer.queryName(name)
            writer = writer.trigger(**triggered)
            if bound is None:
                file.write(binding)
            return writer.start()


def streaming_session(node: Node) -> SparkSession:
    """The session of a node whose inputs are all streaming frames that can be told apart."""
    for source in origins(node):
        if source.frame is None or not source.frame.isStreaming:
            raise PlanError(
                source.title,
                "its frame is not a streaming one",
                "Read it with spark.readStream, or compute the topology with to_batch()",
            )
    refuse_alike(node)
    return spark.session_of(node)


def parse_trigger(trigger: str | None) -> dict[str, Any]:
    """The arguments of Spark's ``trigger``."""
    if trigger is None:
        return {"processingTime": "0 seconds"}
    if trigger == "available now":
        return {"availableNow": True}
    if not trigger[:1].isdigit():
        raise PlanError(
            "write_stream",
            f"trigger={trigger!r} is not one",
            "Use 'available now', an interval such as '10 seconds', or None",
        )
    return {"processingTime": trigger}


def _changelog(node: Node, emit: Emit, buckets: int, partitions: int, *, timers: bool) -> DataFrame:
    stage = plan_stage(node, buckets=buckets, emit=emit)
    labels = spark.bucket_labels(buckets)
    return spark.changelog(stage, spark.Streaming(labels, partitions, timers))


def _binding(
    node: Node, session: SparkSession, buckets: int | None, bound: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What ties a checkpoint to its query; a known one must fit."""
    if bound is None:
        count = BUCKETS_DEFAULT if buckets is None else buckets
        return {
            "version": BINDING_VERSION,
            "topology": fingerprint(node),
            "plan": describe(node),
            "buckets": count,
            "partitions": min(count, session.sparkContext.defaultParallelism),
        }
    if bound["version"] != BINDING_VERSION:
        raise CheckpointError(
            node.name,
            f"the checkpoint has format {bound['version']}, this version reads {BINDING_VERSION}",
            "Run the version that wrote it, or start with a new checkpoint",
        )
    refuse_other(node, bound["topology"], bound["plan"])
    if buckets is not None and buckets != bound["buckets"]:
        raise CheckpointError(
            node.name,
            f"the checkpoint has {bound['buckets']} buckets, the query asks for {buckets}",
            f"Use buckets={bound['buckets']} or leave it out; "
            "another number needs a new checkpoint",
        )
    return dict(bound)


@contextmanager
def _settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings that hold while a query starts: it keeps a copy of them, the session does not."""
    before: dict[str, str | None] = {key: session.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in reversed(before.items()):
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


class CheckpointFile:
    """``dovetail.json`` in a checkpoint directory, on any file system that Spark can write."""

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        jvm: Any = session._jvm  # noqa: SLF001 -- Hadoop's file systems have no Python face
        self._path = jvm.org.apache.hadoop.fs.Path(checkpoint, "dovetail.json")
        self._configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._fs = self._path.getFileSystem(self._configuration)
        self._io = jvm.org.apache.commons.io.IOUtils

    def settings(self) -> dict[str, str]:
        """Further settings of the query, where the directory is one of this machine's and the
        session has none of them.

        Spark writes a file of a checkpoint, then renames it. Its usual way to do so starts five
        processes on a local disk, a ``chmod`` and a ``readlink`` for each end of each renaming; its
        other way starts one, and replaces a file at once instead of deleting it first.
        """
        chosen = any(self._configuration.get(key) for key in _LOCAL_CHECKPOINT)
        return {} if chosen or self._fs.getScheme() != "file" else _LOCAL_CHECKPOINT

    def read(self) -> dict[str, Any] | None:
        """The binding, or None in a new checkpoint."""
        if not self._fs.exists(self._path):
            return None
        stream = self._fs.open(self._path)
        try:
            return json.loads(self._io.toString(stream, "UTF-8"))  # type: ignore[no-any-return]
        finally:
            stream.close()

    def write(self, binding: Mapping[str, Any]) -> None:
        """Bind a new checkpoint."""
        stream = self._fs.create(self._path, True)
        try:
            stream.write(json.dumps(binding, indent=1).encode())
        finally:
            stream.close()
