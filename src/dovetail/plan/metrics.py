"""The names of the metrics that a query counts: rows without use, and lookups.

docs/operations.md explains all of them.
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
    "unmet",
    "malformed",
    "lookups",
    "stage",
]


def metric(name: str, kind: Kind) -> str:
    """Return the name of a metric of a table, a stream or a join: ``<name>.<kind>``."""
    return f"{name}.{kind}"
