"""Files and folders on any file system that Spark knows.

A classic session has Hadoop's own calls in reach, which take a millisecond. Spark Connect has only
Spark's readers and writers, which take a job. So a text file is a folder there, with the text in
its one part. Each kind of session reads the files of the other.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from dovetail.errors import ConfigurationError
from dovetail.platform.jvm import Hadoop
from dovetail.platform.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MISSING = "PATH_NOT_FOUND"
_GLOB = re.compile(r"([{}\[\]*?\\])")


class Files(ABC):
    """Operations on files.

    A name that begins with a dot is of a file that is yet to be renamed, and does not count.
    """

    @abstractmethod
    def qualified(self, path: str) -> str:
        """Return a full path, with its scheme; a relative one starts at Spark's working
        directory.
        """

    @abstractmethod
    def has_files(self, folder: str) -> bool:
        """Say whether a folder has any file, at any depth."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Say whether there is such a file or folder."""

    @abstractmethod
    def is_folder(self, path: str) -> bool:
        """Say whether there is such a folder."""

    @abstractmethod
    def has_named(self, folder: str, prefix: str) -> bool:
        """Say whether a name in a folder begins with ``prefix``."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if there is no such folder."""

    def numbers(self, folder: str, *, suffix: str = "") -> list[int]:
        """Return the numbers that are names in a folder, before ``suffix``; empty if there is no
        such folder.
        """
        names = [n.removesuffix(suffix) for n in self.names(folder) if n.endswith(suffix)]
        return [int(name) for name in names if name.isdigit()]

    @abstractmethod
    def modified(self, path: str) -> datetime:
        """Return the time at which a file was written, to the millisecond."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file."""

    @abstractmethod
    def text(self, path: str) -> str | None:
        """Return a file's text; None if there is no such file."""

    @abstractmethod
    def blob(self, path: str) -> bytes | None:
        """Return a file's bytes; None if there is no such file."""

    @abstractmethod
    def put(self, path: str, text: str) -> None:
        """Write a text in place of the present one, atomically."""

    @abstractmethod
    def create(self, path: str, blob: bytes) -> bool:
        """Write a new file, atomically. Return False, and write nothing, if there is one."""

    @abstractmethod
    def clear(self, folder: str) -> None:
        """Delete all files in a folder."""

    @abstractmethod
    def copy(self, path: str, to: str) -> None:
        """Copy a file, or a folder with its content, to ``to``, which is created; do nothing if
        there is none.
        """

    @abstractmethod
    def make_folder(self, folder: str) -> bool:
        """Create a folder if it is missing; say whether it exists, or may be created later."""

    @abstractmethod
    def publish(self, rows: DataFrame, folder: str, column: str, batch_id: int) -> bool:
        """Write rows as Parquet files to a folder ``<column>=<batch_id>``, replacing it.

        The folder appears at once if the file system renames a folder at once. Return False if it
        could not be renamed.
        """

    @abstractmethod
    def setting(self, name: str) -> str | None:
        """Return one of Hadoop's settings, with those of the session; None if it is not set."""

    def scheme(self, path: str) -> str:
        """Return the file system of a path, such as ``file`` or ``s3a``."""
        return self.qualified(path).partition(":")[0]


def files_of(session: SparkSession) -> Files:
    """Return the files that a session can reach."""
    return _OfServer(session) if is_remote(session) else _OfHadoop(session)


