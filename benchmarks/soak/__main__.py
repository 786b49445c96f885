"""``./dev soak``: a query that runs micro-batch after micro-batch, watched and killed.

Changed orders and customers go from topics of a real broker through a join by foreign key into a
Delta table and Parquet files, and through an aggregate of it into a compacted topic. The session
is killed twice early on, then runs until it is killed a third time near the end; the figures are of
this long run, by its quarters. At the end all outputs are compared with what DuckDB makes of the
input.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import harness
from benchmarks.soak import check, feed, plot
from benchmarks.soak.watch import KINDS, Sample, sample

ROOT = Path(__file__).parents[2]
EARLY_KILLS, LAST_KILL = (0.02, 0.05), 0.98
"""Where in the run the session is killed."""
SETTLED = 0.1
"""From where on the run is measured."""
SAMPLES = 200


@dataclass
class Run:
    """What was seen of the long run."""

    samples: list[Sample] = field(default_factory=list)
    batch_ms: list[tuple[int, int]] = field(default_factory=list)
    heap_mb: list[tuple[int, int]] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=400, help="micro-batches (400)")
    parser.add_argument("--orders", type=int, default=60_000, help="rows of the left table (60000)")
    parser.add_argument("--plot", type=Path, help="where to draw the run, an .svg or .png")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    size = feed.Size(orders=arguments.orders, customers=max(arguments.orders // 12, 10))
    with harness.workspace() as place, broker() as servers:
        figures = soak(place, servers, size, arguments)
    if arguments.json:
        print(json.dumps(figures))


def soak(
    place: Path, servers: str, size: feed.Size, arguments: argparse.Namespace
) -> dict[str, Any]:
    batches = arguments.batches

    def driver(task: str) -> Generator[dict[str, Any]]:
        return lines_of(task, place, servers, size, batches)

    harness.note("loading")
    for _ in driver("load"):
        pass
    watched = Run()
    start = time.monotonic()
    for share in (*EARLY_KILLS, LAST_KILL):
        harness.note(f"a session to be killed at micro-batch {int(share * batches)}")
        with closing(driver("run")) as lines:
            own = watched if share == LAST_KILL else Run()
            ended = follow(lines, int(share * batches), own, place)
        if ended:
            harness.note("it has read all before")
    for _ in driver("run"):
        pass
    took_s = time.monotonic() - start
    (stored,) = driver("read")
    apart = check.differences(place, size, batches)
    figures = figures_of(watched, batches) | {
        "batches": batches,
        "kills": len(EARLY_KILLS) + 1,
        "seconds": round(took_s),
        "checkpoint_per_stored_byte": round(
            watched.samples[-1].checkpoint_bytes / stored["stored_bytes"], 2
        ),
        "differences": apart,
        "equal": not any(apart.values()),
    }
    show(figures)
    if arguments.plot is not None:
        plot.draw(arguments.plot, watched.samples, watched.batch_ms, watched.heap_mb)
    return figures


def follow(lines: Iterator[dict[str, Any]], until: int, watched: Run, place: Path) -> bool:
    """Watch the query until it has come to a micro-batch, then kill all of it; whether it has ended
    before.
    """
    step = max(until // SAMPLES, 1)
    for line in lines:
        if "ended" in line:
            return True
        if "heap_mb" in line:
            watched.heap_mb.append((line["batch"], line["heap_mb"]))
            continue
        watched.batch_ms.append((line["batch"], line["ms"]))
        if line["batch"] % step == 0:
            process = psutil.Process(line["process"])
            watched.samples.append(sample(line["batch"], process, place, place / "log"))
        if line["batch"] >= until:
            return False
    raise RuntimeError(f"the session ended by itself, see its log:\n{tail(place / 'log')}")


def lines_of(
    task: str, place: Path, servers: str, size: feed.Size, batches: int
) -> Generator[dict[str, Any]]:
    """What a session of ``queries`` says, with its process; it is killed when nobody listens."""
    with (place / "log").open("ab") as log:
        arguments = [task, place, servers, json.dumps(asdict(size)), batches]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak.queries", *map(str, arguments)],
            env=os.environ | {"TMPDIR": str(place / "temporary")},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    listening = True
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line) | {"process": process.pid}
        process.wait()
    except GeneratorExit:
        listening = False
        raise
    finally:
        with suppress(ProcessLookupError):  # all have ended by themselves
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if listening and process.returncode != 0:
        raise RuntimeError(f"{task} failed, see its log:\n{tail(place / 'log')}")


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-300:])


@contextmanager
def broker() -> Iterator[str]:
    """The address of a broker of this run's own, which leaves nothing behind."""
    own = os.environ | {"DOVETAIL_KAFKA_PORT": str(random.randrange(20_000, 30_000))}
    command = ROOT / "tools" / "broker"
    started = subprocess.run(
        [command, "start"], env=own, check=True, capture_output=True, text=True
    )
    try:
        yield started.stdout.split()[0]
    finally:
        subprocess.run([command, "wipe"], env=own, check=True)


