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
    """Operations on the files and folders that a session can reach.

    A name that begins with a dot is of a file that is yet to be renamed. It does not count unless a
    method says so. Errors of a file system that cannot be reached are Spark's own
    (``spark_errors.convert_folder_errors``).
    """

    @abstractmethod
    def qualified(self, path: str) -> str:
        """Return the full form of a path, with its scheme; a relative path starts at Spark's
        working directory. The path need not exist.
        """

    @abstractmethod
    def has_files(self, folder: str) -> bool:
        """Return True if the path is a file, or a folder with any file in it, at any depth. False
        for a missing folder. Names in it that begin with a dot do not count; on Spark Connect,
        names that begin with ``_`` do not count either.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return True if there is a file or folder with this path."""

    @abstractmethod
    def is_folder(self, path: str) -> bool:
        """Return True if the path is a folder that exists. Raises ``ConfigurationError`` on Spark
        Connect.
        """

    @abstractmethod
    def has_named(self, folder: str, prefix: str) -> bool:
        """Return True if the name of a file or folder directly in ``folder`` begins with
        ``prefix``. False for a missing folder.

        In a classic session all names count, also those that begin with a dot. On Spark Connect, a
        folder counts only if it has a file at any depth whose name begins with neither a dot nor
        ``_``.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders directly in a folder, those that begin with a
        dot included. Empty if there is no such folder. Raises ``ConfigurationError`` on Spark
        Connect.
        """

    def numbers(self, folder: str, *, suffix: str = "") -> list[int]:
        """Return the integers in the names directly in ``folder`` that are digits followed by
        ``suffix``, in undefined order. Files and folders count alike. Other names are left out.

        Empty if there is no such folder. Raises ``ConfigurationError`` on Spark Connect.
        """
        names = [n.removesuffix(suffix) for n in self.names(folder) if n.endswith(suffix)]
        return [int(name) for name in names if name.isdigit()]

    @abstractmethod
    def modified(self, path: str) -> datetime:
        """Return the time at which an existing file or folder was last written, to the millisecond,
        as a datetime with the zone UTC. Spark's error passes if it is missing. Raises
        ``ConfigurationError`` on Spark Connect.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file; do nothing if it is missing. ``path`` must not be a folder with files.
        Raises ``ConfigurationError`` on Spark Connect.
        """

    @abstractmethod
    def text(self, path: str) -> str | None:
        """Return the text of a file, as UTF-8. Of a folder, return the texts of all part files
        (``part-…``) in it one after the other, in undefined order; empty if it has none. Return
        None if there is neither file nor folder.
        """

    @abstractmethod
    def blob(self, path: str) -> bytes | None:
        """Return a file's bytes; None if there is no such file. ``path`` must not be a folder."""

    @abstractmethod
    def put(self, path: str, text: str) -> None:
        """Write a text file in UTF-8 as a whole or not at all, in place of a present file or
        folder. Missing parent folders are created.

        On Spark Connect, ``path`` becomes a folder with one part file, and the present file may be
        gone after a failure. ``text`` reads both forms.
        """

    @abstractmethod
    def create(self, path: str, blob: bytes) -> bool:
        """Write ``blob`` to a new file as a whole or not at all, and return True. Return False, and
        write nothing, if the file exists, or if another process is faster. Its folder must exist.
        Raises ``ConfigurationError`` on Spark Connect.
        """

    @abstractmethod
    def clear(self, folder: str) -> None:
        """Delete a folder's files, hidden ones included, at any depth.

        A classic session deletes the folder itself, and does nothing if it is missing. On Spark
        Connect the folder has one empty file afterwards, also if it was missing.
        """

    @abstractmethod
    def copy(self, path: str, new_path: str) -> None:
        """Copy a file, or a folder with its content, to ``new_path``, which should not exist.
        Missing parent folders of ``new_path`` are created.

        Do nothing if there is no file or folder ``path``. Raises ``ConfigurationError`` on Spark
        Connect.
        """

    @abstractmethod
    def make_folder(self, folder: str) -> bool:
        """Create a folder if it is missing, with the folders above it. Return True if it exists
        now, or, on Spark Connect, if writing a file will create it. If a file has that name, or the
        file system refuses, return False or let Spark's error pass, as the file system does.
        """

    @abstractmethod
    def publish(self, rows: DataFrame, folder: str, column: str, batch_id: int) -> bool:
        """Write rows as Parquet files to the folder ``<column>=<batch_id>`` within ``folder``, and
        return True. The new folder replaces a present one of that name, and appears at once if the
        file system renames a folder at once.

        ``rows`` must not have the column ``column``; without rows the folder has a Parquet file
        without rows. ``batch_id``: the micro-batch's id. Return False if a classic session could
        not rename the new files into place. They stay in the folder ``_writing_<batch_id>`` then,
        and the former folder is gone.
        """

    @abstractmethod
    def setting(self, name: str) -> str | None:
        """Return the value of Hadoop's setting ``name`` in this session, as text; None if it is not
        set.
        """

    @abstractmethod
    def has_class(self, name: str) -> bool:
        """Return True if the session's JVM is known to have the class with the full name ``name``.
        Return False if it has not, or, on Spark Connect, cannot be asked.
        """

    def scheme(self, path: str) -> str:
        """Return the scheme of a path's file system, such as ``file`` or ``s3a``. A path without a
        scheme has that of the session's default file system.
        """
        return self.qualified(path).partition(":")[0]


