"""What a type checker says of calls to the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_join_takes_the_arguments_of_its_pair_alone() -> None:
    """A call in ``tests/typed`` that mypy refuses has a comment, and each comment is needed."""
    checked = [sys.executable, "-m", "mypy", "--strict", "tests/typed", "examples/typed"]
    run = subprocess.run(checked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
