"""The demo's report as a page: one file of HTML that needs no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import polars as pl

from examples.flights.history import ZONE
from examples.flights.report import conditions, shown
from tools.docs_site.svg_charts import Chart, Lines, lines_svg_of, svg_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from examples.flights.report import Run

STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f6f8f9, #14181c);
  --card: light-dark(#fff, #1d2329); --text: light-dark(#1b2127, #e4e8eb);
  --quiet: light-dark(#586470, #9ba7b2); --line: light-dark(#d9dfe4, #333c45); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: .5rem 0 0; } h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
p { margin: .2rem 0 .6rem; color: var(--quiet); max-width: 46rem; }
main { display: grid; gap: 1rem; margin-top: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: 1rem; min-width: 0; }
section.wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.number, th.number { text-align: right; }
th { color: var(--quiet); font-weight: 600; }
"""


def page_html(
    runs: Sequence[Run],
    pictures: dict[str, str],
    weather: pl.DataFrame,
    network: pl.DataFrame,
    reasons: str,
) -> str:
    """The page. ``weather`` and ``network``: the changes of these queries; ``pictures``: topologies
    as SVG, by query; ``reasons``: why a row of ``network`` came out, as HTML.
    """
    records = sum(run.rows_in for run in runs)
    seconds = sum(run.seconds for run in runs)
    flight, life = life_of_a_flight(network)
    summary = (
        f"{records:,} records of New York’s flights in 2013 went through {len(runs)} queries in "
        f"{seconds:.0f} s, {records / seconds:,.0f} a second."
    )
    sections = [
        section(
            "Departures by the weather of their hour",
            "A departure waits up to six hours for the observation of its hour.",
            svg_of(delays_by_weather(weather)),
        ),
        section(
            "Departures by the hour of the day",
            "Delays grow through the day.",
            lines_svg_of(delays_by_hour(weather)),
        ),
        section(
            "How fast the queries ran",
            "The first micro-batches start the workers.",
            lines_svg_of(rates(runs)),
        ),
        section(
            "How their state grew",
            "Tables and streams that a later record may still need.",
            lines_svg_of(states(runs)),
        ),
        section(
            f"The life of flight {flight}",
            "The row that changed most, one change a micro-batch.",
            table_html(life),
            wide=True,
        ),
        *([section("Why its row is as it is", "", reasons, wide=True)] if reasons else []),
        section(
            "The network of flights",
            "Every flight with its plane, its airline and its destination, whichever of them "
            "changes.",
            pictures["network"],
            wide=True,
        ),
        section("All queries", "", table_html(runs_table(runs)), wide=True),
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>A year of flights – dovetail</title>\n<style>{STYLE}</style>",
            "</head>\n<body>\n<header><h1>A year of flights, streamed</h1>",
            f"<p>{summary}</p></header>\n<main>",
            *sections,
            "</main>\n</body>\n</html>\n",
        ]
    )


def section(title: str, note: str, content: str, *, wide: bool = False) -> str:
    """A part of the page."""
    kind = ' class="wide"' if wide else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    scrolled = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
    return f"<section{kind}><h2>{escape(title)}</h2>{below}{scrolled}{content}</div></section>"


def delays_by_weather(weather: pl.DataFrame) -> Chart:
    """How late flights departed in which weather."""
    delays = weather.group_by(conditions().alias("weather")).agg(pl.mean("dep_delay"))
    bars = delays.sort("dep_delay", descending=True).iter_rows()
    return Chart(
        "Minutes late", "min", None, [(name, round(max(mean, 0), 1)) for name, mean in bars]
    )


def delays_by_hour(weather: pl.DataFrame) -> Lines:
    """How late flights departed at which hour, by their airport."""
    hour = pl.col("_timestamp").dt.convert_time_zone(ZONE).dt.hour()
    delays = (
        weather.group_by("origin", hour.alias("hour"))
        .agg(pl.mean("dep_delay"), pl.len().alias("count"))
        .filter(pl.col("count") >= 20)
        .sort("origin", "hour")
    )
    lines = {
        str(name[0]): [(h, max(mean, 0)) for h, mean in part.select("hour", "dep_delay").rows()]
        for name, part in delays.group_by("origin", maintain_order=True)
    }
    return Lines("Minutes late", "hour of the day", lines)


def rates(runs: Sequence[Run]) -> Lines:
    """The records a second of each query's micro-batches."""
    return Lines(
        "Records a second",
        "micro-batch",
        {
            run.name: [
                (batch, 1000 * progress.rows / max(progress.total_ms, 1))
                for batch, progress in enumerate(run.progress, start=1)
            ]
            for run in runs
        },
    )


def states(runs: Sequence[Run]) -> Lines:
    """The state of each query after its micro-batches."""
    return Lines(
        "State, MB",
        "micro-batch",
        {
            run.name: [
                (batch, sum(stage.state_bytes for stage in progress.stages) / 1e6)
                for batch, progress in enumerate(run.progress, start=1)
            ]
            for run in runs
            if any(progress.stages for progress in run.progress)
        },
    )


def life_of_a_flight(network: pl.DataFrame) -> tuple[str, pl.DataFrame]:
    """The flight whose row changed most, and its changes."""
    counted = network.group_by("flight_id").agg(pl.len().alias("changes"))
    most = counted.sort("changes", "flight_id", descending=[True, False])["flight_id"][0]
    history = network.filter(pl.col("flight_id") == most).sort("_position")
    names = ("_change", "status", "tailnum", "manufacturer", "seats", "name", "destination")
    local = pl.col("_timestamp").dt.convert_time_zone(ZONE).alias("time")
    return most, history.select(local, *names)


def runs_table(runs: Sequence[Run]) -> pl.DataFrame:
    """A line per query."""
    return pl.DataFrame(
        [
            {
                "query": run.name,
                "records in": run.rows_in,
                "changes out": run.changes_out,
                "seconds": run.seconds,
                "records/s": round(run.rows_in / run.seconds),
            }
            for run in runs
        ]
    )


def table_html(frame: pl.DataFrame) -> str:
    """A frame as a table."""
    return f"<table>{''.join(_rows(frame))}</table>"


def _rows(frame: pl.DataFrame) -> Iterator[str]:
    numeric = [type_.is_numeric() for type_ in frame.dtypes]

    def row(tag: str, cells: Sequence[Any]) -> str:
        classes = (' class="number"' if is_number else "" for is_number in numeric)
        texts = (
            f"<{tag}{kind}>{escape(str(cell))}</{tag}>"
            for kind, cell in zip(classes, cells, strict=True)
        )
        return f"<tr>{''.join(texts)}</tr>"

    yield row("th", frame.columns)
    for cells in frame.iter_rows():
        yield row("td", [shown(cell) for cell in cells])


def write(path: Path, html: str) -> None:
    """Write the page, and say where."""
    path.write_text(html, "utf-8")
    print(f"\nthe report: {path.resolve()}")
