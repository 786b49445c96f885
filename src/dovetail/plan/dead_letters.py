"""A query's dead letters as a stream: rows left out because an expression fails on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from dovetail.base.columns import LETTER, OPERATOR, PROBLEM
from dovetail.base.json_options import EXACT_TIMES
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.window_join import WindowJoin
from dovetail.plan.nodes import Node
from dovetail.plan.views import View


def row_as_json(columns: Sequence[Column]) -> Column:
    """Return the columns of a row, which have names, as one column with a JSON text per row. A null
    field is left out of the text. Timestamps are in UTC.
    """
    return F.to_json(F.struct(*columns), EXACT_TIMES)


@dataclass(frozen=True)
class DeadLetters(Node):
    """A stream of dead letters: the operator that left a row out, the problem, and
    the row as JSON.
    """

    name = "dead letters"
    key = StructType([StructField(OPERATOR, StringType(), False)])
    values = StructType([StructField(name, StringType(), False) for name in (PROBLEM, LETTER)])
    stream = True


def nodes_with_dead_letters(node: Node) -> Iterator[View | ForeignKeyJoin | WindowJoin]:
    """Yield each node, of ``node`` and all below it through all stages, whose rows may become dead
    letters: rows that are left out with a note of the problem. Each comes once, inputs first.

    These are views that leave out rows on which an expression or an expectation fails, and joins
    whose foreign key or ``window_of`` has an expression.
    """
    for part in dict.fromkeys(node.walk()):
        if isinstance(part, View):
            if part.letters is not None:
                yield part
        elif isinstance(part, (ForeignKeyJoin, WindowJoin)) and part.fallible:
            yield part