def figures_of(watched: Run, batches: int) -> dict[str, Any]:
    """Each quarter's figures, and the last one's over the first one's."""
    first, last = int(SETTLED * batches), int(LAST_KILL * batches)
    ends = [first + (last - first) * n // 4 for n in range(5)]
    quarters = [quarter(watched, ends[n], ends[n + 1]) for n in range(4)]
    found: dict[str, Any] = {"quarters": quarters}
    for name, figure in {
        "last_over_first_quarter_ms": "ms",
        "cpu_growth": "cpu_ms",
        "open_files_growth": "open_files",
        "threads_growth": "threads",
        "rss_growth": "rss_mb",
        "heap_growth": "heap_mb",
        "checkpoint_growth": "checkpoint_files",
        "checkpoint_bytes_growth": "checkpoint_mb",
        "temporary_growth": "temporary_files",
    }.items():
        before, after = quarters[0][figure], quarters[-1][figure]
        found[name] = round(after / before, 3) if before else None
    return found


def quarter(watched: Run, first: int, last: int) -> dict[str, Any]:
    """The figures of the micro-batches from ``first`` to ``last``: medians, and of what adds up,
    what each micro-batch takes.
    """
    own = [one for one in watched.samples if first <= one.batch <= last]
    if not own:
        raise SystemExit(f"no micro-batch was seen from {first} to {last}: run more of them")
    passed = max(own[-1].batch - own[0].batch, 1)
    rss = {kind: middle(one.rss_mb[kind] for one in own) for kind in KINDS}
    return {
        "from": first,
        "ms": round(middle(ms for batch, ms in watched.batch_ms if first <= batch <= last)),
        "cpu_ms": round(1000 * (own[-1].cpu_s - own[0].cpu_s) / passed),
        "heap_mb": middle(mb for batch, mb in watched.heap_mb if first <= batch <= last),
        "rss_mb": round(sum(rss.values())),
        **{f"rss_mb_{kind}": round(mb) for kind, mb in rss.items()},
        "open_files": middle(one.open_files for one in own),
        "threads": middle(one.threads for one in own),
        "processes": middle(one.processes for one in own),
        "checkpoint_files": middle(one.checkpoint_files for one in own),
        "checkpoint_mb": round(middle(one.checkpoint_bytes for one in own) / (1 << 20), 1),
        "temporary_files": middle(one.temporary_files for one in own),
        "temporary_mb": round(middle(one.temporary_bytes for one in own) / (1 << 20), 1),
        "lines_logged": round((own[-1].lines_logged - own[0].lines_logged) / passed, 2),
    }


def middle(values: Iterable[float]) -> float:
    """The median; 0 where there is none."""
    own = list(values)
    return median(own) if own else 0


def show(figures: dict[str, Any]) -> None:
    quarters = figures["quarters"]
    rows = [("", *(f"from {one['from']}" for one in quarters))]
    rows += [
        (name, *(f"{one[name]:,}" for one in quarters)) for name in quarters[0] if name != "from"
    ]
    equal = "equal to" if figures["equal"] else f"not equal to: {figures['differences']}"
    title = f"{figures['batches']:,} micro-batches in {figures['seconds']:,} s, "
    harness.show(f"{title}killed {figures['kills']} times; {equal} what DuckDB says", rows)


if __name__ == "__main__":
    main()
