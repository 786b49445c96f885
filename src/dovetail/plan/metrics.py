"""The names of the metrics that a query counts: rows without use, and lookups.

docs/operations.md explains all of them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

MetricKind: TypeAlias = Literal[
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


WaitReason: TypeAlias = Literal["ahead", "grace", "on_close", "open"]
"""The reasons for which stored rows wait: docs/metrics.md explains them."""


def waiting_metric(name: str, reason: WaitReason) -> str:
    """Return the name of the metric that counts the stored rows that wait: ``<name>.<reason>``.
    ``name``: the input whose rows they are. ``reason``: why they wait, such as ``"on_close"`` for
    the close of a window.
    """
    return f"{name}.{reason}"


def metric_name(name: str, kind: MetricKind) -> str:
    """Return the name of a metric of the table, stream or join ``name``: ``<name>.<kind>``.
    ``kind``: the fate of the rows that it counts, such as ``"late"``.
    """
    return f"{name}.{kind}"
