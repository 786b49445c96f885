"""The commands that change a checkpoint, or make one of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from dovetail.api.results import upgrade as goes_on
from dovetail.api.topology import Topology
from dovetail.command.options import AsJson, Checkpoint
from dovetail.command.output import as_text, at_terminal, print_json, print_table
from dovetail.command.sessions import session
from dovetail.command.topologies import load_topology
from dovetail.spark.migration import repartition as dealing
from dovetail.spark.migration import rewind as going_back

_START_S: Final = 3.0
"""The time of an upgrade of no rows."""


def rewind(
    checkpoint: Checkpoint,
    *,
    batch: Annotated[int, typer.Option(help="The micro-batch after which; those behind it go.")],
    as_json: AsJson = False,
) -> None:
    """Set a query that stands still back to an earlier micro-batch.

    The checkpoint is changed in place, without a question: the files of later micro-batches are
    deleted. The time at which the micro-batch was committed is printed, with --json in an object of
    checkpoint, batch and committed. A query that runs in another process is not noticed. A
    micro-batch that is no longer stored is refused.
    """
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
    running: Annotated[
        bool, typer.Option("--running", help="Its query runs; follow it. May be repeated.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would happen, and change nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, as is done at a terminal.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make of a checkpoint that of another topology, which goes on where the first one stands.

    The old checkpoint stays as it is. At a terminal, without --yes or --json, the steps are printed
    first. The command then asks whether to go on; a no ends it with exit code 1. Otherwise it goes
    on without a question, and prints the steps afterwards.
    """
    with session() as spark:
        results = [load_topology(name, Topology) for name in topology]

        def run_upgrade(*, dry_run: bool) -> list[dict[str, Any]]:
            """Return a row, as a dict, for each stage of the new query: how it begins. Make the new
            checkpoint, unless ``dry_run``.
            """
            frame = goes_on(
                spark,
                old,
                new,
                results,
                buckets=buckets,
                partitions=partitions,
                running=running,
                dry_run=dry_run,
            )
            return [row.asDict() for row in frame.collect()]

        asks = at_terminal() and not (yes or as_json)
        if dry_run or asks:
            forecast = run_upgrade(dry_run=True)
            seconds = _START_S + sum(step["seconds"] for step in forecast)
            if as_json:
                print_json({"checkpoint": new, "stages": forecast, "seconds": seconds})
            else:
                _print_steps(forecast)
                print(f"It takes about {seconds:.0f} s. {old} stays as it is.")
            if dry_run or not typer.confirm("Go on?"):
                raise typer.Exit(0 if dry_run else 1)
        rows = run_upgrade(dry_run=False)
    if as_json:
        print_json({"checkpoint": new, "stages": rows})
    elif not asks:
        _print_steps(rows)
    if running and not as_json:
        print(f"{new} follows {old}. Stop the query of {old}, then start that of {new}.")


def _print_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a line for each of ``steps``, mappings with the same names: the ways in
    which the stages of an upgraded query begin. Without steps the table is empty.
    """
    print_table([*steps[0]] if steps else [], [[*step.values()] for step in steps])


def repartition(
    checkpoint: Checkpoint,
    *,
    partitions: Annotated[int, typer.Option(help="Tasks of each stage with state.")],
    as_json: AsJson = False,
) -> None:
    """Deal the state of a query that stands still to another number of partitions.

    The checkpoint is changed in place, without a question: Spark writes its whole state anew. The
    new number is printed, with --json in an object of checkpoint and partitions. A query that runs
    in another process is not noticed. More partitions than buckets are refused.
    """
    with session() as spark:
        dealing.repartition(spark, checkpoint, partitions=partitions)
    if as_json:
        print_json({"checkpoint": checkpoint, "partitions": partitions})
    else:
        print(f"{checkpoint} has {partitions} partitions")
