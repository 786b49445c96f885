"""The command that explains a row of a result."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.api.topology import Planned
from dovetail.command.options import App, AsJson, Checkpoint
from dovetail.command.sessions import session
from dovetail.command.topologies import load_topology
from dovetail.spark.checkpoints.row_explanations import explain_stored_row


def why(
    checkpoint: Checkpoint,
    topology: App,
    key: Annotated[list[str], typer.Argument(help="The row's key, as column=value.")],
    *,
    result: Annotated[
        str | None, typer.Option(help="A join or an aggregate in the topology, by its name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows of inputs that make a row of a result, or why there is no such row.

    The state after the last committed micro-batch counts, and the query may run meanwhile. The exit
    code is 0 in both cases. In a key, the text null is null.
    """
    texts = dict(part.partition("=")[::2] for part in key)
    with session() as spark:
        node = load_topology(topology, Planned).plan
        explanation = explain_stored_row(
            "why", spark, checkpoint, [node], texts, result, as_text=True
        )
    print(explanation.to_json() if as_json else explanation)
