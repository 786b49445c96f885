"""The settings of a query, also of one on a local disk, and what it leaves of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from parquet_rows import rows_of
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from small_session import applied

import dovetail as dt
from dovetail.errors import DovetailWarning
from dovetail.platform.arrow_batches import BYTES_LIMIT
from dovetail.spark.query.writer import SNAPSHOT_ON_LAG, query_settings, settings

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing."
BY_FILE_SYSTEM = MANAGERS + "FileSystemBasedCheckpointFileManager"
BY_FILE_CONTEXT = MANAGERS + "FileContextBasedCheckpointFileManager"
FILE_SYSTEM = "fs.file.impl"


def run(spark: SparkSession, folder: Path) -> StreamingQuery:
    spark.range(3).selectExpr("id", "current_timestamp() at").write.parquet(str(folder / "in"))
    stream = spark.readStream.schema("id long, at timestamp").parquet(str(folder / "in"))
    users = dt.Table.from_changelog(stream, key="id", timestamp="at", name="user")
    sink = dt.to_parquet(str(folder / "out"))
    query = users.write_stream(
        sink, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()
    return query


def own(query: StreamingQuery) -> SparkSession:
    """The session that a query has for itself."""
    return query._jsq.streamingQuery().sparkSessionForStream()


def test_a_query_renames_over_files_of_a_local_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The query's own session has the settings, the user's is left without."""
    skipping = "spark.sql.files.ignoreMissingFiles"
    with applied(spark, {skipping: "true"}), pytest.warns(DovetailWarning, match=skipping):
        query = run(spark, tmp_path)
    assert own(query).conf().get(skipping) == "false"
    assert own(query).conf().get(MANAGER) == BY_FILE_SYSTEM
    assert own(query).conf().get(SNAPSHOT_ON_LAG) == "false"
    assert spark.conf.get(SNAPSHOT_ON_LAG) == "true"
    assert spark.conf.get(MANAGER, None) is None
    assert spark.conf.get(FILE_SYSTEM, None) is None
    assert len(rows_of(tmp_path / "out")) == 3

    jvm = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "checkpoint" / "offsets" / "0"))
    manager = getattr(jvm, BY_FILE_SYSTEM)
    files = manager(path.getParent(), own(query).sessionState().newHadoopConf())
    for text in ("first", "second"):
        written = files.createAtomic(path, True)
        written.write(text.encode())
        written.close()
        assert jvm.org.apache.commons.io.IOUtils.toString(files.open(path), "UTF-8") == text


def test_a_source_of_files_notes_what_it_has_read_in_the_same_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Such a source reads the settings of the user's session, and only after the query's start."""
    source = run(spark, tmp_path)._jsq.streamingQuery().sources().head()
    field = source.getClass().getDeclaredField("metadataLog")
    field.setAccessible(True)
    assert field.get(source).fileManager().getClass().getName() == BY_FILE_SYSTEM


def test_queries_that_start_at_once_leave_the_session_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = spark.conf.getAll
    with ThreadPoolExecutor(4) as threads:
        queries = list(threads.map(lambda n: run(spark, tmp_path / str(n)), range(4)))
    assert [own(query).conf().get(MANAGER) for query in queries] == [BY_FILE_SYSTEM] * 4
    assert spark.conf.getAll == before


def test_the_sessions_own_file_manager_stays(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(MANAGER, BY_FILE_CONTEXT)
    try:
        query = run(spark, tmp_path)
        assert own(query).conf().get(MANAGER) == BY_FILE_CONTEXT
        assert own(query).conf().get(FILE_SYSTEM, "none") == "none"
        assert spark.conf.get(MANAGER) == BY_FILE_CONTEXT
    finally:
        spark.conf.unset(MANAGER)


def test_a_query_keeps_the_sessions_own_limit_of_bytes(spark: SparkSession) -> None:
    assert query_settings(spark, 2) == settings(2)
    assert settings(2)[BYTES_LIMIT] == "2147483647"
    with applied(spark, {BYTES_LIMIT: "1000000"}):
        without = {name: value for name, value in settings(2).items() if name != BYTES_LIMIT}
        assert query_settings(spark, 2) == without
