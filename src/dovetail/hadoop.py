"""Files and folders on any file system that Spark knows: Hadoop's, which have no face in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def located(session: SparkSession, *parts: Any) -> tuple[Any, Any]:
    """The path that these parts make, and its file system."""
    jvm: Any = session._jvm  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(*parts)
    return path, path.getFileSystem(configuration(session))


def configuration(session: SparkSession) -> Any:
    """Hadoop's, with the session's settings of the moment."""
    return session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001


def entries(files: Any, folder: Any) -> Iterator[Any]:
    """What is in a folder, if it is there; nothing hidden, which is yet to be renamed."""
    if files.exists(folder):
        paths = (status.getPath() for status in files.listStatus(folder))
        yield from (path for path in paths if not path.getName().startswith("."))


def text_of(session: SparkSession, files: Any, path: Any) -> str:
    """A file's text."""
    jvm: Any = session._jvm  # noqa: SLF001
    stream = files.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


class Folder:
    """The files of a folder by their names in it; on this machine without Hadoop's help."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        self._session = session
        self._root, self._files = located(session, folder)
        scheme = self._files.getScheme()
        self._local = Path(self._root.toUri().getPath()) if scheme == "file" else None

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        if self._local is not None:
            return (self._local / name).is_file()
        return bool(self._files.exists(located(self._session, self._root, name)[0]))

    def read(self, name: str) -> bytes | None:
        """What a file holds, None where there is none."""
        if self._local is not None:
            with suppress(FileNotFoundError):
                return (self._local / name).read_bytes()
            return None
        if not self.has(name):
            return None
        jvm: Any = self._session._jvm  # noqa: SLF001
        stream = self._files.open(located(self._session, self._root, name)[0])
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()
