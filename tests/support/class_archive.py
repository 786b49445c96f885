"""An archive of the classes that Spark loads: a JVM that has it starts in about half the time.

Run as a script, this module makes the archive that ``small_session`` looks for, if there is none,
and before it a jar of local files, for which no processes are started.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import log_queries
import small_session
from pyspark import SparkContext

import dovetail as dt


def main() -> None:
    """Of the classes of a query with state, in a JVM that writes them down as it ends."""
    if shutil.which("javac"):
        compile_local_files()
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


def compile_local_files() -> None:
    """Make the jar of local files that ``small_session`` looks for, if there is none."""
    jar = small_session.local_files()
    if jar.exists():
        return
    jar.parent.mkdir(parents=True, exist_ok=True)
    (hadoop,) = small_session.JARS.glob("hadoop-client-api*.jar")
    with tempfile.TemporaryDirectory(dir=jar.parent) as directory:
        files = small_session.LOCAL_FILES
        command = ["javac", "--release", "17", "-d", directory, "-cp", hadoop, *files]
        subprocess.run(list(map(str, command)), check=True)
        with zipfile.ZipFile(Path(directory) / "classes.jar", "w") as archive:
            for compiled in Path(directory).rglob("*.class"):
                archive.write(compiled, compiled.relative_to(directory))
        (Path(directory) / "classes.jar").rename(jar)


if __name__ == "__main__":
    main()
