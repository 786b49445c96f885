"""The command line, ``dovetail``: what a checkpoint holds, what a topology does, how a query goes.

A mistake is one line on standard error and exit code 1; a wrong call is 2, as usual. Spark and its
workers write to a file of their own, which is shown where Spark does not start. The module of a
command is imported when the command is called, so that those which read files start without Spark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Any

import typer.core
import typer.main

from dovetail.errors import DovetailError, line_of

COMMANDS = {
    "inspect": "state",
    "state": "state",
    "explain": "topologies",
    "why": "why",
    "top": "top",
    "serve": "serve",
    "doctor": "doctor",
    "rewind": "changes",
    "upgrade": "changes",
    "repartition": "changes",
}
"""The module of each command, in ``dovetail.command``."""


class _Commands(typer.core.TyperGroup):
    """The commands, each imported when it is called."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of all commands, in the order in which help lists them."""
        return [*COMMANDS]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return the Click command named ``cmd_name``, whose module is imported; None if there is
        none of this name.
        """
        return command_of(cmd_name) if cmd_name in COMMANDS else None


def command_of(name: str) -> Any:
    """Return the Click command that calls the function ``name`` of its module in
    ``dovetail.command``. The module is imported. ``name``: a key of ``COMMANDS``, else ``KeyError``
    is raised.
    """
    module = import_module(f"dovetail.command.{COMMANDS[name]}")
    command = typer.Typer(add_completion=False)
    command.command()(getattr(module, name))
    return typer.main.get_command(command)


app = typer.Typer(
    name="dovetail",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _all() -> None:
    """Look into checkpoints and topologies; change a checkpoint, or make one of another."""


def main() -> None:
    """Run the command that this process was called with, and exit with its status.

    An error of dovetail or Spark is printed as one line on standard error, and the status is 1. A
    wrong call has the status 2. Other errors pass with their traceback. The command ``state`` runs
    without pandas.
    """
    if COMMANDS.get("".join(sys.argv[1:2])) == "state":
        _do_without_pandas()
    try:
        app()
    except Exception as error:
        message = _known_message(error)
        if message is None:
            raise
        print(f"dovetail: {message.splitlines()[0]}", file=sys.stderr)
        sys.exit(1)


def _do_without_pandas() -> None:
    """Let pyarrow do without pandas for the rest of this process. Do nothing if either has been
    imported.
    """
    # Pandas takes longer to import than a row to look up. pyarrow looks for pandas once, at its
    # first array.
    if {"pyarrow", "pandas"} & {*sys.modules}:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    """A finder of modules that finds no pandas, even if others would."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Raise ``ModuleNotFoundError`` for pandas; return None for other modules, which other
        finders then look for.
        """
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _known_message(error: Exception) -> str | None:
    """Return the message of an error of dovetail, perhaps of two lines, or class and first line of
    an error of Spark; None for other errors.
    """
    if isinstance(error, DovetailError):
        return str(error)
    if "pyspark" not in sys.modules:
        return None
    from pyspark.errors import PySparkException

    return line_of(error) if isinstance(error, PySparkException) else None