def files_of(session: SparkSession) -> Files:
    """Return the operations on the files that ``session`` can reach, for a classic session or one
    of Spark Connect.
    """
    return _OfServer(session) if is_remote(session) else _OfHadoop(session)


class _OfHadoop(Files):
    """Files by Hadoop's own calls, which have no public interface in Python."""

    def __init__(self, session: SparkSession) -> None:
        """Reach the file systems with the settings of ``session``, a classic one."""
        self._hadoop = Hadoop(session)

    def qualified(self, path: str) -> str:
        """Return the full form of a path, with its scheme; the path need not exist. A relative path
        starts at Spark's working directory.
        """
        hadoop_path, files = self._hadoop.located(path)
        return str(files.makeQualified(hadoop_path).toString())

    def has_files(self, folder: str) -> bool:
        """Return True if the path is a file, or a folder with any file in it, at any depth; False
        if it is missing. Files and folders in it whose names begin with a dot do not count.
        """
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
        """Return True if there is a file or folder with this path."""
        hadoop_path, files = self._hadoop.located(path)
        return bool(files.exists(hadoop_path))

    def is_folder(self, path: str) -> bool:
        """Return True if the path is a folder that exists."""
        hadoop_path, files = self._hadoop.located(path)
        return bool(files.exists(hadoop_path) and files.getFileStatus(hadoop_path).isDirectory())

    def has_named(self, folder: str, prefix: str) -> bool:
        """Return True if the name of a file or folder directly in ``folder`` begins with
        ``prefix``, also if that begins with a dot. False for a missing folder.
        """
        return any(name.startswith(prefix) for name in self.names(folder))

    def text(self, path: str) -> str | None:
        """Return the text of a file, as UTF-8. Of a folder, return the texts of its files
        ``part-…`` one after the other; empty if it has none. Return None if there is neither.
        """
        hadoop_path, files = self._hadoop.located(path)
        if not files.exists(hadoop_path):
            return None
        parts = [hadoop_path]
        if files.getFileStatus(hadoop_path).isDirectory():
            children = (status.getPath() for status in files.listStatus(hadoop_path))
            parts = [part for part in children if part.getName().startswith("part-")]
        return "".join(self._hadoop.text(files, part) for part in parts)

    def blob(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if there is no such file. ``path`` must not be a
        folder.
        """
        hadoop_path, files = self._hadoop.located(path)
        return self._hadoop.blob(files, hadoop_path) if files.exists(hadoop_path) else None

    def put(self, path: str, text: str) -> None:
        """Write a text file in UTF-8 as a whole or not at all, by Spark's own means for
        checkpoints. It replaces a file or folder of this path; missing parent folders are created.
        """
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
        """Write a new file as a whole or not at all, by Spark's own means for checkpoints, and
        return True. Return False if the file exists, or if another process was faster. The folder
        must exist.
        """
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
        """Delete a folder with all files and folders in it; do nothing if it is missing."""
        path, files = self._hadoop.located(folder)
        files.delete(path, True)

    def copy(self, path: str, new_path: str) -> None:
        """Copy a file, or a folder with its content, to ``new_path``, perhaps on another file
        system. Missing parent folders are created. Do nothing if there is none at ``path``.
        """
        source, files = self._hadoop.located(path)
        target, there = self._hadoop.located(new_path)
        if files.exists(source):
            there.mkdirs(target.getParent())
            self._hadoop.copy(files, source, there, target)

    def make_folder(self, folder: str) -> bool:
        """Create a folder, with all folders above it, if it is missing. Return True if it exists
        now. If a file has that name, or the file system refuses, return False or let the JVM's
        error pass, as the file system does.
        """
        path, files = self._hadoop.located(folder)
        return bool(files.mkdirs(path))

    def publish(self, rows: DataFrame, folder: str, column: str, batch_id: int) -> bool:
        """Write rows as Parquet files to ``_writing_<batch_id>`` in ``folder``, then rename it to
        ``<column>=<batch_id>``, in place of a present one. Without rows there is a Parquet file
        without rows. ``rows`` must not have the column ``column``. ``batch_id``: the micro-batch's
        id.

        Return False if the folder cannot be renamed, else True. The present one is gone then, and
        the new files stay under the name ``_writing_<batch_id>``.
        """
        hidden, files = self._hadoop.located(folder, f"_writing_{batch_id}")
        rows.write.mode("overwrite").parquet(str(hidden.toString()))
        shown, _ = self._hadoop.located(folder, f"{column}={batch_id}")
        files.delete(shown, True)
        return bool(files.rename(hidden, shown))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders directly in a folder, in undefined order. Those
        that begin with a dot are included. Empty for a missing folder.
        """
        path, files = self._hadoop.located(folder)
        entries = files.listStatus(path) if files.exists(path) else ()
        return [entry.getPath().getName() for entry in entries]

    def modified(self, path: str) -> datetime:
        """Return the time at which an existing file or folder was last written, to the millisecond,
        as a datetime with the zone UTC. The JVM's error passes if it is missing.
        """
        hadoop_path, files = self._hadoop.located(path)
        milliseconds = int(files.getFileStatus(hadoop_path).getModificationTime())
        return datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=milliseconds)

    def remove(self, path: str) -> None:
        """Delete a file; do nothing if it is missing. The JVM's error passes for a folder with
        files.
        """
        hadoop_path, files = self._hadoop.located(path)
        files.delete(hadoop_path, False)

    def setting(self, name: str) -> str | None:
        """Return the value of ``name`` in Hadoop's configuration of the session, as text; None if
        it is not set.
        """
        value = self._hadoop.settings().get(name)
        return None if value is None else str(value)

    def has_class(self, name: str) -> bool:
        """Return True if the JVM finds the class with the full name ``name``."""
        return self._hadoop.has_class(name)


