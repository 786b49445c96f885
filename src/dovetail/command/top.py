"""The command that shows in the terminal how a query goes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import PurePath
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from dovetail.base.text_cells import printable
from dovetail.command.options import AsJson
from dovetail.command.output import as_text, literal_console, print_json
from dovetail.command.sessions import refuse_other_folder
from dovetail.errors import ConfigurationError
from dovetail.spark.checkpoints.changelog_files import UnreadableFile
from dovetail.spark.checkpoints.local_state import local_files
from dovetail.spark.checkpoints.state_lookup import Lookups
from dovetail.spark.checkpoints.stores import list_stores
from dovetail.spark.metrics.history import progress_of_json, recorded_after
from dovetail.spark.metrics.progress import Progress

_BARS = "▁▂▃▄▅▆▇█"
_BATCHES = 60
"""The number of micro-batches in the line of bars."""


@dataclass
class QueryView:
    """The known figures of a query at one time."""

    name: str
    batch: int | None = None
    """The last committed micro-batch."""
    committed: datetime | None = None
    """The time of its commit."""
    stores: Sequence[Mapping[str, Any]] = ()
    """The rows of ``inspect``."""
    progress: Sequence[Progress] = ()
    """The last recorded micro-batches."""

    def as_json(self) -> dict[str, Any]:
        """Return the view as a dict for ``print_json``: ``name``, ``batch``, ``committed``,
        ``stores``, and ``progress``, always None. The caller puts the last recorded micro-batch
        there. ``batch`` and ``committed`` are None, and ``stores`` is empty, if they are not known.
        """
        return {
            "name": self.name,
            "batch": self.batch,
            "committed": self.committed,
            "stores": self.stores,
            "progress": None,
        }


def top(
    checkpoint: Annotated[
        str | None, typer.Argument(help="The checkpoint of a query, on a local disk.")
    ] = None,
    *,
    record: Annotated[str | None, typer.Option(help="A file of dt.metrics.record.")] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how a query goes, from its checkpoint or a record of its figures, until Ctrl-C.

    One of both is needed. With --once or --json, or if standard output is no terminal, print once
    and end. --json prints an object of name, batch, committed, stores and progress, the last
    recorded micro-batch or null.
    """
    looks = _query_views(checkpoint, record)
    console = literal_console()
    if as_json:
        view = next(looks)
        last = recorded_after("top", record, 0, 1) if record is not None else []
        figures = [json.loads(text) for _, text in last]
        print_json(view.as_json() | {"progress": figures[0] if figures else None})
    elif once or not console.is_terminal:
        console.print(query_screen(next(looks), datetime.now(timezone.utc)))
    else:
        with (
            suppress(KeyboardInterrupt),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            for view in looks:
                live.update(query_screen(view, datetime.now(timezone.utc)), refresh=True)
                time.sleep(every)


def _query_views(checkpoint: str | None, record: str | None) -> Iterator[QueryView]:
    """Yield a view with the newest figures at each step, without end. A step does not wait: the
    pace is the caller's. The stores come from ``checkpoint``, a folder, and the micro-batches from
    ``record``, a file of ``dt.metrics.record``. One of both may be None. A view has the name of the
    folder, or else of the file. It has at most the last 60 micro-batches, the oldest first. If a
    file of the checkpoint was deleted meanwhile, that view has no stores and no last micro-batch.

    The first step raises ``ConfigurationError`` if both are None, or if the checkpoint is not on a
    local disk. It also does if rocksdict is not installed, or if ``record`` is no file of figures.
    It raises ``CheckpointError`` for a local folder that is no checkpoint.
    """
    if checkpoint is None and record is None:
        raise ConfigurationError("top", "nothing to show is given", "Give CHECKPOINT or --record")
    name = PurePath(checkpoint or record or "").name
    files = None if checkpoint is None else local_files(checkpoint)
    if checkpoint is not None and files is None:
        refuse_other_folder("top", checkpoint)
        raise ConfigurationError(
            "top",
            f"{checkpoint} is no checkpoint on a local disk, or rocksdict is not installed",
            "Give another folder, --record, or pip install 'dovetail[state]'",
        )
    lookups = None if files is None else Lookups(files)
    last_number, progress = 0, list[Progress]()
    while True:
        view = QueryView(name)
        if lookups is not None and files is not None:
            with suppress(
                UnreadableFile
            ):  # files that were deleted meanwhile: the next look has others
                stored = lookups.with_latest_state("top", lambda _, stored: stored)
                view.batch, view.stores = stored.batch, list(list_stores(stored))
                if stored.batch is not None:
                    view.committed = files.modified(f"commits/{stored.batch}")
        if record is not None:
            batches = recorded_after("top", record, last_number, _BATCHES)
            last_number = batches[-1][0] if batches else last_number
            new = [progress_of_json(json.loads(text)) for _, text in batches]
            progress = [*progress, *new][-_BATCHES:]
            view.progress = progress
        yield view


def query_screen(view: QueryView, now: datetime) -> RenderableType:
    """Return the part of the screen for a query at the time ``now`` (aware, in UTC): a headline,
    then the figures that ``view`` has.

    If a micro-batch has been recorded, grids of its inputs and stages, a line of bars and the
    left-out rows follow. The stores come last, if there are any.
    """
    parts: list[RenderableType] = [_headline(view, now)]
    if view.progress:
        last = view.progress[-1]
        parts += [_inputs_grid(last), _stages_grid(last), _rate_bars(view.progress)]
        if last.unused:
            parts.append(
                _make_grid(
                    "left out",
                    ["rows", "an example"],
                    [
                        (name, [str(unused.rows), unused.example or ""])
                        for name, unused in last.unused.items()
                    ],
                )
            )
    if view.stores:
        parts.append(_stores_grid(view.stores))
    return Group(*parts)


def _headline(view: QueryView, now: datetime) -> Text:
    """Return the headline of ``view``: its name and last micro-batch, with duration and phases if
    it is recorded. The time from its commit to ``now`` follows, if it is known. ``now``: aware, as
    ``view.committed``.
    """
    line = Text(view.name, style="bold")
    if view.progress:
        last = view.progress[-1]
        line.append(f"  micro-batch {last.batch}, {last.total_ms:,} ms", style="not bold")
        phases = ", ".join(f"{phase} {ms:,}" for phase, ms in last.phases_ms.items())
        line.append(f" ({phases})", style="not bold dim")
    elif view.batch is None:
        line.append("  no micro-batch is committed", style="not bold")
    else:
        line.append(f"  micro-batch {view.batch}", style="not bold")
    if view.committed is not None:
        age_s = max((now - view.committed).total_seconds(), 0)
        line.append(f", committed {_duration_text(age_s)} ago", style="not bold")
    return line


def _inputs_grid(progress: Progress) -> Grid:
    """Return the inputs of a micro-batch as a grid with a line for each: its name, or Spark's
    description if it has none, rows, rows per second, and each count by which Spark says that it is
    behind. Without inputs the grid has its head only.
    """
    return _make_grid(
        "input",
        ["rows", "rows/s", "behind"],
        [
            (
                input_.name or input_.source,
                [
                    f"{input_.rows:,}",
                    _rows_per_second(input_.rows, progress),
                    ", ".join(f"{name} {value:,.0f}" for name, value in input_.behind.items()),
                ],
            )
            for input_ in progress.inputs
        ],
    )


def _stages_grid(progress: Progress) -> Grid:
    """Return the stages of a micro-batch as a grid with a line for each: its index from 1 and
    title, rows and changes per second, three times in ms, and the size of its state in MB (10**6
    bytes). The times are those of all operators, of the state store and of the slowest bucket.
    Without stages the grid has its head only.
    """
    names = ["rows/s", "changes/s", "work ms", "state ms", "slowest ms", "state MB"]
    return _make_grid(
        "stage",
        names,
        [
            (
                f"{stage.number}. {stage.title}",
                [
                    _rows_per_second(sum(stage.rows.values()), progress),
                    _rows_per_second(stage.changes, progress),
                    f"{stage.work_ms:,.0f}",
                    f"{stage.state_ms:,.0f}",
                    f"{stage.slowest_ms:,.0f}",
                    f"{stage.state_bytes / 1e6:,.1f}",
                ],
            )
            for stage in progress.stages
        ],
    )


def _stores_grid(stores: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the stores of a checkpoint as a grid, one line each: stage and store, table, rows, MB
    (10**6 bytes), segments and stream time to the second. Without stores the grid has its head
    only.

    ``stores``: mappings with ``stage``, ``store``, ``table``, ``rows``, ``bytes``, ``segments`` and
    ``stream_time``. A table or a time that is None gives an empty cell.
    """
    return _make_grid(
        "store",
        ["table", "rows", "MB", "segments", "stream time"],
        [
            (
                f"{store['stage']}. {store['store']}",
                [
                    as_text(store["table"]),
                    f"{store['rows']:,}",
                    f"{store['bytes'] / 1e6:,.1f}",
                    f"{store['segments']:,}",
                    as_text(store["stream_time"])[:19],
                ],
            )
            for store in stores
        ],
    )


def _make_grid(first: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Grid:
    """Return a grid with the columns ``first``, which is text, and ``names``. Columns are aligned
    to the right, but ``an example`` and ``table`` to the left. ``rows``: (first cell, other cells)
    of each line, as many others as ``names``.
    """
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column(first, overflow="fold")
    for name in names:
        is_text = name in ("an example", "table")
        grid.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for title, cells in rows:
        grid.add_row(*map(printable, (title, *cells)))
    return grid


def _rate_bars(batches: Sequence[Progress]) -> Text:
    """Return one line: the largest rate in rows per second, then a bar for the rate of each
    micro-batch in ``batches``, in their order. There must be at least one. A rate is the count of
    rows read, divided by the duration; a duration of 0 counts as a millisecond. The largest rate
    has the highest bar, and a rate of 0 the lowest. If all are 0, the line gives 1 as the largest.
    """
    rates = [batch.rows / max(batch.total_ms, 1) * 1000 for batch in batches]
    most = max(rates) or 1.0
    bars = "".join(_BARS[min(int(rate / most * len(_BARS)), len(_BARS) - 1)] for rate in rates)
    return Text(f"rows/s, up to {most:,.0f}  ", style="dim").append(bars, style="not dim green")


def _rows_per_second(rows: int, progress: Progress) -> str:
    """Return ``rows`` divided by the duration of a micro-batch in seconds, rounded, as a text such
    as ``1,200``. A duration of 0 counts as a millisecond.
    """
    return f"{rows / max(progress.total_ms, 1) * 1000:,.0f}"


def _duration_text(seconds: float) -> str:
    """Return a duration as a rounded text, such as ``3 min``. The unit is the largest of days,
    hours and minutes of which it has at least two; else seconds.
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
