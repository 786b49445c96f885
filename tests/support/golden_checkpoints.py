"""The golden checkpoints, and copies of them that Spark can read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINTS = [path.with_suffix("") for path in sorted(GOLDEN.glob("*/*.json"))]
assert CHECKPOINTS
HOME, METADATA = "file:/golden", "state/*/_metadata/v2/*"
"""Where Spark takes a checkpoint to be, and the files that say so."""
Copied: TypeAlias = Callable[[Path], Path]


@pytest.fixture
def golden(tmp_path: Path) -> Copied:
    """A copy of one."""

    def copied(checkpoint: Path) -> Path:
        made = Path(
            shutil.copytree(checkpoint, tmp_path / checkpoint.parent.name / checkpoint.name)
        )
        for file in made.glob(METADATA):
            file.write_text(file.read_text().replace(HOME, f"file:{tmp_path}"))
        return made

    return copied