class _OfServer(Files):
    """Files by Spark's readers and writers, for Spark Connect."""

    def __init__(self, session: SparkSession) -> None:
        """Reach files by ``session``, one of Spark Connect."""
        self._session = session

    def qualified(self, path: str) -> str:
        """Return the full form of a path, with its scheme; the path need not exist. It is taken
        from the server's error about a missing file below the path. Other errors pass.
        """
        child = uuid4().hex
        try:
            _ = self._session.read.text(f"{_escape_pattern(path)}/{child}").schema
        except AnalysisException as error:
            if error.getCondition() != _MISSING:
                raise
            return str((error.getMessageParameters() or {})["path"]).removesuffix(f"/{child}")
        raise AssertionError(child)

    def has_files(self, folder: str) -> bool:
        """Return True if the path is a file, or a folder with any file in it that Spark reads, at
        any depth. False if it is missing. Names that begin with a dot or ``_`` do not count.
        """
        return self._has_match(_escape_pattern(folder))

    def exists(self, path: str) -> bool:
        """Return True if the server finds a file or folder with this path."""
        with _suppress_missing():
            return bool(self._session.read.format("binaryFile").load(_escape_pattern(path)).schema)
        return False

    def is_folder(self, path: str) -> bool:
        """Raise ``ConfigurationError``: Spark Connect does not tell a folder from a file."""
        raise _unsupported_error("tells a folder from a file")

    def has_named(self, folder: str, prefix: str) -> bool:
        """Return True if the name of a file or folder directly in ``folder`` begins with
        ``prefix``. False for a missing folder. A folder counts only if it has a file at any depth
        whose name begins with neither a dot nor ``_``.
        """
        return self._has_match(f"{_escape_pattern(folder)}/{prefix}*")

    def _has_match(self, pattern: str) -> bool:
        """Return True if a pattern of Spark's readers, such as ``/data/part-*``, matches a file, or
        a folder with files at any depth. Return False if it matches nothing. Files whose names
        begin with a dot or ``_`` do not count.
        """
        reader = self._session.read.format("binaryFile").option("recursiveFileLookup", "true")
        with _suppress_missing():
            return bool(reader.load(pattern).inputFiles())
        return False

    def names(self, folder: str) -> list[str]:
        """Raise ``ConfigurationError``: Spark Connect does not list a folder."""
        raise _unsupported_error("lists a folder")

    def modified(self, path: str) -> datetime:
        """Raise ``ConfigurationError``: Spark Connect does not say when a file was written."""
        raise _unsupported_error("says when a file was written")

    def remove(self, path: str) -> None:
        """Raise ``ConfigurationError``: Spark Connect does not delete a file."""
        raise _unsupported_error("deletes a file")

    def copy(self, path: str, new_path: str) -> None:
        """Raise ``ConfigurationError``: Spark Connect does not copy a folder."""
        raise _unsupported_error("copies a folder")

    def text(self, path: str) -> str | None:
        """Return the text of a file, as UTF-8. Of a folder, return the texts of all files directly
        in it, in undefined order. Names that begin with a dot or ``_`` do not count. Empty for an
        empty folder, None if there is neither. Runs a job.
        """
        with _suppress_missing():
            rows = self._session.read.text(_escape_pattern(path), wholetext=True).collect()
            return "".join(row[0] for row in rows)
        return None

    def blob(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if there is no such file. ``path`` must not be a folder.
        Runs a job.
        """
        with _suppress_missing():
            row = self._session.read.format("binaryFile").load(_escape_pattern(path)).head()
            return None if row is None else bytes(row["content"])
        return None

    def put(self, path: str, text: str) -> None:
        """Write a text as the only part file of a folder, in place of the folder's present content,
        which is deleted first. Runs a job.
        """
        # One row is one part file, which Spark renames into place.
        rows = self._session.createDataFrame([(text,)], "value string")
        rows.coalesce(1).write.mode("overwrite").text(path)

    def create(self, path: str, blob: bytes) -> bool:
        """Raise ``ConfigurationError``: Spark Connect does not write a file only if there is
        none.
        """
        raise _unsupported_error("writes a file only if there is none")

    def clear(self, folder: str) -> None:
        """Put one empty file in place of all files of a folder, which is created if it is missing.
        Runs a job.
        """
        self._session.createDataFrame([], "value string").write.mode("overwrite").text(folder)

    def make_folder(self, folder: str) -> bool:
        """Return True and create nothing: Spark creates the folder when it writes. Spark's error
        passes for a path whose file system cannot be reached.
        """
        return bool(self.qualified(folder))

    def publish(self, rows: DataFrame, folder: str, column: str, batch_id: int) -> bool:
        """Write rows as the partition ``<column>=<batch_id>`` of the Parquet folder ``folder``, in
        place of a present one, and return True. Spark writes the partition elsewhere and renames
        it. ``rows`` must not have the column ``column``. ``batch_id``: the micro-batch's id.

        Without rows the partition is an empty Parquet file.
        """
        partition = f"{folder}/{column}={batch_id}"
        nothing = rows.limit(0).write.mode("overwrite")
        if self.has_files(partition):
            nothing.parquet(partition)  # without rows Spark would leave it as it is
        writer = rows.withColumn(column, F.lit(batch_id)).write.mode("overwrite")
        writer = writer.option("partitionOverwriteMode", "dynamic").partitionBy(column)
        writer.parquet(folder)
        if not self.has_files(partition):
            nothing.parquet(partition)
        return True

    def setting(self, name: str) -> str | None:
        """Return the session's setting ``name``, else that of ``spark.hadoop.<name>``, as text;
        None if neither is set.
        """
        for key in (name, f"spark.hadoop.{name}"):
            value = self._session.conf.get(key, None)
            if value is not None:
                return str(value)
        return None

    def has_class(self, name: str) -> bool:
        """Return False, whatever ``name``: the server's JVM cannot be asked."""
        return False


def _unsupported_error(what: str) -> ConfigurationError:
    """Return a ``ConfigurationError``, not raised, for an operation that Spark Connect lacks.
    ``what``: a verb and its object, such as ``lists a folder``.
    """
    return ConfigurationError(
        "Spark Connect", f"it has no call that {what}", "Do this in a classic session"
    )


def _escape_pattern(path: str) -> str:
    """Return a path with those characters escaped that Spark's readers take for a pattern, such as
    ``*``.
    """
    return _GLOB.sub(r"\\\1", path)


@contextmanager
def _suppress_missing() -> Iterator[None]:
    """Suppress Spark's error for a missing path (``PATH_NOT_FOUND``) in the block, which ends
    there. Other errors pass.
    """
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != _MISSING:
            raise


class Folder:
    """The files directly in a folder by their names; local files of a classic session are read
    without Spark.
    """

    def __init__(self, session: SparkSession, folder: str) -> None:
        """Take the folder with the path ``folder``, which need not exist. A relative path starts at
        Spark's working directory.
        """
        self._files, self._root = files_of(session), folder.rstrip("/")
        full = self._files.qualified(folder)
        here = not is_remote(session) and full.startswith("file:")
        self._local = Path("/" + full.removeprefix("file:").lstrip("/")) if here else None

    def has(self, name: str) -> bool:
        """Return True if the folder has a file with this name. A folder of this name counts, too,
        if it has files in it, but not on a local disk of a classic session.
        """
        if self._local is not None:
            return (self._local / name).is_file()
        return self._files.has_files(f"{self._root}/{name}")

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the folder's file with this name; None if there is no such file.
        ``name`` must not be that of a folder.
        """
        if self._local is not None:
            with suppress(FileNotFoundError):
                return (self._local / name).read_bytes()
            return None
        return self._files.blob(f"{self._root}/{name}")
