"""The process of Apache Flink, and what is asked of it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

PYTHON = "DOVETAIL_FLINK"
"""The environment variable with the Python that has Flink; ``./dev bench`` sets it."""
JARS = "DOVETAIL_FLINK_JARS"
"""The environment variable with the folder of the jar by which Flink reads Parquet."""


@dataclass
class Flink:
    """A process that answers requests of ``server.py``."""

    process: subprocess.Popen[str]

    def declare(
        self, name: str, columns: str, folder: Path, file_format: Mapping[str, str]
    ) -> None:
        """Declare the table of the files in a folder. ``columns`` and ``file_format``: as Flink
        declares them.
        """
        options = {"connector": "filesystem", "path": f"file://{folder}", **file_format}
        listed = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
        self.do(f"CREATE TABLE {name} ({columns}) WITH ({listed})")

    def do(self, sql: str) -> None:
        """Execute a statement."""
        self._asked({"do": sql})

    def seconds(self, sql: str) -> float:
        """Run a query into nowhere. Return the seconds that it took."""
        return float(self._asked({"sql": sql})["seconds"])

    def rows(self, sql: str) -> pa.Table:
        """Return the rows at rest of a query."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/rows.parquet"
            self._asked({"sql": sql, "rows": path})
            return pq.read_table(path)

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
def flink() -> Iterator[Flink]:
    """Yield a process of Flink, and end it after the block."""
    ours = Path(pyspark.__file__).parent / "jars"
    jars = [*Path(os.environ[JARS]).glob("*.jar"), *ours.glob("hadoop-client-*.jar")]
    script = Path(__file__).with_name("server.py")
    arguments = [os.environ[PYTHON], str(script), ":".join(map(str, jars))]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    process = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept
    )
    try:
        answer(process)
        yield Flink(process)
    finally:
        process.kill()
        process.wait()