class _OfHadoop(Files):
    """Files by Hadoop's own calls, which have no public interface in Python."""

    def __init__(self, session: SparkSession) -> None:
        self._hadoop = Hadoop(session)

    def qualified(self, path: str) -> str:
        hadoop_path, files = self._hadoop.located(path)
        return str(files.makeQualified(hadoop_path).toString())

    def has_files(self, folder: str) -> bool:
        path, files = self._hadoop.located(folder)
        waiting = [path] if files.exists(path) else []
        while waiting:
            for status in files.listStatus(waiting.pop()):
                if not status.getPath().getName().startswith("."):
                    if not status.isDirectory():
                        return True
                    waiting.append(status.getPath())
        return False

    def exists(self, path: str) -> bool:
        hadoop_path, files = self._hadoop.located(path)
        return bool(files.exists(hadoop_path))

    def is_folder(self, path: str) -> bool:
        hadoop_path, files = self._hadoop.located(path)
        return bool(files.exists(hadoop_path) and files.getFileStatus(hadoop_path).isDirectory())

    def has_named(self, folder: str, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.names(folder))

    def text(self, path: str) -> str | None:
        hadoop_path, files = self._hadoop.located(path)
        if not files.exists(hadoop_path):
            return None
        parts = [hadoop_path]
        if files.getFileStatus(hadoop_path).isDirectory():
            children = (status.getPath() for status in files.listStatus(hadoop_path))
            parts = [part for part in children if part.getName().startswith("part-")]
        return "".join(self._hadoop.text(files, part) for part in parts)

    def blob(self, path: str) -> bytes | None:
        hadoop_path, files = self._hadoop.located(path)
        return self._hadoop.blob(files, hadoop_path) if files.exists(hadoop_path) else None

    def put(self, path: str, text: str) -> None:
        hadoop_path, files = self._hadoop.located(path)
        manager = self._hadoop.checkpoint_manager(hadoop_path.getParent())
        manager.mkdirs(hadoop_path.getParent())
        if files.exists(hadoop_path) and files.getFileStatus(hadoop_path).isDirectory():
            files.delete(hadoop_path, True)
        stream = manager.createAtomic(hadoop_path, True)
        try:
            stream.write(text.encode())
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def create(self, path: str, blob: bytes) -> bool:
        hadoop_path, files = self._hadoop.located(path)
        stream = self._hadoop.checkpoint_manager(hadoop_path.getParent()).createAtomic(
            hadoop_path, False
        )
        try:
            stream.write(blob)
        except BaseException:
            stream.cancel()
            raise
        try:
            stream.close()
        except (Py4JError, PySparkException):
            if files.exists(hadoop_path):
                return False
            raise
        return True

    def clear(self, folder: str) -> None:
        path, files = self._hadoop.located(folder)
        files.delete(path, True)

    def copy(self, path: str, to: str) -> None:
        source, files = self._hadoop.located(path)
        target, there = self._hadoop.located(to)
        if files.exists(source):
            there.mkdirs(target.getParent())
            self._hadoop.copy(files, source, there, target)

    def make_folder(self, folder: str) -> bool:
        path, files = self._hadoop.located(folder)
        return bool(files.mkdirs(path))

    def publish(self, rows: DataFrame, folder: str, column: str, batch_id: int) -> bool:
        hidden, files = self._hadoop.located(folder, f"_writing_{batch_id}")
        rows.write.mode("overwrite").parquet(str(hidden.toString()))
        shown, _ = self._hadoop.located(folder, f"{column}={batch_id}")
        files.delete(shown, True)
        return bool(files.rename(hidden, shown))

    def names(self, folder: str) -> list[str]:
        path, files = self._hadoop.located(folder)
        entries = files.listStatus(path) if files.exists(path) else ()
        return [entry.getPath().getName() for entry in entries]

    def modified(self, path: str) -> datetime:
        hadoop_path, files = self._hadoop.located(path)
        milliseconds = int(files.getFileStatus(hadoop_path).getModificationTime())
        return datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=milliseconds)

    def remove(self, path: str) -> None:
        hadoop_path, files = self._hadoop.located(path)
        files.delete(hadoop_path, False)

    def setting(self, name: str) -> str | None:
        value = self._hadoop.settings().get(name)
        return None if value is None else str(value)


