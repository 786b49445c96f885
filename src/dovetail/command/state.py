"""The commands that read a checkpoint: its stores, and their rows.

On a local disk they run without Spark, so what needs Spark is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.command.options import AsJson, Batch, Checkpoint
from dovetail.command.output import plain_value, print_json, print_table
from dovetail.command.sessions import local_stores, open_stores, refuse_deleted_files, session
from dovetail.engine.store_contents import schema_of
from dovetail.errors import ConfigurationError
from dovetail.spark.checkpoints.local_rows import local_rows
from dovetail.spark.checkpoints.lookup_keys import keys_of_text
from dovetail.spark.checkpoints.stores import CheckpointStores, list_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class OutputFormat(str, Enum):
    """The form in which the command ``state`` writes rows."""

    table = "table"
    json = "json"
    parquet = "parquet"


def inspect(checkpoint: Checkpoint, *, batch: Batch = None, as_json: AsJson = False) -> None:
    """List the stores of a checkpoint, and the offsets up to which its sources are read.

    A row has the stage, operator, store, table, what it holds, rows, bytes, segments, buckets and
    stream time of a store. Rows that newer ones replace count, too. With --json one object has
    batch, offsets and stores. The query may run meanwhile, and nothing is changed. Spark is started
    only if the checkpoint cannot be read from a local disk.
    """
    with open_stores("inspect", checkpoint, batch) as stored:
        rows = list(list_stores(stored))
    offsets = rows[0]["offsets"] if rows else []
    after = rows[0]["batch"] if rows else None
    for row in rows:
        del row["batch"], row["offsets"]
    if as_json:
        print_json({"batch": after, "offsets": offsets, "stores": rows})
        return
    if not rows:
        print("nothing is stored yet")
        return
    print(f"after micro-batch {after}")
    for source_number, offset in enumerate(offsets, start=1):
        print(f"source {source_number}: {offset or 'nothing yet'}")
    print_table([*rows[0]], [[*row.values()] for row in rows])


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
    as_json: AsJson = False,
    output: Annotated[str | None, typer.Option(help="A new folder, for parquet.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows of a table.")] = 50,
) -> None:
    """Write the rows of a table of a checkpoint. JSON has a row a line; --json is --format json.

    The query may run meanwhile. A key of one column is plain text; one without a row gives none.
    The limit counts for the format table alone. Parquet needs --output, a folder that is not there
    yet, which Spark writes. Other rows go to standard output.
    """
    if as_json:
        format = OutputFormat.json  # noqa: A001
    if (format is OutputFormat.parquet) != (output is not None):
        raise ConfigurationError(
            "state", "--format parquet and --output go together", "Give both or neither"
        )
    moment = None if as_of is None else _parse_time(as_of)
    needs_spark = output is not None or moment is not None or topology is not None
    stored = None if needs_spark else local_stores("state", checkpoint, batch)
    if stored is not None:
        with refuse_deleted_files("state", checkpoint):
            _write_rows(*_read_local_rows(stored, table, key, column), format, limit)
        return
    from dovetail.api.topology import Planned
    from dovetail.command.topologies import load_topology
    from dovetail.spark.checkpoints.state_reader import read_state

    with session() as spark:
        keys = None
        if key is not None:
            stored = CheckpointStores.read_with_spark("state", spark, checkpoint, batch)
            named_store = stored.store_of(table)
            keys = keys_of_text("state", named_store.store, key)
        frame = read_state(
            spark,
            checkpoint,
            table,
            batch=batch,
            as_of=moment,
            keys=keys,
            columns=column,
            topology=None if topology is None else load_topology(topology, Planned),
        )
        if output is not None:
            frame.write.parquet(output)
        else:
            _write_rows(frame.columns, _frame_rows(frame), format, limit)


def _read_local_rows(
    stored: CheckpointStores, table: str, key: Sequence[str] | None, columns: Sequence[str] | None
) -> tuple[list[str], Iterator[list[Any]]]:
    """Return (names of columns, rows) of ``table``, the name of a table or a store, from files on a
    local disk. Rows are lists of values in the order of the names, in no order of keys, read as
    they are asked for.

    Values are those of ``plain_value``. A timestamp with a zone is a datetime in UTC, and a struct
    is a dict. A map is a dict, or a list of pairs if its keys are nested. Other values are as Arrow
    gives them; null is None.

    ``key``: texts of keys (``keys_of_text``), None for all rows. A key without a row gives none,
    and one given twice gives its rows once. ``columns``: the names wanted, each once in their
    order; None or an empty list for all.

    Raises ``ConfigurationError`` for an unknown table, and ``PlanError`` for a text that is no key.
    Reading the rows raises ``ConfigurationError`` for unknown columns, and ``UnreadableFile`` for
    files that were deleted meanwhile.
    """
    stage_store = stored.store_of(table)
    keys = None if key is None else keys_of_text("state", stage_store.store, key)
    names = list(dict.fromkeys(columns or schema_of(stage_store.store).names))
    tables = local_rows(stored, stage_store, keys=keys, columns=columns)
    chosen = (table.select(names) for table in tables)
    rows = (
        list(map(plain_value, row.values(), table.schema.types))
        for table in chosen
        for row in table.to_pylist()
    )
    return names, rows


def _frame_rows(frame: DataFrame) -> Iterator[list[Any]]:
    """Return an iterator over the rows of a frame, each a list of its values in the order of
    columns. Spark begins at the call, with the frame's shuffles, and its errors pass. Each
    partition of the result is computed once its first row is asked for.

    Values are those of ``plain_value``. A timestamp with a zone is a datetime in UTC, and a struct
    is a dict. A map is a dict, or a list of pairs if its keys are nested. Other values are as Spark
    gives them; null is None.
    """
    from dovetail.plan.types.arrow import arrow_schema

    types = arrow_schema(frame.schema).types
    return (
        list(map(plain_value, row.asDict(recursive=True).values(), types))
        for row in frame.toLocalIterator()
    )


def _write_rows(
    names: Sequence[str], rows: Iterator[list[Any]], form: OutputFormat, limit: int
) -> None:
    """Print rows, lists of values of the columns ``names``. If ``form`` is ``json``, print all of
    them, one object a line. Otherwise print the first ``limit`` as a table, and a line below it if
    there are more.
    """
    if form is OutputFormat.json:
        for row in rows:
            print_json(dict(zip(names, row, strict=True)))
        return
    first = list(islice(rows, limit + 1))
    print_table(names, first[:limit])
    if len(first) > limit:
        print(f"the first {limit} rows; --limit or another --format shows more")


def _parse_time(text: str) -> datetime:
    """Return the aware time in a text of ISO 8601, such as 2026-01-31T12:00:00Z. Without a zone it
    is in UTC. Raises ``ConfigurationError`` for other texts.
    """
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise ConfigurationError(
            "state", f"--as-of {text} is no time", "Give one such as 2026-01-31T12:00:00Z"
        ) from error
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
