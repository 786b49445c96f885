"""Driver workers: forked from a server, and started as by Spark itself where it is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import small_session
from drivers import reported

import dovetail as dt
from dovetail.spark import driver_workers
from dovetail.spark.driver_workers import is_program, make_program

STARTED = "Starting Streaming TransformWithStateInPandas Python worker"
"""What a driver worker prints, unless it is forked."""


def two_starts(folder: str) -> None:
    """A query that starts with the server and one that starts after its death."""
    log = Path(folder, "log")
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    spark = small_session.builder().master("local[1]").getOrCreate()
    Path(folder, "in").mkdir()
    Path(folder, "in", "1.json").write_text('{"id": 1, "at": "2026-01-01T00:00:00"}', "utf-8")
    live = spark.readStream.schema("id long, at timestamp").json(f"{folder}/in")
    table = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders").materialize()
    starts = []
    for number in range(2):
        out = f"{folder}/out-{number}"
        table.write_stream(
            dt.to_parquet(out), checkpoint=f"{folder}/c-{number}", trigger={"availableNow": True}
        ).awaitTermination()
        rows = [row["id"] for row in spark.read.parquet(out).collect()]
        starts.append([rows, STARTED in log.read_text()])
        ((python, server),) = driver_workers._SERVERS.items()
        server.kill()
        while Path(python).with_name("requests").exists():
            time.sleep(0.01)
    print(json.dumps(starts))


def test_a_query_starts_with_the_server_and_after_its_death(tmp_path: Path) -> None:
    assert reported(__file__, tmp_path) == [[[1], False], [[1], True]]


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


if __name__ == "__main__":
    two_starts(sys.argv[1])