class _OfServer(Files):
    """Files by Spark's readers and writers."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def qualified(self, path: str) -> str:
        # The error about a missing file has the full path.
        child = uuid4().hex
        try:
            _ = self._session.read.text(f"{_plain(path)}/{child}").schema
        except AnalysisException as error:
            if error.getCondition() != _MISSING:
                raise
            return str((error.getMessageParameters() or {})["path"]).removesuffix(f"/{child}")
        raise AssertionError(child)

    def has_files(self, folder: str) -> bool:
        return self._has(_plain(folder))

    def exists(self, path: str) -> bool:
        with _where_there():
            return bool(self._session.read.format("binaryFile").load(_plain(path)).schema)
        return False

    def is_folder(self, path: str) -> bool:
        raise _lacking("tells a folder from a file")

    def has_named(self, folder: str, prefix: str) -> bool:
        return self._has(f"{_plain(folder)}/{prefix}*")

    def _has(self, pattern: str) -> bool:
        """Say whether a pattern matches a file, or a folder with files."""
        reader = self._session.read.format("binaryFile").option("recursiveFileLookup", "true")
        with _where_there():
            return bool(reader.load(pattern).inputFiles())
        return False

    def names(self, folder: str) -> list[str]:
        raise _lacking("lists a folder")

    def modified(self, path: str) -> datetime:
        raise _lacking("says when a file was written")

    def remove(self, path: str) -> None:
        raise _lacking("deletes a file")

    def copy(self, path: str, to: str) -> None:
        raise _lacking("copies a folder")

    def text(self, path: str) -> str | None:
        with _where_there():
            rows = self._session.read.text(_plain(path), wholetext=True).collect()
            return "".join(row[0] for row in rows)
        return None

    def blob(self, path: str) -> bytes | None:
        with _where_there():
            row = self._session.read.format("binaryFile").load(_plain(path)).head()
            return None if row is None else bytes(row["content"])
        return None

    def put(self, path: str, text: str) -> None:
        # One row is one part file, which Spark renames into place.
        rows = self._session.createDataFrame([(text,)], "value string")
        rows.coalesce(1).write.mode("overwrite").text(path)

    def create(self, path: str, blob: bytes) -> bool:
        raise _lacking("writes a file only if there is none")

    def clear(self, folder: str) -> None:
        # Overwrite all files with none.
        self._session.createDataFrame([], "value string").write.mode("overwrite").text(folder)

    def make_folder(self, folder: str) -> bool:
        # Spark creates the folder when it writes.
        return bool(self.qualified(folder))

    def publish(self, rows: DataFrame, folder: str, column: str, batch_id: int) -> bool:
        # Spark writes overwritten partitions elsewhere, then renames their folders.
        writer = rows.withColumn(column, F.lit(batch_id)).write.mode("overwrite")
        writer = writer.option("partitionOverwriteMode", "dynamic").partitionBy(column)
        writer.parquet(folder)
        if not self.has_files(f"{folder}/{column}={batch_id}"):
            rows.limit(0).write.mode("overwrite").parquet(f"{folder}/{column}={batch_id}")
        return True

    def setting(self, name: str) -> str | None:
        for key in (name, f"spark.hadoop.{name}"):
            value = self._session.conf.get(key, None)
            if value is not None:
                return str(value)
        return None


def _lacking(what: str) -> ConfigurationError:
    """Return the error for an operation that Spark Connect lacks."""
    return ConfigurationError(
        "Spark Connect", f"it has no call that {what}", "Do this in a classic session"
    )


def _plain(path: str) -> str:
    """Return a path whose characters Spark's readers do not take for a pattern."""
    return _GLOB.sub(r"\\\1", path)


@contextmanager
def _where_there() -> Iterator[None]:
    """Suppress the error of a missing file in the block; let other errors through."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != _MISSING:
            raise


class Folder:
    """The files of a folder by their names in it; local files are read without Spark."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        self._files, self._root = files_of(session), folder.rstrip("/")
        full = self._files.qualified(folder)
        here = not is_remote(session) and full.startswith("file:")
        self._local = Path("/" + full.removeprefix("file:").lstrip("/")) if here else None

    def has(self, name: str) -> bool:
        """Say whether there is such a file."""
        if self._local is not None:
            return (self._local / name).is_file()
        return self._files.has_files(f"{self._root}/{name}")

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is no such file."""
        if self._local is not None:
            with suppress(FileNotFoundError):
                return (self._local / name).read_bytes()
            return None
        return self._files.blob(f"{self._root}/{name}")
