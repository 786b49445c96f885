"""The command line, ``dovetail``: what a checkpoint holds, what a topology does, going back.

A mistake is one line on standard error and exit code 1; a wrong call is 2, as usual. Spark and its
workers write to a file of their own, which is shown where Spark does not start.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as Grid

from dovetail.api.results import upgrade as goes_on
from dovetail.api.topology import Planned, Topology
from dovetail.base.columns import quoted
from dovetail.errors import ConfigurationError, DovetailError, line_of
from dovetail.spark.checkpoints.lookup_keys import keys_of_text
from dovetail.spark.checkpoints.row_explanations import explained
from dovetail.spark.checkpoints.state_reader import read_state
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.migration import repartition as dealing
from dovetail.spark.migration import rewind as going_back
from dovetail.spark.session import configure

app = typer.Typer(
    name="dovetail",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look into checkpoints and topologies; change a checkpoint that stands still.",
)

Checkpoint = Annotated[str, typer.Argument(help="The checkpoint= of a query.")]
Batch = Annotated[int | None, typer.Option(help="The micro-batch after which; the last one.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON in place of a table.")]
App = Annotated[str, typer.Argument(help="A Table or Stream in a module, as module:name.")]


P = TypeVar("P", bound=Planned)


class OutputFormat(str, Enum):
    """The form in which rows are written."""

    table = "table"
    json = "json"
    parquet = "parquet"


class Explained(str, Enum):
    """The form in which a topology is described."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"
    html = "html"


def main() -> None:
    """Run the command of this process."""
    try:
        app()
    except (DovetailError, PySparkException) as error:
        message = str(error) if isinstance(error, DovetailError) else line_of(error)
        print(f"dovetail: {message.splitlines()[0]}", file=sys.stderr)
        sys.exit(1)


@app.command()
def inspect(checkpoint: Checkpoint, *, batch: Batch = None, as_json: AsJson = False) -> None:
    """List the stores of a checkpoint."""
    with _session() as spark:
        stores = [row.asDict() for row in read_state(spark, checkpoint, batch=batch).collect()]
    offsets = stores[0]["offsets"] if stores else []
    after = stores[0]["batch"] if stores else None
    for store in stores:
        del store["batch"], store["offsets"]
    if as_json:
        print(json.dumps({"batch": after, "offsets": offsets, "stores": stores}, default=_text))
        return
    if not stores:
        print("nothing is stored yet")
        return
    print(f"after micro-batch {after}")
    for source_number, offset in enumerate(offsets, start=1):
        print(f"source {source_number}: {offset or 'nothing yet'}")
    _show([*stores[0]], [[*store.values()] for store in stores])


@app.command()
def state(
    checkpoint: Checkpoint,
    table: Annotated[str, typer.Argument(help="A table or a store, as inspect lists it.")],
    *,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A key, of several columns as a JSON list; as often as needed."),
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only this column, and others.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="The rows of a versioned table at a time, in ISO 8601; UTC.")
    ] = None,
    batch: Batch = None,
    topology: Annotated[
        str | None, typer.Option(help="As of explain; then results of joins can be named.")
    ] = None,
    format: Annotated[  # noqa: A002
        OutputFormat, typer.Option(help="How rows are written.")
    ] = OutputFormat.table,
    output: Annotated[str | None, typer.Option(help="A new folder, for parquet.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows of a table.")] = 50,
) -> None:
    """Write the rows of a table of a checkpoint."""
    if (format is OutputFormat.parquet) != (output is not None):
        raise ConfigurationError(
            "state", "--format parquet and --output go together", "Give both or neither"
        )
    with _session() as spark:
        keys = None
        if key is not None:
            named_store = CheckpointStores.of("state", spark, checkpoint, batch).named(table)
            keys = keys_of_text("state", named_store.store, key)
        frame = read_state(
            spark,
            checkpoint,
            table,
            batch=batch,
            as_of=None if as_of is None else _moment(as_of),
            keys=keys,
            columns=column,
            topology=None if topology is None else _loaded(topology, Planned),
        )
        if output is not None:
            frame.write.parquet(output)
        elif format is OutputFormat.json:
            for (line,) in _lines(frame):
                print(line)
        else:
            rows = frame.limit(limit + 1).collect()
            _show(frame.columns, [list(row) for row in rows[:limit]])
            if len(rows) > limit:
                print(f"the first {limit} rows; --limit or another --format shows more")


