"""The command line, ``dovetail``: what a checkpoint holds, what a topology does, how a query goes.

A mistake is one line on standard error and exit code 1; a wrong call is 2, as usual. Spark and its
workers write to a file of their own, which is shown where Spark does not start.
"""

from __future__ import annotations

import sys

import typer
from pyspark.errors import PySparkException

from dovetail.command.changes import repartition, rewind, upgrade
from dovetail.command.doctor import doctor
from dovetail.command.serve import serve
from dovetail.command.state import inspect, state
from dovetail.command.top import top
from dovetail.command.topologies import explain
from dovetail.command.why import why
from dovetail.errors import DovetailError, line_of

app = typer.Typer(
    name="dovetail",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look into checkpoints and topologies; change a checkpoint that stands still.",
)
for command in (inspect, state, explain, why, top, serve, doctor, rewind, upgrade, repartition):
    app.command()(command)


def main() -> None:
    """Run the command of this process."""
    try:
        app()
    except (DovetailError, PySparkException) as error:
        message = str(error) if isinstance(error, DovetailError) else line_of(error)
        print(f"dovetail: {message.splitlines()[0]}", file=sys.stderr)
        sys.exit(1)
