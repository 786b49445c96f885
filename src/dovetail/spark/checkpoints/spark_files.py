"""The files of a checkpoint as Spark reads them: on any file system, for any session."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail.errors import ConfigurationError
from dovetail.platform.files import Folder, files_of
from dovetail.platform.spark_errors import convert_spark_errors
from dovetail.spark.checkpoints.checkpoint import CheckpointFile
from dovetail.spark.checkpoints.state_files import (
    STATE_OPERATOR,
    CommittedBatches,
    ManifestBlobs,
    StatefulOperator,
    split_blob_name,
)
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs

MANIFESTS = f"name RLIKE '^([^/]+/)?({manifests.NAME}$|{manifests.PAGE})'"
"""The SQL condition for blobs that are not segments, with or without a stage's prefix."""
_QUOTED = re.compile(r'[\s"<>\\^`{|}%#?\[\]]')
"""The characters of a path that a URI must quote."""


class SparkFiles:
    """The files of a checkpoint as Spark reads them. Implements ``StateFiles``."""

    has_frames = True
    reads_pieces = False

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        """Take the folder ``checkpoint``. Nothing is read yet."""
        self.session, self.checkpoint = session, checkpoint.rstrip("/")
        self._folder: Folder | None = None

    def text(self, caller: str, name: str) -> str | None:
        """Return the text of the file ``name``, a path within the checkpoint, as UTF-8; None if
        there is no such file. ``caller``: the user's call, to begin errors. Raises
        ``ConfigurationError`` if Spark cannot read it.
        """
        path = f"{self.checkpoint}/{name}"
        with convert_spark_errors(caller, f"Spark cannot read {path}", "Mend what it names"):
            return files_of(self.session).text(path)

    def has(self, name: str) -> bool:
        """Return True if the checkpoint has the file ``name``, a path within it. ``name`` must not
        be that of a folder.
        """
        return self._files.has(name)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the file ``name``, a path within the checkpoint; None if there is no
        such file. ``name`` must not be that of a folder. Other errors of reading pass. Runs a job
        on Spark Connect.
        """
        return self._files.read(name)

    def with_present_path(self, bound: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return ``bound``, the content of ``dovetail.json``. If the checkpoint was moved, write
        its present path to that file and to Spark's metadata first, and return a corrected copy.

        ``caller``: the user's call, to begin errors. Raises ``CheckpointError`` for a moved
        checkpoint on Spark Connect.
        """
        return CheckpointFile(self.session, self.checkpoint).with_present_path(bound, caller)

    def committed_batches(self, caller: str) -> CommittedBatches | None:
        """Return the operators that run stages with state, and the names of other operators. Also
        return the ids of the first and the last micro-batch whose state all of the former still
        have. None if none is committed or no stage has stored anything yet. Runs a Spark job.

        ``caller``: the user's call, to begin errors. Raises ``ConfigurationError`` if Spark cannot
        read the checkpoint, and for a path that it cannot read (``refuse_unreadable``).
        """
        refuse_unreadable(caller, self.checkpoint)
        self.session.streams.active  # noqa: B018 -- starts what Spark's reader of state asks
        with convert_spark_errors(
            caller, f"Spark cannot read {self.checkpoint}", "Mend what it names"
        ):
            read = self.session.read.format("state-metadata").load(self.checkpoint).collect()
        rows = [row for row in read if row["operatorName"] == STATE_OPERATOR]
        # A join of streams has a row for each of its stores.
        others = {
            row["operatorId"]: row["operatorName"]
            for row in read
            if row["operatorName"] != STATE_OPERATOR
        }
        operators = [StatefulOperator(row["operatorId"], row["numPartitions"]) for row in rows]
        first = max((row["minBatchId"] for row in rows), default=-1)
        last = min((row["maxBatchId"] for row in rows), default=-1)
        # Spark says -1 while the first micro-batch is planned and not committed.
        return None if last < 0 else CommittedBatches(operators, first, last, (*others.values(),))

    def manifests(
        self,
        caller: str,
        operators: Iterable[StatefulOperator],
        batch: int,
        buckets: int,
        prefixes: Sequence[str],
    ) -> dict[StatefulOperator, ManifestBlobs]:
        """Return the manifests of all buckets after the micro-batch with the id ``batch``, as
        blobs: by operator, then by bucket label. A manifest lists all that a bucket has stored, and
        may go on in further blobs, its pages. There is a key for each of ``operators`` and each of
        ``prefixes``, perhaps with no bucket. A bucket without a manifest is absent. One Spark job
        reads those of all operators; no operators need none.

        ``caller``: the user's call, to begin errors; ``buckets`` is not used. ``prefixes``: all
        texts that stand before the names of a stage's blobs, else ``KeyError``. Raises
        ``ConfigurationError`` if Spark cannot read the checkpoint, or Spark's own error if files
        are deleted meanwhile.
        """
        listed = list(operators)
        frames = [
            self._full_names(caller, operator.number, batch).withColumn("operator", F.lit(index))
            for index, operator in enumerate(listed)
        ]
        stages: dict[StatefulOperator, defaultdict[int, MemoryBlobs]] = {
            operator._replace(prefix=prefix): defaultdict(MemoryBlobs)
            for operator in listed
            for prefix in prefixes
        }
        for row in reduce(DataFrame.union, frames).where(MANIFESTS).collect() if frames else ():
            prefix, name = split_blob_name(row["name"])
            stage = listed[row["operator"]]._replace(prefix=prefix)
            stages[stage][row["bucket"]].put(name, bytes(row["blob"]))
        return {**stages}

    def segments(
        self,
        caller: str,
        operator: StatefulOperator,
        batch: int,
        buckets: int,
        labels_by_name: Mapping[str, int],
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (name, bytes) of each blob of an operator whose name is in ``labels_by_name``, in
        no order. They are those after the micro-batch with the id ``batch``. Names without a blob
        are left out. A Spark job reads them.

        The labels, and ``buckets``, are not used. ``caller``: the user's call, to begin errors.
        Raises ``ConfigurationError`` if Spark cannot read the checkpoint, or Spark's own error if
        files are deleted meanwhile.
        """
        frame = self.frame(caller, operator, batch).where(F.col("name").isin(list(labels_by_name)))
        for row in frame.toLocalIterator():
            yield row["name"], bytes(row["blob"])

    def frame(self, caller: str, operator: StatefulOperator, batch: int | None) -> DataFrame:
        """Return the blobs of an operator's buckets after the micro-batch with the id ``batch``,
        which must not be None. The columns are ``bucket`` (the label under which Spark stores the
        bucket), ``name`` and ``blob`` (bytes).

        ``operator``: its prefix chooses the blobs of one stage, and is cut off their names.
        ``caller``: the user's call, to begin errors. No blob is read before the frame is used.
        Raises ``ConfigurationError`` if Spark cannot read the checkpoint.
        """
        blobs = self._full_names(caller, operator.number, batch)
        if not operator.prefix:
            return blobs
        own = blobs.where(F.col("name").startswith(operator.prefix))
        return own.withColumn("name", F.substring_index("name", "/", -1))

    def _full_names(self, caller: str, operator: int, batch: int | None) -> DataFrame:
        """Return the blobs of the operator with the id ``operator``, those of all its stages. The
        columns are ``bucket`` (its label), ``name`` (with the stage's prefix) and ``blob`` (bytes).
        They are those after the micro-batch with the id ``batch``, which must not be None.

        ``caller``: the user's call, to begin errors. No blob is read before the frame is used.
        Raises ``ConfigurationError`` if Spark cannot read the checkpoint.
        """
        reader = self.session.read.format("statestore").option("operatorId", operator)
        reader = reader.option("stateVarName", "blobs").option("batchId", str(batch))
        problem = f"Spark cannot read {self.checkpoint}"
        with convert_spark_errors(caller, problem, "Mend what it names"):
            return reader.load(self.checkpoint).select(
                F.col("key.bucket").alias("bucket"),
                F.col("user_map_key.name").alias("name"),
                F.col("user_map_value.blob").alias("blob"),
            )

    @property
    def _files(self) -> Folder:
        """The files of the checkpoint's folder, opened on first use."""
        if self._folder is None:
            self._folder = Folder(self.session, self.checkpoint)
        return self._folder


def refuse_unreadable(caller: str, checkpoint: str) -> None:
    """Raise ``ConfigurationError`` for a path with characters that a URI must quote, such as a
    space. Spark's reader of state quotes them twice, and so does not find the path. ``caller``: the
    call, for the error.
    """
    quoted = _QUOTED.search(checkpoint)
    if quoted is not None:
        raise ConfigurationError(
            caller,
            f"Spark cannot read the state of {checkpoint}, for its path has a {quoted[0]!r}",
            "Move the checkpoint to a path without it",
        )
