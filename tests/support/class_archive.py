"""An archive of the classes that Spark loads: a JVM that has it starts in about half the time.

Run as a script, this module makes the archive that ``small_session`` looks for, if there is none.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import log_queries
import small_session
from pyspark import SparkContext

import dovetail as dt


def main() -> None:
    """Of the classes of a query with state, in a JVM that writes them down as it ends."""
    archive = small_session.archive()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        made = Path(directory) / "classes"
        options = f"{small_session.JAVA} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        builder = small_session.builder().config("spark.driver.extraJavaOptions", options)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        log_queries.write(Path(directory), log_queries.batches(3, 6))
        sink = dt.to_parquet(str(Path(directory) / "out"))
        log_queries.start(spark, Path(directory), sink).awaitTermination()
        jvm: Any = SparkContext._gateway
        spark.stop()
        jvm.proc.stdin.close()
        jvm.proc.wait()
        made.rename(archive)


if __name__ == "__main__":
    main()
