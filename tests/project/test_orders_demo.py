"""The demo of a shop's orders: its check, and, slow, all of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg")

ROOT = Path(__file__).parents[2]
A = (1, 2, 3, 1, 10, "ann", "Oslo", "pen", "1.00", "1.00")
B = (2, *A[1:])


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        ([A, B], []),
        ([B, A], []),
        ([A], [f"missing: {B}"]),
        ([A, B, B], [f"more than once: {B}"]),
        ([A, (9, *B[1:])], [f"wrong: {(9, *B[1:])}", f"missing: {B}"]),
    ],
)
def test_the_check_finds_what_differs(found: Any, differences: list[str]) -> None:
    from examples.orders import check

    assert check.differences(found, [A, B]) == differences


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is missing")
def test_all_targets_equal_what_postgresql_joins() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.orders", "--changes", "400", "--per-second", "40"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    if ran.returncode and "dovetail: PostgreSQL" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert lines[-1] == "check: equal"
    assert [line.split()[0] for line in lines[-4:-1]] == ["Delta", "topic", "PostgreSQL"]
    assert "the query is killed after micro-batch" in ran.stdout
    assert "dead letters: 2 of 2 malformed records" in lines
