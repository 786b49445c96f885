"""The guard against slower operators lets a ratio at its floor pass, and stops at one below it."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import guard

NAME = "aggregate_small"


@pytest.fixture(scope="module", autouse=True)
def _few_rows() -> Iterator[None]:
    """The garbage collector, which runs before each measurement, passes the tests' objects over."""
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "SIZES", {"large": (1_000, 1), "small": (100, 2)})
        patch.setattr(guard, "TRIES", 2)
        yield


def run(floor: float, folder: Path, *arguments: str) -> dict[str, float]:
    floors = folder / "floors.json"
    floors.write_text(json.dumps({NAME: floor}))
    parser = argparse.ArgumentParser()
    guard.add_arguments(parser)
    return guard.run(parser.parse_args(["--only", NAME, "--floors", str(floors), *arguments]))


def test_a_ratio_below_its_floor_ends_the_command(tmp_path: Path) -> None:
    assert run(1e-6, tmp_path)[NAME] > 1e-6
    with pytest.raises(SystemExit, match=f"slower than the floor .*: {NAME}"):
        run(1e6, tmp_path)


def test_ratios_become_floors(tmp_path: Path) -> None:
    ratios = run(1e6, tmp_path, "--write")
    assert json.loads((tmp_path / "floors.json").read_text()) == ratios


def test_every_topology_has_a_floor() -> None:
    floors = json.loads(guard.FLOORS.read_text())
    assert {*floors} == {f"{name}_{size}" for size in guard.SIZES for name in guard.TOPOLOGIES}
