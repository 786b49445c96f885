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
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from dovetail.command.options import AsJson
from dovetail.command.output import as_text, print_json
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
        """Return the view as JSON data. Its ``progress`` is None, in which the caller puts the last
        recorded micro-batch.
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
    """Show how a query goes, from its checkpoint or a record of its figures, until Ctrl-C."""
    looks = _looks(checkpoint, record)
    console = Console()
    if as_json:
        view = next(looks)
        last = recorded_after("top", record, 0, 1) if record is not None else []
        figures = [json.loads(text) for _, text in last]
        print_json(view.as_json() | {"progress": figures[0] if figures else None})
    elif once or not console.is_terminal:
        console.print(screen(next(looks), datetime.now(timezone.utc)))
    else:
        with (
            suppress(KeyboardInterrupt),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            for view in looks:
                live.update(screen(view, datetime.now(timezone.utc)), refresh=True)
                time.sleep(every)


def _looks(checkpoint: str | None, record: str | None) -> Iterator[QueryView]:
    """Yield a view with the newest figures at each step, without end. ``checkpoint``, ``record``:
    where they come from; one of both may be None.

    Raises ``ConfigurationError`` if both are None, if the checkpoint is not on a local disk, or if
    ``record`` is no file of figures. Raises ``CheckpointError`` for another folder. All are raised
    by the first step.
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


def screen(view: QueryView, now: datetime) -> RenderableType:
    """Return what the terminal shows of a query at the time ``now``: a headline, then what is
    known.

    If a micro-batch has been reported, grids of its inputs and stages, a line of bars and the
    left-out rows follow. The stores come last, if they were read.
    """
    parts: list[RenderableType] = [_headline(view, now)]
    if view.progress:
        last = view.progress[-1]
        parts += [_inputs(last), _stages(last), _bars(view.progress)]
        if last.unused:
            parts.append(
                _grid(
                    "left out",
                    ["rows", "an example"],
                    [
                        (name, [str(unused.rows), unused.example or ""])
                        for name, unused in last.unused.items()
                    ],
                )
            )
    if view.stores:
        parts.append(_stores(view.stores))
    return Group(*parts)


def _headline(view: QueryView, now: datetime) -> Text:
    """Return the headline: the name, the last micro-batch with its phases, if they are known, and
    the time since its commit.
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
        line.append(f", committed {_span(age_s)} ago", style="not bold")
    return line


def _inputs(progress: Progress) -> Grid:
    """Return the inputs of a micro-batch as a grid: one line each, with its rows, rows per second
    and what Spark says it is behind. Without inputs the grid has its head only.
    """
    return _grid(
        "input",
        ["rows", "rows/s", "behind"],
        [
            (
                input_.name or input_.source,
                [
                    f"{input_.rows:,}",
                    _rate(input_.rows, progress),
                    ", ".join(f"{name} {value:,.0f}" for name, value in input_.behind.items()),
                ],
            )
            for input_ in progress.inputs
        ],
    )


def _stages(progress: Progress) -> Grid:
    """Return the stages of a micro-batch as a grid: one line each, with rows and changes per
    second, times and the size of its state. Without stages the grid has its head only.
    """
    names = ["rows/s", "changes/s", "work ms", "state ms", "slowest ms", "state MB"]
    return _grid(
        "stage",
        names,
        [
            (
                f"{stage.number}. {stage.title}",
                [
                    _rate(sum(stage.rows.values()), progress),
                    _rate(stage.changes, progress),
                    f"{stage.work_ms:,.0f}",
                    f"{stage.state_ms:,.0f}",
                    f"{stage.slowest_ms:,.0f}",
                    f"{stage.state_bytes / 1e6:,.1f}",
                ],
            )
            for stage in progress.stages
        ],
    )


def _stores(stores: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the stores of a checkpoint as a grid, one line each. Without stores the grid has its
    head only.
    """
    return _grid(
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


def _grid(first: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Grid:
    """Return a table with the columns ``first``, which is text, and ``names``. ``rows``: the first
    cell of each line, and its others.
    """
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column(first, overflow="fold")
    for name in names:
        is_text = name in ("an example", "table")
        grid.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for title, cells in rows:
        grid.add_row(title, *cells)
    return grid


def _bars(batches: Sequence[Progress]) -> Text:
    """Return the rows a second of each micro-batch, one or more, as a line of bars."""
    rates = [batch.rows / max(batch.total_ms, 1) * 1000 for batch in batches]
    most = max(rates) or 1.0
    bars = "".join(_BARS[min(int(rate / most * len(_BARS)), len(_BARS) - 1)] for rate in rates)
    return Text(f"rows/s, up to {most:,.0f}  ", style="dim").append(bars, style="not dim green")


def _rate(rows: int, progress: Progress) -> str:
    """Return the rows a second of a micro-batch."""
    return f"{rows / max(progress.total_ms, 1) * 1000:,.0f}"


def _span(seconds: float) -> str:
    """Return a duration in words, rounded, in the largest of days, hours, minutes and seconds of
    which it has at least two; else in seconds.
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