@app.command()
def explain(
    topology: App,
    *,
    format: Annotated[  # noqa: A002
        Explained, typer.Option(help="Text, or a picture to redirect to a file.")
    ] = Explained.text,
) -> None:
    """Print a topology, its stages, their shuffles and their state."""
    with _session():
        planned = _loaded(topology, Planned)
        if format is Explained.text:
            planned.explain()
        else:
            print(planned.explain(format=format.value))


@app.command()
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
    """Print the rows of inputs that make a row of a result, or why there is no such row."""
    texts = dict(part.partition("=")[::2] for part in key)
    with _session() as spark:
        node = _loaded(topology, Planned).plan
        explanation = explained("why", spark, checkpoint, [node], texts, result, as_text=True)
    print(explanation.to_json() if as_json else explanation)


@app.command()
def rewind(
    checkpoint: Checkpoint,
    *,
    batch: Annotated[int, typer.Option(help="The micro-batch after which; those behind it go.")],
) -> None:
    """Set a query that stands still back to an earlier micro-batch."""
    with _session() as spark:
        committed = going_back.rewind(spark, checkpoint, batch=batch)
    print(f"{checkpoint} is as it was after micro-batch {batch}, at {_text(committed)}")


@app.command()
def upgrade(
    old: Checkpoint,
    new: Annotated[str, typer.Argument(help="The checkpoint to make, a new folder.")],
    topology: Annotated[list[str], typer.Argument(help="Its results, each as module:name.")],
    *,
    buckets: Annotated[int | None, typer.Option(help="Other buckets than it has.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Tasks of each stage with state.")] = None,
) -> None:
    """Make of a checkpoint that of another topology, which goes on where the first one stands."""
    with _session() as spark:
        results = [_loaded(name, Topology) for name in topology]
        steps = goes_on(spark, old, new, results, buckets=buckets, partitions=partitions)
        _show(steps.columns, [list(row) for row in steps.collect()])


@app.command()
def repartition(
    checkpoint: Checkpoint,
    *,
    partitions: Annotated[int, typer.Option(help="Tasks of each stage with state.")],
) -> None:
    """Deal the state of a query that stands still to another number of partitions."""
    with _session() as spark:
        dealing.repartition(spark, checkpoint, partitions=partitions)
    print(f"{checkpoint} has {partitions} partitions")


@contextmanager
def _session() -> Iterator[SparkSession]:
    """The session of this process, or a quiet one of its own."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = configure(SparkSession.builder.master("local[*]").appName("dovetail"))
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    with tempfile.TemporaryFile() as log:
        stderr_fd = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            spark = builder.getOrCreate()
        except Exception:
            log.seek(0)
            os.write(stderr_fd, log.read())
            raise
        finally:
            os.dup2(stderr_fd, 2)
            os.close(stderr_fd)
        try:
            yield spark
        finally:
            spark.stop()


def _loaded(name: str, kind: type[P]) -> P:
    """The topology that ``module:name`` names, or that the function of that name makes."""
    module, colon, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        target: Any = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            "topology", f"{name} cannot be found, {line_of(error)}", "Give it as module:name"
        ) from error
    if callable(target) and not isinstance(target, kind):
        _refuse_arguments(name, target)
        target = target()
    if not isinstance(target, kind):
        raise ConfigurationError(
            "topology", f"{name} is no Table or Stream", "Give one as module:name"
        )
    return target


def _refuse_arguments(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called without arguments."""
    needed = [
        parameter.name
        for parameter in signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigurationError(
            "topology",
            f"the function {name} takes an argument, {', '.join(needed)}",
            "Name a function without arguments, which calls it",
        )


def _moment(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise ConfigurationError(
            "state", f"--as-of {text} is no time", "Give one such as 2026-01-31T12:00:00Z"
        ) from error
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _lines(frame: DataFrame) -> Iterator[Any]:
    """Each row as JSON."""
    row = F.struct(*(quoted(name) for name in frame.columns))
    return frame.select(F.to_json(row, {"ignoreNullFields": "false"})).toLocalIterator()


def _show(names: list[str], rows: list[list[Any]]) -> None:
    """Rows as a table as wide as they need, in colours where standard output is a terminal."""
    grid = Grid(*names)
    for row in rows:
        grid.add_row(*map(_text, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(Console(width=10**6).measure(grid).maximum, 1))
    console.print(grid)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    return "" if value is None else str(value)
