"""The names of what a query counts: rows that have no use, and look-ups. docs/operations.md lists
them all.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "dropped",
    "failed",
    "late",
    "too_old",
    "too_late",
    "repeated",
    "no_window",
    "null_group",
    "null_element",
    "unsent",
    "replaced",
    "malformed",
    "lookups",
]


def metric(name: str, kind: Kind) -> str:
    """The name of a metric of a table, a stream or a join."""
    return f"{name}.{kind}"
