"""Apache Flink beside us: its process, its rows compared with DuckDB's, and its seconds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from benchmarks.nexmark.check import differences
from benchmarks.nexmark.flink_queries import FlinkQuery

PYTHON = "DOVETAIL_FLINK"
"""The environment variable with the Python that has Flink; ``./dev bench`` sets it."""
JARS = "DOVETAIL_FLINK_JARS"
"""The environment variable with the folder of the jar by which Flink reads Parquet."""


@dataclass
class Flink:
    """A process that answers requests of ``flink.py``."""

    process: subprocess.Popen[str]
    folder: Path

    def seconds(self, query: FlinkQuery) -> float:
        """Run a query into nowhere. Return the seconds that it took."""
        return float(self._asked({"sql": query.sql})["seconds"])

    def refuse_other_rows(
        self, query: FlinkQuery, expected: pa.Table, inputs: Mapping[str, pa.Table]
    ) -> None:
        """Raise ``AssertionError`` if a query's rows at rest are not those of DuckDB."""
        path = self.folder / "flink.parquet"
        self._asked({"sql": query.sql, "rows": str(path)})
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            tables = {**inputs, "flink": pq.read_table(path), "expected": expected}
            for name, table in tables.items():
                database.register(name, table)
            rows, ours = (
                database.sql(sql).to_arrow_table() for sql in (query.form, query.form_of_ours)
            )
        difference = differences(rows, ours)
        assert not difference, difference

    def _asked(self, request: Mapping[str, Any]) -> Any:
        """Return the answer to a request."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return answer(self.process)


def answer(process: subprocess.Popen[str]) -> Any:
    """Return the next line of JSON of a process. Raises ``RuntimeError`` if it has ended."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError("Flink's process has ended; its log is above")


@contextmanager
def flink(folder: Path) -> Iterator[Flink]:
    """Yield a process with the tables of the files in a folder, and end it after the block."""
    ours = Path(pyspark.__file__).parent / "jars"
    jars = [*Path(os.environ[JARS]).glob("*.jar"), *ours.glob("hadoop-client-*.jar")]
    script = Path(__file__).with_name("flink.py")
    arguments = [os.environ[PYTHON], str(script), ":".join(map(str, jars)), str(folder)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    process = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept
    )
    try:
        answer(process)
        yield Flink(process, folder)
    finally:
        process.kill()
        process.wait()
