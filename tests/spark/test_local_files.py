"""The tests' own class for local files does what Hadoop's does, without processes."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE

import pytest
import small_session
from pyspark.sql import SparkSession


def test_modes_and_links_are_set_and_read(spark: SparkSession, tmp_path: Path) -> None:
    if not small_session.local_files().exists():
        pytest.skip("no JDK has compiled it: tests/support/class_archive.py")
    hadoop = spark._jvm.org.apache.hadoop.fs
    local = hadoop.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    assert local.getRaw().getClass().getSimpleName() == "RawFiles"
    folder, file, link = tmp_path / "made" / "folder", tmp_path / "file", tmp_path / "link"
    assert local.mkdirs(hadoop.Path(str(folder)))
    local.create(hadoop.Path(str(file))).close()
    modes = [S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, file)]
    assert modes == [0o755, 0o755, 0o644]
    for text, mode in (("640", 0o640), ("1777", 0o1777)):
        local.setPermission(hadoop.Path(str(file)), hadoop.permission.FsPermission(text))
        assert S_IMODE(file.stat().st_mode) == mode
    link.symlink_to(file)
    raw = [local.getRaw().getFileLinkStatus(hadoop.Path(str(path))) for path in (file, link)]
    assert [status.isSymlink() for status in raw] == [False, True]
    context = hadoop.FileContext.getLocalFSFileContext()
    assert not context.getFileLinkStatus(hadoop.Path(str(file))).isSymlink()
