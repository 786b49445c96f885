"""The examples of docs/joins/snapshots.md, run against Delta and Iceberg tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PAGE = Path(__file__).parent.parent.parent / "docs" / "joins" / "snapshots.md"


BLOCKS = [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]


@pytest.mark.long
@pytest.mark.parametrize("block", BLOCKS, ids=["delta", "iceberg", "aggregates"])
def test_the_example_prints_what_it_says(
    block: str, delta_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = block.replace('"out/', f'"{tmp_path}/').replace("`out/", f"`{tmp_path}/")
    capsys.readouterr()
    exec(compile(placed, str(PAGE), "exec"), {"spark": delta_spark})
    promised = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    assert capsys.readouterr().out.splitlines() == promised
