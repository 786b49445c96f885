"""Errors of Spark, Hadoop and their JVM, turned into the library's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dovetail.errors import ConfigurationError
from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_stopped

_FOLDER = (
    "Give a folder that can be written, on a file system that Spark knows: s3a://, gs:// and the "
    "like need their jar, for S3 org.apache.hadoop:hadoop-aws"
)


@contextmanager
def convert_spark_errors(operator: str, problem: str, remedy: str) -> Iterator[None]:
    """Turn an error of Spark in the block into a ``ConfigurationError``, whose ``__cause__`` is
    Spark's error. Other errors pass.

    ``operator``: the user's call. ``problem``: the beginning of the message, before Spark's own
    reason. ``remedy``: the end of the message.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise ConfigurationError(operator, f"{problem}: {reason(error)}", remedy) from error


@contextmanager
def convert_folder_errors(
    operator: str, argument: str, path: str | PathLike[str]
) -> Iterator[None]:
    """Turn an error of Spark in the block, of reading or writing a folder, into a
    ``ConfigurationError``. Other errors pass.

    ``operator``: the user's call. ``argument``, ``path``: the argument that names the folder, such
    as ``checkpoint=``, and its value. All are for the error.
    """
    with convert_spark_errors(operator, f"{argument}{fspath(path)!r} cannot be used", _FOLDER):
        yield


def refuse_stopped(operator: str, session: SparkSession) -> None:
    """Raise ``ConfigurationError`` if the session was stopped; else do nothing. ``operator``: the
    user's call, for the error.
    """
    if is_stopped(session):
        raise ConfigurationError(
            operator,
            "the Spark session was stopped",
            "Start another one, and make frames, tables and streams anew with it",
        )


def make_folder(
    session: SparkSession, operator: str, argument: str, path: str | PathLike[str]
) -> None:
    """Create the folder ``path``, with the folders above it, if it is missing. ``operator``,
    ``argument``: the user's call and the argument that has the path, for the error.

    Raises ``ConfigurationError`` if the folder cannot be created or its file system not be reached,
    or if there is a file of that name.
    """
    with convert_folder_errors(operator, argument, path):
        is_folder = files_of(session).make_folder(fspath(path))
    if not is_folder:
        raise ConfigurationError(
            operator, f"{argument}{fspath(path)!r} is no folder and cannot be made one", _FOLDER
        )


def reason(error: Exception) -> str:
    r"""Return the first line of an error's message, without a full stop; the name of its class if
    it has no message. Of an error of the JVM, the line begins with its Java class.

    >>> reason(ValueError("no such file.\n\tat java.io"))
    'no such file'
    """
    shown = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    lines = str(shown).strip().splitlines()
    return lines[0].removesuffix(".") if lines else type(error).__name__
