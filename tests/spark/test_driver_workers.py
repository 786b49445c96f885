"""Driver workers: forked from a server, and started as by Spark itself where it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail.spark.driver_workers import is_program, make_program


def test_a_program_runs_anything_else_as_its_python_does() -> None:
    made = make_program(sys.executable)
    assert made is not None
    assert is_program(made)
    code = "import sys; print(sys.executable, sys.argv)"
    for python in (made, sys.executable):
        done = subprocess.run([python, "-c", code, "a b", "*"], capture_output=True, check=True)
        assert done.stdout == f"{sys.executable} ['-c', 'a b', '*']\n".encode()


def test_there_is_no_program_where_files_cannot_be_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    assert make_program("/a/python") is None
    assert list(tmp_path.iterdir()) == []
