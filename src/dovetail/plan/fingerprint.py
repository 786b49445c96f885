"""The part of a plan that gives stored state its meaning, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dovetail.kernels.aggregates import Aggregate
from dovetail.kernels.user_defined import UserDefined
from dovetail.plan.nodes import (
    Aggregation,
    DeltaJoin,
    Derived,
    ForeignKeyJoin,
    JoinNode,
    Materialized,
    Node,
    Source,
    StreamJoin,
    StreamTableJoin,
    TableJoin,
    Unwindowed,
    WindowJoin,
    origins,
)


def fingerprint(node: Node) -> str:
    """A short hash of all that gives stored state its meaning: types, joins, and which of its
    inputs are one input; not their names.
    """
    text = json.dumps(describe(node), separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(node: Node) -> dict[str, Any]:
    """The part of a node that stored state depends on, as plain data."""
    return _describe(node, origins(node))


def _describe(node: Node, inputs: Sequence[Source]) -> dict[str, Any]:
    if isinstance(node, Derived):
        return {"result": _describe(node.node, inputs)}
    if isinstance(node, Materialized):
        return {"materialized": _describe(node.table, inputs)}
    if isinstance(node, Unwindowed):
        return {"windows": _describe(node.input, inputs), "final": node.final}
    if isinstance(node, Aggregation):
        return {
            "aggregate": [[c.name, list(c.columns), _kernel(c.kernel)] for c in node.columns],
            "by": list(node.by),
            "over": None if node.windows is None else asdict(node.windows),
            "of": _describe(node.input, inputs),
        }
    if isinstance(node, Source):
        told = {
            "stream" if node.stream else "table": inputs.index(node) + 1,
            "key": [f.dataType.simpleString() for f in node.key],
            "values": [[f.name, f.dataType.simpleString()] for f in node.values],
        }
        return told if node.versioned_us is None else told | {"versioned_us": node.versioned_us}
    return {
        "join": node.how,
        **_options(node),
        "left": _describe(node.left, inputs),
        "right": _describe(node.right, inputs),
    }


def _kernel(kernel: Aggregate) -> str:
    """What an accumulator is the accumulator of; a user's functions have no lasting name."""
    if isinstance(kernel, UserDefined):
        return f"user-defined: {', '.join(map(str, kernel.state))} to {kernel.result}"
    return repr(kernel)


def _options(node: JoinNode) -> dict[str, Any]:
    """What a join is besides its kind, where it is more than the plainest."""
    options: dict[str, Any] = {}
    if node.align_us is not None:
        options["align"] = True
    if isinstance(node, TableJoin) and node.late != "ignore":
        options["late"] = node.late
    elif isinstance(node, DeltaJoin):
        options["looked up"] = [list(pair) for pair in node.on]
    elif isinstance(node, ForeignKeyJoin):
        options["on"] = [item if isinstance(item, str) else "an expression" for item in node.on]
    elif isinstance(node, WindowJoin):
        looks = node.window_of
        options |= {
            "shift_us": node.shift_us,
            "window_of": looks if looks is None or isinstance(looks, str) else "an expression",
        }
    elif isinstance(node, StreamTableJoin):
        options |= {"on": list(node.on), "grace_us": node.grace_us}
    elif isinstance(node, StreamJoin):
        options |= {
            "within_us": [node.before_us, node.after_us, node.grace_us],
            "unmatched": node.unmatched,
        }
    return options
