"""The columns of a target table, compared with those of a query."""

from __future__ import annotations

import re

from pyspark.sql.types import StructField, StructType

from dovetail.errors import TargetError

_DECLARED_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata with the type of a column that Spark shows as texts."""
_CHAR_TYPE = re.compile(r"\bchar\(")
"""A type whose texts are filled with blanks, so that a row is no longer what the query has."""


def find_missing_columns(
    title: str,
    present: StructType,
    wanted: StructType,
    *,
    evolve: bool = False,
    case_counts: bool = False,
) -> list[StructField]:
    """Return the columns of ``wanted``, the query's, that a table with the columns ``present``
    lacks, in order. Raises ``TargetError`` if the two differ in names or types in any other way, or
    the table has a ``char`` column. A struct that lacks a field is another type.

    ``title``: the sink's name in errors. ``evolve``: False to raise for missing columns, too, so
    that the result is empty. ``case_counts``: True for a table in which ``ID`` and ``id`` are two
    columns. The order of columns and their nullability do not count.
    """
    sides = [
        {f.name if case_counts else f.name.lower(): f for f in schema}
        for schema in (present, wanted)
    ]
    missing = [f for name, f in sides[1].items() if name not in sides[0]]
    problems = [] if evolve else [f"{f.name} is missing" for f in missing]
    problems += [
        f"{f.name} is {f.metadata[_DECLARED_TYPE]} "
        f"and comes as {sides[1][name].dataType.simpleString()}"
        for name, f in sides[0].items()
        if name in sides[1] and _CHAR_TYPE.search(f.metadata.get(_DECLARED_TYPE, ""))
    ]
    problems += [
        f"{f.name} is not among the query's" for name, f in sides[0].items() if name not in sides[1]
    ]
    problems += [
        f"{f.name} is {sides[0][name].dataType.simpleString()} and comes as "
        f"{f.dataType.simpleString()}"
        for name, f in sides[1].items()
        if name in sides[0] and sides[0][name].dataType.simpleString() != f.dataType.simpleString()
    ]
    if problems:
        raise TargetError(
            title,
            "the table has other columns: " + ", ".join(problems),
            "ALTER the table (evolve=True adds columns), choose another one, or with a new "
            "checkpoint existing='replace'",
        )
    return missing
