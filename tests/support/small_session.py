"""A Spark session for a few rows: what the tests and the processes they start share."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from zlib import crc32

import pyspark
import pytest
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from pyspark.sql import SparkSession

from dovetail.platform import local_disk
from dovetail.spark.class_path import driver_jars
from dovetail.spark.driver_workers import fork_driver_workers
from dovetail.spark.session import DAEMON

SMALL_TABLES = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for a few rows, also in Delta tables."""
RECORDING_CHANGES = SMALL_TABLES | {
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true"
}
"""Settings for small Delta tables that record their changes."""


CACHE = Path(os.environ.get("DOVETAIL_CACHE", Path.home() / ".cache" / "dovetail"))
JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
    " -XX:+UseSerialGC -Xmn1g -XX:MetaspaceSize=256m"
    " -Djdk.lang.Process.launchMechanism=VFORK"
)
"""Options for a short life.

With one compiler alone, the code cache is too small for Spark, and is swept without end. What plans
are made of dies young, if it has room. Each file of a checkpoint has a process started, which needs
no helper process first.
"""
JARS = Path(pyspark.__file__).parent / "jars"


def builder() -> SparkSession.Builder:
    """Two cores; no plan is worth compiling, none is kept once it has run, and columns do not note
    the line that made them. Stores of queries that have ended are closed soon: each process that
    the JVM starts closes all files that it has open.
    """
    return (
        quick(SparkSession.builder.master("local[2]"), JAVA)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.retainedJobs", "10")
        .config("spark.ui.retainedStages", "10")
        .config("spark.sql.ui.retainedExecutions", "10")
        .config("spark.driver.memory", "3g")
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.python.daemon.module", DAEMON)
        .config("spark.python.authenticate.socketTimeout", "120s")  # a busy machine
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "5s")
    )


def quick(builder: SparkSession.Builder, java: str) -> SparkSession.Builder:
    """The builder of a session whose JVM, with these options, has an archive of classes."""
    archived = f" -Xlog:disable -XX:SharedArchiveFile={archive()}" if archive().exists() else ""
    return builder.config("spark.driver.extraJavaOptions", java + archived).config(
        "spark.driver.extraClassPath", class_path()
    )


def class_path() -> str:
    """The jars at the front of the class path, as ``configure`` sets them."""
    return os.pathsep.join(map(str, driver_jars()))


def session() -> SparkSession:
    """The session of this process, with the jars that ``tools/jars/fetch`` has fetched."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = CACHE / "jars"
    groups = ("kafka", "delta", "avro")
    kafka, delta, avro = (sorted((jars / group).glob("*.jar")) for group in groups)
    settings = (
        builder()
        .appName("dovetail tests")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.jars", ",".join(str(jar) for jar in (*kafka, *delta, *avro)))
    )
    if delta:
        settings = settings.config(
            "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
        ).config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    session = settings.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    fork_driver_workers(session.sparkContext)
    return session


def cluster(jars: str) -> SparkSession.Builder:
    """An executor in a process of its own, which may be killed again and again."""
    return (
        builder()
        .master("local-cluster[1,2,1024]")
        .config("spark.jars", jars)
        .config("spark.task.maxFailures", "1000")
        .config("spark.stage.maxConsecutiveAttempts", "1000")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
    )


def archive() -> Path:
    """Where ``class_archive`` puts its archive: it fits one Java, its options and one Spark."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    spark = f"{JARS} {JARS.stat().st_mtime} {class_path()} {local_disk.JAR.stat().st_mtime}"
    own = f"{java.resolve()} {java.stat().st_mtime} {spark} {JAVA}"
    return CACHE / f"classes-{crc32(own.encode()):08x}.jsa"


def _kept(lookup: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """The lookup of a name in the JVM, asked once for a package, a class or a static method: Spark
    asks for each anew whenever it makes a column, and the JVM searches all jars.
    """

    @wraps(lookup)
    def kept(owner: Any, name: str) -> Any:
        found = lookup(owner, name)
        if isinstance(found, JavaClass | JavaMember | JavaPackage):
            owner.__dict__[name] = found
        return found

    return kept


JVMView.__getattr__ = _kept(JVMView.__getattr__)
JavaClass.__getattr__ = _kept(JavaClass.__getattr__)
JavaPackage.__getattr__ = _kept(JavaPackage.__getattr__)


def with_delta(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """The session with these settings; it must have been started with Delta Lake."""
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing("Spark runs without Delta Lake: tools/jars/fetch delta")
    with applied(spark, settings):
        yield spark


@contextmanager
def applied(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings within the block; behind it all are as they were, but for
    those that a session has for good.
    """
    before = spark.conf.getAll
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        after = spark.conf.getAll
        for name in after.keys() | before.keys():
            # Spark knows no setting that gives new Delta tables a property, so it calls none
            # modifiable.
            if name not in settings and not spark.conf.isModifiable(name):
                continue
            if name not in before:
                spark.conf.unset(name)
            elif after.get(name) != before[name]:
                spark.conf.set(name, before[name])
