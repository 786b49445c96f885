"""The order in which the JVM searches Spark's jars for a class.

Spark has more than 250 jars, and Java searches them one after the other, in the order in which the
folder lists them. So a class in the last jar costs as many searches as there are jars. Spark also
looks up the file of a class for each function that it sends to tasks, in each micro-batch. So the
jars with most of the classes that a query loads stand at the front of the class path.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from dovetail.platform import local_disk

SEARCHED_FIRST = (
    "spark-catalyst_",
    "spark-sql_",
    "spark-core_",
    "scala-library-",
    "spark-sql-api_",
    "scala-reflect-",
    "log4j-core-",
    "jackson-databind-",
    "hadoop-client-api-",
)
"""The first parts of the names of these jars. They have two thirds of the classes."""


def driver_jars() -> list[Path]:
    """Return the jars for the front of the class path of a JVM on this machine. First come Spark's
    jars of ``SEARCHED_FIRST``, in that order, then the library's own jar with a file system for
    local disks (``local_disk.JAR``).

    Jars that this installation of Spark lacks are left out.
    """
    jars = Path(_find_spark_home(), "jars")
    first = [jar for name in SEARCHED_FIRST for jar in sorted(jars.glob(f"{name}*.jar"))]
    return [*first, local_disk.JAR]
