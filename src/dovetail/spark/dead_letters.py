"""The rows that a topology leaves out: records that cannot be read, rows on which an expression
fails.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.columns import (
    EVENT_TIME,
    LETTER,
    OPERATOR,
    PROBLEM,
    TIMESTAMP,
    UNREAD,
    foreign_key_name,
    quoted,
)
from dovetail.errors import PlanError
from dovetail.plan.foreign_key_join import ForeignKeyJoin
from dovetail.plan.nodes import Derived, Node
from dovetail.spark import query
from dovetail.spark.wire import read_of, with_foreign_key


def dead_letters(node: Node) -> DataFrame:
    """Every record that a source keeps because it cannot be read, and every row on which the
    foreign key of a join fails.
    """
    sources = [source.with_unread for source in node.origins]
    unread = [_unread(frame) for frame in sources if frame is not None]
    joins = dict.fromkeys(node.walk())
    failing = [one for one in joins if isinstance(one, ForeignKeyJoin) and one.fallible]
    letters = [*unread, *map(_letters, failing)]
    if not letters:
        raise PlanError(
            node.name,
            "no source of it keeps dead letters and no join has an expression in on=, so it leaves "
            "no row out",
            "Read a source with malformed='dead_letter', or leave dead_letters() out",
        )
    return reduce(DataFrame.unionByName, letters)


def _unread(frame: DataFrame) -> DataFrame:
    letter = F.col(UNREAD)
    return frame.where(letter.isNotNull()).select(
        letter[OPERATOR].alias(OPERATOR),
        letter[PROBLEM].alias(PROBLEM),
        F.timestamp_micros(letter[EVENT_TIME]).alias(TIMESTAMP),
        letter[LETTER].alias(LETTER),
    )


def _letters(join: ForeignKeyJoin) -> DataFrame:
    left = join.left
    made = isinstance(left.base, Derived)
    read = read_of(left, query.changelog(left.base, emit="change", buckets=None) if made else None)
    frame, _, failed = with_foreign_key(read.frame, join.on, read.deleted, foreign_key_name(0))
    names = [*left.key.names, *left.values.names]
    return frame.filter(failed).select(
        F.lit(join.name).alias(OPERATOR),
        F.lit(f"on= fails on a row of {left.name}").alias(PROBLEM),
        read.timestamp.alias(TIMESTAMP),
        F.to_json(F.struct(*(F.col(quoted(name)) for name in names))).alias(LETTER),
    )
