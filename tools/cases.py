"""Answers join cases: one JSON object a line in, one a line out, in the same order.

A case is ``{"id", "op", "events": [{"side": "L" | "R", "key", "value", "ts"}, ...]}`` with times in
milliseconds; a null value is a tombstone. Its answer is ``{"id", "out"}``, where ``out`` holds, per
event, the changes ``{"key", "value", "ts"}`` that it caused; a missing side prints as ``null``, a
tombstone has a null value. A case that cannot run gives ``{"id", "error"}``.

Answers are attributed to events one event at a time, by the kernel: where a runner gives a
micro-batch's changes in one piece, each event takes as many of them as it causes there. Changes
that are then left over stand with the last event of their micro-batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from naive import Record, Result  # noqa: E402
from runners import cut, driver, kernel, stream  # noqa: E402

OPS = {
    "table_table_inner": ("L", "inner", "R"),
    "table_table_left": ("L", "left", "R"),
    "table_table_outer": ("L", "outer", "R"),
}
KNOWN = {"id", "op", "events", "materialized"}

Case: TypeAlias = "dict[str, Any]"
Answer: TypeAlias = "list[list[Result]]"


def main() -> None:
    """Read cases on standard input, print their answers."""
    parser = argparse.ArgumentParser(
        description="Answers join cases: JSON lines on standard input, JSON lines out."
    )
    parser.add_argument("--runner", choices=["kernel", "driver", "spark"], default="kernel")
    parser.add_argument(
        "--split",
        type=int,
        metavar="N",
        help="a micro-batch ends after N events (default: all)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="stop and restart between micro-batches"
    )
    parser.add_argument(
        "--dropped", action="store_true", help="add how many records each event dropped"
    )
    options = parser.parse_args()
    cases = [json.loads(line) for line in sys.stdin if line.strip()]
    answers: dict[int, Case] = {}
    runnable: list[int] = []
    for number, case in enumerate(cases):
        problem = refusal(case)
        if problem is None:
            runnable.append(number)
        else:
            answers[number] = {"id": case.get("id"), "error": problem}
    run = on_spark if options.runner == "spark" else in_process
    for number, told in run([cases[number] for number in runnable], options).items():
        answers[runnable[number]] = printed(cases[runnable[number]], told, options.dropped)
    for number in range(len(cases)):
        print(json.dumps(answers[number], ensure_ascii=False))


def refusal(case: Case) -> str | None:
    """Why a case cannot run."""
    if case.get("op") not in OPS:
        return f"unknown op {case.get('op')}"
    unknown = sorted(case.keys() - KNOWN)
    return f"unknown options {', '.join(unknown)}" if unknown else None


def in_process(cases: Sequence[Case], options: argparse.Namespace) -> dict[int, Answer]:
    """Each case by itself."""
    run = kernel if options.runner == "kernel" else driver
    answers = {}
    for number, case in enumerate(cases):
        records = records_of(case)
        batches = cut(records, options.split or max(len(records), 1))
        parts = run(OPS[case["op"]], batches, restart=options.restart)
        answers[number] = attributed(case, batches, parts)
    return answers


def on_spark(cases: Sequence[Case], options: argparse.Namespace) -> dict[int, Answer]:
    """One streaming query for all cases of an op, each case under keys of its own."""
    answers = {}
    by_op = defaultdict(list)
    for number, case in enumerate(cases):
        by_op[case["op"]].append(number)
    session = spark_session() if by_op else None
    for op, numbers in by_op.items():
        own = {n: cut(named(n, cases[n]), options.split or 10**9) for n in numbers}
        longest = max(1, *(len(batches) for batches in own.values()))
        together = [
            [
                record
                for batches in own.values()
                for record in batches[i : i + 1]
                for record in record
            ]
            for i in range(longest)
        ]
        with tempfile.TemporaryDirectory() as folder:
            told = stream(session, Path(folder), OPS[op], together, restart=options.restart)
        found = defaultdict(list)
        for result in told:
            number, _, key = result.key.partition(":")
            found[int(number)].append(result._replace(key=key))
        for n in numbers:
            answers[n] = attributed(cases[n], [records_of(cases[n])], [found[n]])
    return answers


def attributed(case: Case, batches: Sequence[Sequence[Record]], parts: Answer) -> Answer:
    """A micro-batch's changes dealt out to its events."""
    singly = iter(kernel(OPS[case["op"]], cut(records_of(case), 1)))
    answer: Answer = []
    for batch, part in zip(batches, parts, strict=True):
        left = list(part)
        for _ in batch:
            count = len(next(singly))
            answer.append(left[:count])
            left = left[count:]
        if left:
            answer[-1] += left
    return answer


def printed(case: Case, answer: Answer, dropped: bool) -> Case:
    """The answer as a line of output."""
    out = [
        [{"key": r.key, "value": joined(r.values), "ts": r.time} for r in results]
        for results in answer
    ]
    line = {"id": case["id"], "out": out}
    if dropped:
        line["dropped"] = [int(event["key"] is None) for event in case["events"]]
    return line


def joined(values: tuple[Any, ...] | None) -> str | None:
    """What the joiner makes of a row."""
    return None if values is None else "+".join("null" if v is None else v for v in values)


def records_of(case: Case) -> list[Record]:
    """The events as the runners take them."""
    return [
        Record(e["side"], e["key"], e["ts"], e["value"], e["value"] is None) for e in case["events"]
    ]


def named(number: int, case: Case) -> list[Record]:
    """The events under keys that no other case has."""
    return [r if r.key is None else r._replace(key=f"{number}:{r.key}") for r in records_of(case)]


def spark_session() -> Any:
    """A small local session."""
    import os

    from pyspark.sql import SparkSession

    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("dovetail cases")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()
