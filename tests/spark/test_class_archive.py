"""Archives of classes: which option a JVM gets, and that a JVM writes one and the next maps it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.spark import class_archive

PROGRAM = """
import sys
from pathlib import Path
import dovetail as dt
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = dt.configure(builder, archive=sys.argv[1]).getOrCreate()
assert spark.range(3).count() == 3
process = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print("mapped", sys.argv[1] in Path(f"/proc/{process}/maps").read_text())
"""


def test_an_archive_is_written_until_one_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "archives of classes"
    first = class_archive.java_options(folder, "a.jar")
    assert first.startswith(f'"-XX:ArchiveClassesAtExit={folder}/classes-')
    path = Path(first.split("=", 1)[1].split('"')[0])
    path.write_bytes(bytes(100))  # a JVM was killed while it wrote
    assert class_archive.java_options(folder, "a.jar") == first
    path.write_bytes(b"\xf0" + bytes(100))
    assert class_archive.java_options(folder, "a.jar") == first.replace(
        "ArchiveClassesAtExit", "SharedArchiveFile"
    )
    other = class_archive.java_options(folder, "b.jar")
    assert other.startswith(f'"-XX:ArchiveClassesAtExit={folder}/classes-')
    assert other != first


def test_options_of_a_builder_are_kept(tmp_path: Path) -> None:
    builder = SparkSession.builder.config("spark.driver.extraJavaOptions", "-Xss4m")
    found = dict(dt.configure(builder, archive=tmp_path)._options)
    options = found["spark.driver.extraJavaOptions"]
    assert " -Xss4m " in options
    assert f'"-XX:ArchiveClassesAtExit={tmp_path}/classes-' in options


def test_an_archive_belongs_to_a_class_path_also_on_a_cluster(tmp_path: Path) -> None:
    found = set()
    for jar in ("a.jar", "b.jar"):
        builder = SparkSession.builder.__class__().master("spark://host:7077")
        builder = builder.config("spark.driver.extraClassPath", jar)
        configured = dict(dt.configure(builder, archive=tmp_path)._options)
        found.add(configured["spark.driver.extraJavaOptions"])
    assert len(found) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the maps of a process are Linux's")
def test_the_next_jvm_maps_what_the_first_one_wrote(tmp_path: Path) -> None:
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout.splitlines()[-1])
        until = time.monotonic() + 60
        while time.monotonic() < until:  # the JVM ends after its program
            if any(map(class_archive.is_complete, tmp_path.glob("*.jsa"))):
                break
            time.sleep(0.2)
    assert said == ["mapped False", "mapped True"]
