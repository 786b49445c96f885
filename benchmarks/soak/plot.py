"""A run, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.soak.watch import KINDS, Sample

Points = Sequence[tuple[int, float]]
WINDOW = 15


def draw(
    path: Path,
    samples: Sequence[Sample],
    batch_ms: Points,
    heap_mb: Points,
) -> None:
    """Write a picture of how the figures of a run went with its micro-batches."""
    mpl.rcParams["svg.hashsalt"] = "soak"
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 3)

    def show(place: tuple[int, int], title: str, lines: Mapping[str, Points]) -> None:
        axis = axes[place]
        for name, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=name, linewidth=1)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)

    def each(name: str) -> Points:
        return [(one.batch, getattr(one, name)) for one in samples]

    show((0, 0), "ms a micro-batch", {"median": smooth(batch_ms)})
    show((0, 1), "CPU ms a micro-batch", {"all processes": smooth(cpu(samples))})
    memory = {kind: [(one.batch, one.rss_mb[kind]) for one in samples] for kind in KINDS}
    show((0, 2), "MB", {**memory, "heap, collected": heap_mb})
    show((1, 0), "open", {"files": each("open_files"), "threads": each("threads")})
    files = {"checkpoint": each("checkpoint_files"), "temporary": each("temporary_files")}
    show((1, 1), "files", files)
    megabytes = {
        name: [(batch, size / (1 << 20)) for batch, size in each(f"{name}_bytes")]
        for name in ("checkpoint", "temporary")
    }
    show((1, 2), "MB on disk", megabytes)
    figure.supxlabel("micro-batches", fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def cpu(samples: Sequence[Sample]) -> Points:
    """Milliseconds per micro-batch between each two samples."""
    return [
        (b.batch, 1000 * (b.cpu_s - a.cpu_s) / (b.batch - a.batch))
        for a, b in pairwise(samples)
        if b.batch > a.batch
    ]


def smooth(points: Points) -> Points:
    """Medians, so that single points are not all that is seen."""
    values = [value for _, value in points]
    return [
        (batch, median(values[max(n - WINDOW, 0) : n + WINDOW + 1]))
        for n, (batch, _) in enumerate(points)
    ]
