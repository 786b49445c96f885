"""Asks Kafka Streams itself: its own ``TopologyTestDriver`` runs many cases at once, record by
record.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bench.family import Family
from bench.records import Answers, Record

ORACLE = Path(__file__).parents[4] / "shared" / "kafka-streams" / "oracle"

needed = pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")
javac_needed = pytest.mark.skipif(shutil.which("javac") is None, reason="a JDK is not here")


def answers(family: Family, cases: Sequence[tuple[Any, list[Record]]]) -> list[Answers]:
    """Per case, a join and its records, and per record what Kafka Streams emits."""
    return answers_of_all([(family, join, records) for join, records in cases])


def answers_of_all(cases: Sequence[tuple[Family, Any, list[Record]]]) -> list[Answers]:
    """Ask one process about cases of several families."""
    asked = [family.asked(join, records) for family, join, records in cases]
    lines = "".join(json.dumps({"id": ""} | case) + "\n" for case in asked)
    short_lived = os.environ | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    done = subprocess.run(
        [ORACLE], input=lines, capture_output=True, text=True, check=True, env=short_lived
    )
    found = []
    for one, case, line in zip(cases, asked, done.stdout.splitlines(), strict=True):
        family, join, records = one
        answer = json.loads(line)
        assert "out" in answer, (join, records, answer)
        parts = [[family.emitted(join, change) for change in part] for part in answer["out"]]
        found.append(_per_record(records, case["events"], parts))
    return found


def run_java(source: Path, cases: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """What a program of ``kafka_streams/`` emits for each record of each case: a line each, from a
    line of its own for the case and one for each record.
    """
    lines = [line for head, records in cases for line in (head, *records, "")]
    build = subprocess.run([ORACLE.parent / "build"], check=True, stdout=subprocess.PIPE, text=True)
    jars = Path(build.stdout.strip()) / "lib" / "*"
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", str(jars)]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    with TemporaryDirectory() as own:  # of the stores: several programs may run at once
        command += [f"-Djava.io.tmpdir={own}", str(source)]
        done = subprocess.run(
            command, input="\n".join([*lines, ""]), check=True, stdout=subprocess.PIPE, text=True
        )
    answers, found = iter(done.stdout.split("\n")), []
    for _, records in cases:
        found.append([next(answers) for _ in records])
        assert next(answers) == ""
    return found


def _per_record(records: Sequence[Record], events: Sequence[Any], parts: Answers) -> Answers:
    """A record of a stream that is joined with itself is two events."""
    if len(events) == len(records):
        return parts
    assert len(events) == 2 * len(records)
    return [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
