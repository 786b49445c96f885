"""The JVM's file system for local disks: it sets Hadoop's permissions, and its jar is current."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from pathlib import Path
from stat import S_IMODE
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from dovetail.platform import local_disk
from dovetail.platform.files import files_of
from dovetail.spark.checkpoints.checkpoint import CheckpointFile

TOOL = Path(__file__).parents[2] / "tools" / "local_disk.py"


def test_permissions_are_those_of_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    modes = {}
    for name in (local_disk.CLASS, local_disk.HADOOP):
        root = tmp_path / name
        root.mkdir()
        assert spark._jvm is not None
        hadoop = spark._jvm.org.apache.hadoop
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        settings.set("fs.file.impl", name)
        settings.set("fs.file.impl.disable.cache", "true")
        files = hadoop.fs.Path(f"file://{root}").getFileSystem(settings)
        assert files.getClass().getName() == name
        assert files.mkdirs(hadoop.fs.Path(f"{root}/made/folder"))
        for file, mode in (("default", None), ("private", "600"), ("sticky", "1777")):
            files.create(hadoop.fs.Path(f"{root}/{file}")).close()
            if mode is not None:
                files.setPermission(
                    hadoop.fs.Path(f"{root}/{file}"), hadoop.fs.permission.FsPermission(mode)
                )
        assert files.rename(hadoop.fs.Path(f"{root}/private"), hadoop.fs.Path(f"{root}/renamed"))
        modes[name] = {
            str(path.relative_to(root)): oct(S_IMODE(path.stat().st_mode))
            for path in sorted(root.rglob("*"))
        }
    assert modes[local_disk.CLASS] == modes[local_disk.HADOOP]
    assert modes[local_disk.CLASS] == {
        ".default.crc": "0o644",
        ".renamed.crc": "0o600",
        ".sticky.crc": "0o1777",
        "default": "0o644",
        "made": "0o755",
        "made/folder": "0o755",
        "renamed": "0o600",
        "sticky": "0o1777",
    }


def test_a_query_takes_the_class_where_the_jvm_has_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CheckpointFile(spark, str(tmp_path))
    assert files_of(spark).has_class(local_disk.CLASS)
    assert file.settings()["fs.file.impl"] == local_disk.CLASS
    monkeypatch.setattr(local_disk, "CLASS", "dovetail.NoClass")
    assert file.settings()["fs.file.impl"] == local_disk.HADOOP


@pytest.mark.parametrize("master", ["local-cluster[1,2,1024]", "spark://host:7077", "yarn"])
def test_a_query_on_executors_does_not_take_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """They write state as well, and the jar is on the class path of the driver alone."""
    monkeypatch.setattr(spark.sparkContext, "master", master)
    assert CheckpointFile(spark, str(tmp_path)).settings()["fs.file.impl"] == local_disk.HADOOP


def test_the_jar_is_that_of_its_source() -> None:
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("javac is missing (Debian: apt install openjdk-17-jdk-headless)")
    tool = _loaded(TOOL)
    with zipfile.ZipFile(local_disk.JAR) as jar:
        stored = {name: jar.read(name) for name in jar.namelist()}
    compiled = tool.classes()
    assert stored.keys() == compiled.keys()
    assert local_disk.JAR.read_bytes() == tool.jar(stored)
    if b" 17" in tool.compiler_version(javac):
        assert stored == compiled


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
