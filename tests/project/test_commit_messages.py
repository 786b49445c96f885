"""The check of commit messages."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "commit-msg"
PROBLEM: Callable[[str], str | None] = runpy.run_path(str(SCRIPT))["problem"]


@pytest.mark.parametrize(
    "message",
    [
        "sinks: delete former rows before new ones come",
        "docs, examples: name the counters",
        "io: need a schema for JSON\n\nLonger lines may follow, as long as one wants them to be.",
        "Merge branch 'delta'",
        "spec: add " + 62 * "a",
    ],
)
def test_what_stays(message: str) -> None:
    assert PROBLEM(message) is None


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("Fixed the sink", "imperative subject"),
        ("sinks: ", "imperative subject"),
        ("sinks: delete rows.", "imperative subject"),
        ("", "imperative subject"),
        ("sinks: deleted rows", 'its verb is "deleted"'),
        ("sinks: deleting rows", 'its verb is "deleting"'),
        ("spec: add " + 63 * "a", "it has 73 characters, more than 72"),
    ],
)
def test_what_does_not(message: str, why: str) -> None:
    assert why in str(PROBLEM(message))


def test_as_a_hook(tmp_path: Path) -> None:
    file = tmp_path / "message"
    for message, code in (("sinks: delete rows\n", 0), ("Deleted rows\n", 1)):
        file.write_text(message)
        done = subprocess.run([sys.executable, str(SCRIPT), str(file)], check=False)
        assert done.returncode == code
