"""The commands that change a checkpoint that stands still."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.api.results import upgrade as goes_on
from dovetail.api.topology import Topology
from dovetail.command.options import AsJson, Checkpoint
from dovetail.command.output import as_text, print_json, print_table
from dovetail.command.sessions import session
from dovetail.command.topologies import loaded
from dovetail.spark.migration import repartition as dealing
from dovetail.spark.migration import rewind as going_back


def rewind(
    checkpoint: Checkpoint,
    *,
    batch: Annotated[int, typer.Option(help="The micro-batch after which; those behind it go.")],
    as_json: AsJson = False,
) -> None:
    """Set a query that stands still back to an earlier micro-batch."""
    with session() as spark:
        committed = going_back.rewind(spark, checkpoint, batch=batch)
    if as_json:
        print_json({"checkpoint": checkpoint, "batch": batch, "committed": committed})
    else:
        print(f"{checkpoint} is as it was after micro-batch {batch}, at {as_text(committed)}")


def upgrade(
    old: Checkpoint,
    new: Annotated[str, typer.Argument(help="The checkpoint to make, a new folder.")],
    topology: Annotated[list[str], typer.Argument(help="Its results, each as module:name.")],
    *,
    buckets: Annotated[int | None, typer.Option(help="Other buckets than it has.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Tasks of each stage with state.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make of a checkpoint that of another topology, which goes on where the first one stands."""
    with session() as spark:
        results = [loaded(name, Topology) for name in topology]
        steps = goes_on(spark, old, new, results, buckets=buckets, partitions=partitions)
        rows = [row.asDict() for row in steps.collect()]
    if as_json:
        print_json({"checkpoint": new, "stages": rows})
    else:
        print_table(steps.columns, [[*row.values()] for row in rows])


def repartition(
    checkpoint: Checkpoint,
    *,
    partitions: Annotated[int, typer.Option(help="Tasks of each stage with state.")],
    as_json: AsJson = False,
) -> None:
    """Deal the state of a query that stands still to another number of partitions."""
    with session() as spark:
        dealing.repartition(spark, checkpoint, partitions=partitions)
    if as_json:
        print_json({"checkpoint": checkpoint, "partitions": partitions})
    else:
        print(f"{checkpoint} has {partitions} partitions")
