"""Delta tables by PySpark's own means: Delta Lake's jar is needed, its Python package is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from dovetail.columns import CHANGE, key_name, quoted, value_name
from dovetail.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

JAR = "io.delta:delta-spark_4.2_2.13:4.4.0"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_ABSENT = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND")


def refuse_without_delta(session: SparkSession, operator: str) -> None:
    """The session must know Delta Lake."""
    if "DeltaSparkSessionExtension" not in str(session.conf.get("spark.sql.extensions", "")):
        raise ConfigurationError(
            operator,
            "the session does not know Delta Lake",
            f"Build it with spark.jars.packages={JAR}, spark.sql.extensions={EXTENSION} and "
            f"spark.sql.catalog.spark_catalog={CATALOG}",
        )


def named(path: str) -> str:
    """The table at a path as SQL calls it."""
    return f"delta.{quoted(path)}"


def read(session: SparkSession, path: str) -> DataFrame:
    """The table's rows."""
    return session.read.format("delta").load(path)


def exists(session: SparkSession, path: str) -> bool:
    """Whether there is a Delta table at the path."""
    try:
        read(session, path)
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            return False
        raise
    return True


def history(session: SparkSession, path: str, limit: int | None) -> list[Row]:
    """The commits of the table, the last one first; at most ``limit``."""
    most = "" if limit is None else f" LIMIT {limit}"
    rows = session.sql(f"DESCRIBE HISTORY {named(path)}{most}")
    wanted = rows.select("version", "operation", "userMetadata").collect()
    return sorted(wanted, key=lambda row: -row["version"])


def merge(
    changes: DataFrame,
    table: str,
    *,
    key: Mapping[str, Column],
    values: Mapping[str, Column],
    gone: Column,
    where: Sequence[Column] = (),
    nulls: bool = True,
) -> None:
    """One MERGE: each row of ``changes`` replaces the table's row of its key, or deletes it where
    ``gone`` says so.

    ``key``, ``values``: the table's columns and what they become, expressions over ``changes``;
    ``where``: further conditions on the table's rows that all those of these keys fulfil;
    ``nulls``: a null in a key equals a null. The source's own columns have reserved names, so that
    no column of the table is taken for one of them.
    """
    columns = {**key, **values}
    places = {name: key_name(i) for i, name in enumerate(key)}
    places |= {name: value_name(0, i) for i, name in enumerate(values)}
    source = changes.select(
        *(column.alias(places[name]) for name, column in columns.items()), gone.alias(CHANGE)
    )
    pairs = [(F.col(quoted(name)), F.col(places[name])) for name in key]
    same = [a.eqNullSafe(b) if nulls else a == b for a, b in pairs]
    assigned = {quoted(name): F.col(place) for name, place in places.items()}
    (
        source.mergeInto(table, reduce(and_, [*same, *where]))
        .whenMatched(F.col(CHANGE))
        .delete()
        .whenMatched()
        .update(assigned)
        .whenNotMatched(~F.col(CHANGE))
        .insert(assigned)
        .merge()
    )
