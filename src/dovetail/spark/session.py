"""The configuration of a session in which queries run as fast as they can."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import pyspark
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from dovetail.base import validation
from dovetail.base.validation import Rule, Text, validated
from dovetail.errors import ConfigurationError
from dovetail.platform import delta_tables
from dovetail.spark import class_archive, class_path
from dovetail.spark.log_lines import QUIET
from dovetail.spark.memory_limit import HEAP, memory_settings

MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MIMALLOC_ALLOW_LARGE_OS_PAGES": "1",
    "MIMALLOC_PURGE_DELAY": "-1",
}
"""The environment in which the JVM and its Python workers take huge pages and give none back."""
HUGE_PAGES = "-XX:+UseTransparentHugePages"
_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
"""A JVM option that chooses a garbage collector."""
DAEMON = "dovetail.spark.worker_daemon"
COMPILED, COMPILED_KEPT = "spark.sql.codegen.cache.maxEntries", "2000"
"""The count of pieces of generated code that the JVM keeps, to avoid compiling them in each
micro-batch. The default of 100 is fewer than a commit to a Delta table takes."""
CLASS_PATH, JAVA_OPTIONS = "spark.driver.extraClassPath", "spark.driver.extraJavaOptions"
SOCKETS = "spark.python.unix.domain.socket.enabled"

Builder: TypeAlias = Annotated[SparkSession.Builder, Rule("SparkSession.builder")]
Paths: TypeAlias = Annotated[
    validation.Path | Sequence[validation.Path],
    Rule("the path of a jar or of a folder of jars, or a list"),
]


@validated
def configure(
    builder: Builder,
    *,
    kafka: bool = False,
    delta: bool = False,
    avro: bool = False,
    jars: Paths | None = None,
    memory: Text | None = None,
    memory_limit: Text | None = None,
    archive: validation.Path | None = None,
    quiet: bool = True,
) -> SparkSession.Builder:
    """Configure a builder whose session runs queries as fast as they are measured.

    Queries run in a session that is built without it, too.

    Parameters
    ----------
    builder : SparkSession.Builder
        The builder, as in ``SparkSession.builder``. Its settings are kept, and those of
        Spark's file ``spark-defaults.conf``.
    kafka : bool, default False
        True to add what is needed to read and write topics.
    delta : bool, default False
        True to add what is needed to read and write Delta tables.
    avro : bool, default False
        True to add what is needed to read and write records in Avro.
    jars : str, path or list of these, optional
        The paths of jars, or of folders of jars. They must have what ``kafka``, ``delta`` and
        ``avro`` need. By default Spark fetches the jars once by their Maven coordinates.
    memory : str, optional
        The memory of the JVM, such as ``"6g"``. By default it is Spark's, or half of
        ``memory_limit``. A builder's own ``spark.driver.memory`` is taken in its place; that
        of Spark's file is not.
    memory_limit : str, optional
        The memory that a session on one machine takes in all its processes, such as
        ``"8g"``, at least ``"2g"``. It bounds the JVM's heap, and the files of state that
        workers keep mapped. docs/operations.md says what is left out. By default nothing
        bounds the files.
    archive : str or path, optional
        The folder of an archive of Spark's classes, of about 200 MB. If it has none, the JVM
        writes one as it ends. Later ones start faster with it. By default there is none.
    quiet : bool, default True
        True to leave lines out of Spark's log that read like faults of a query and are
        none. docs/look.md has the list. False keeps all lines.

    Returns
    -------
    SparkSession.Builder
        The builder with the settings. Jars, extensions and JVM options are added to those
        that it and the file have.

    Raises
    ------
    ConfigurationError
        If a path in ``jars`` is no jar and no folder of jars. Also if the folder ``archive``
        cannot be made, and for a builder of Spark Connect, whose server has these settings
        from its start. Also for a ``memory_limit`` that is no size or below ``"2g"``, and if
        ``memory`` leaves less than a quarter of it. Also for one with a builder of a cluster,
        or of a master without cores (``local[0]``).
    PlanError
        If an argument has another type.

    See Also
    --------
    doctor : Check a session for these settings.
    settings : The settings of a query, which ``write_stream`` makes by itself.

    Notes
    -----
    Further settings are:

    - this process's Python for the workers, set in ``os.environ`` unless ``PYSPARK_PYTHON``
      is there already;
    - the JVM's parallel garbage collector, unless the builder's JVM options name another;
    - huge pages for the JVM and its Python workers, on Linux. They are set in
      ``os.environ``, which both inherit;
    - Unix sockets between the JVM and its workers;
    - UTC as the session's time zone;
    - room for generated code;
    - on one machine (``master("local...")``), workers that start with their imports made,
      and local files without a process for each;
    - there as well, the jars with most classes at the front of the class path.

    Examples
    --------
    >>> import os
    >>> from unittest import mock
    >>> import dovetail as dt
    >>> from pyspark.sql import SparkSession
    >>> with mock.patch.dict(os.environ):  # of this process
    ...     builder = dt.configure(SparkSession.builder.master("local[2]"), memory="2g")
    >>> type(builder).__name__  # its getOrCreate() returns the session
    'Builder'
    >>> dt.configure(SparkSession.builder, jars="no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dovetail.errors.ConfigurationError: configure: jars='no/such/folder' is no jar and ...
    """
    of_builder: dict[str, str] = dict(builder._options)  # noqa: SLF001 -- to add to what is there
    _refuse_remote(of_builder)
    options = _default_settings(heap=memory is None and memory_limit is None) | of_builder
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    added = {"spark.jars": ",".join(_jar_files(jars))}
    settings = {SOCKETS: "true", "spark.sql.session.timeZone": "UTC", COMPILED: COMPILED_KEPT}
    settings[QUIET] = "true" if quiet else "false"
    if sys.platform == "linux":
        for name, value in MEMORY.items():
            os.environ.setdefault(name, value)
    modules = {"sql-kafka-0-10": kafka, "avro": avro}
    packages = [spark_jar(module) for module, wanted in modules.items() if wanted]
    if delta:
        packages.append(delta_tables.JAR)
        added["spark.sql.extensions"] = delta_tables.EXTENSION
        settings["spark.sql.catalog.spark_catalog"] = delta_tables.CATALOG
    if jars is None:
        added["spark.jars.packages"] = ",".join(packages)
    settings |= memory_settings(options, memory, memory_limit)
    if options.get("spark.master", "local").startswith("local"):
        settings["spark.python.daemon.module"] = DAEMON
        if os.name == "posix":
            added[CLASS_PATH] = os.pathsep.join(map(str, class_path.driver_jars()))
    for name, value in added.items():
        between = os.pathsep if name == CLASS_PATH else ","
        settings[name] = between.join(part for part in (options.get(name), value) if part)
    for name, value in settings.items():
        if value and (name in added or name not in options):
            builder = builder.config(name, value)
    class_path_set = settings.get(CLASS_PATH, options.get(CLASS_PATH, ""))
    java_options = _java_options(options) + _archive_options(archive, class_path_set)
    return builder.config(JAVA_OPTIONS, java_options)


def _default_settings(*, heap: bool) -> dict[str, str]:
    """Return the settings in Spark's file ``spark-defaults.conf``, by name; none without a file
    that can be read. A builder's settings replace them. ``heap``: False to leave out the memory of
    the driver's JVM.
    """
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    try:
        lines = Path(folder, "spark-defaults.conf").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    matches = (re.match(r"\s*(spark[^\s=:]+)\s*[\s=:]\s*(.*?)\s*$", line) for line in lines)
    settings = {match[1]: match[2] for match in matches if match is not None}
    return settings if heap else {name: settings[name] for name in settings if name != HEAP}


def _java_options(options: Mapping[str, str]) -> str:
    """Return the options of the driver's JVM. Those in ``options`` come last, and so replace
    others. A garbage collector is named only if they name none: the JVM refuses two.
    ``options``: the settings of the builder and of Spark's file.
    """
    chosen = options.get(JAVA_OPTIONS, "")
    by_default = options.get("spark.driver.defaultJavaOptions", "")
    names_collector = _COLLECTOR.search(f"{by_default} {chosen}")
    java_options = [] if names_collector else ["-XX:+UseParallelGC"]
    if sys.platform == "linux":
        java_options += ["-XX:+IgnoreUnrecognizedVMOptions", HUGE_PAGES]
    return " ".join([*java_options, chosen]).strip()


def _archive_options(folder: str | os.PathLike[str] | None, jars_in_front: str) -> str:
    """Return the JVM options of an archive of classes in ``folder``, after a space; an empty text
    for None. ``jars_in_front``: the text in front of Spark's own class path.

    Raises ``ConfigurationError`` if the folder cannot be made.
    """
    if folder is None:
        return ""
    try:
        return f" {class_archive.java_options(Path(folder), jars_in_front)}"
    except OSError as error:
        raise ConfigurationError(
            "configure",
            f"archive={os.fspath(folder)!r} is no folder that can be made ({error.strerror})",
            "Name another one",
        ) from error


def _refuse_remote(options: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` for a builder of Spark Connect. ``options``: the builder's
    settings.
    """
    if "spark.remote" in options or "SPARK_REMOTE" in os.environ:
        raise ConfigurationError(
            "configure",
            "the builder is one of Spark Connect, whose server has its settings from its start",
            "Leave configure out; dt.doctor(spark) says what the server lacks",
        )


def spark_jar(module: str) -> str:
    """Return the Maven coordinates of Spark's own module ``module``, such as ``avro``, for Scala
    2.13. Its release is the first of the installed Spark's minor version.
    """
    major, minor, *_ = pyspark.__version__.split(".")
    return f"org.apache.spark:spark-{module}_2.13:{major}.{minor}.0"


def _jar_files(jars: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[str]:
    """Return the absolute paths of the jars in ``jars``, in the order given: of each file itself,
    under any name, and of all ``*.jar`` directly in a folder, in order of their names. None gives
    none. Raises ``ConfigurationError`` for a path that is neither a file nor a folder with jars.
    """
    if jars is None:
        return []
    resolved = []
    for entry in [jars] if isinstance(jars, (str, os.PathLike)) else jars:
        path = Path(entry)
        files = sorted(path.glob("*.jar")) if path.is_dir() else [path]
        if not files or not all(jar.is_file() for jar in files):
            raise ConfigurationError(
                "configure", f"jars={str(path)!r} is no jar and no folder of jars", "Name them"
            )
        resolved += [str(jar.resolve()) for jar in files]
    return resolved
