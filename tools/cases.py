"""Answers join cases: one JSON object a line in, one a line out, in the same order.

A case is ``{"id", "op", "events": [{"side": "L" | "R", "key", "value", "ts"}, ...]}`` with times in
milliseconds; a null value is a tombstone. Its answer is ``{"id", "out"}``, where ``out`` holds, per
event, the changes ``{"key", "value", "ts"}`` that it caused; a missing side prints as ``null``, a
tombstone has a null value. A case that cannot run gives ``{"id", "error"}``. In a join by foreign
key this is what comes before the first ``|`` of the left value; none, or an empty one, is null. A
count by windows is of the records of both sides, and its keys are ``key@start``.

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
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]

from bench.families import foreign_keys, streams, tables, windows  # noqa: E402
from bench.family import Family, Join  # noqa: E402
from bench.models.foreign_keys import ForeignKeyJoin  # noqa: E402
from bench.models.gathering import Windows  # noqa: E402
from bench.models.streams import StreamStream, StreamTable, VersionedTables  # noqa: E402
from bench.models.windows import View  # noqa: E402
from bench.records import Record, cut, flat  # noqa: E402
from bench.runners import driver, kernel, stream  # noqa: E402

HOWS = {
    "table_table": ("inner", "left", "outer"),
    "stream_table": ("inner", "left"),
    "stream_stream": ("inner", "left", "outer"),
    "fk": ("inner", "left"),
    "windowed_agg_count": ("tumbling", "hopping"),
}
OPTIONS = {
    "table_table": {"left_versioned_ms", "right_versioned_ms", "materialized"},
    "stream_table": {"versioned_ms", "grace_ms"},
    "stream_stream": {"before_ms", "after_ms", "grace_ms"},
    "fk": {"left_versioned_ms", "right_versioned_ms"},
    "windowed_agg_count": {"size_ms", "advance_ms", "grace_ms", "emit"},
}
ALWAYS = {"id", "op", "events"}

Case: TypeAlias = "dict[str, Any]"
Answer: TypeAlias = "list[list[Any]]"


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
    for number, emitted in run([cases[number] for number in runnable], options).items():
        answers[runnable[number]] = printed(cases[runnable[number]], emitted, options.dropped)
    for number in range(len(cases)):
        print(json.dumps(answers[number], ensure_ascii=False))


def refusal(case: Case) -> str | None:
    """Why a case cannot run."""
    kind, _, how = str(case.get("op")).rpartition("_")
    if how not in HOWS.get(kind, ()):
        return f"unknown op {case.get('op')}"
    unknown = sorted(case.keys() - ALWAYS - OPTIONS[kind])
    return f"unknown options {', '.join(unknown)}" if unknown else None


def join_of(case: Case) -> tuple[Family, Join]:
    """The join that a case is about, and its family."""
    kind, _, how = case["op"].rpartition("_")
    if kind == "windowed_agg_count":
        size, grace = case["size_ms"], case.get("grace_ms", 0)
        advance = case["advance_ms"] if how == "hopping" else size
        counted = Windows(how, size, advance, grace)
        return windows, View("L", (("L", counted),), case.get("emit") == "on_window_close")
    if kind == "stream_table":
        return streams, StreamTable(how, case.get("versioned_ms"), case.get("grace_ms"))
    if kind == "stream_stream":
        spans = (case.get(f"{name}_ms", 0) for name in ("before", "after", "grace"))
        return streams, StreamStream(how, *spans)
    retentions = case.get("left_versioned_ms"), case.get("right_versioned_ms")
    if kind == "fk":
        return foreign_keys, ForeignKeyJoin(how, *retentions)
    if retentions == (None, None):
        return tables, ("L", how, "R")
    return streams, VersionedTables(how, *retentions)


def run_once(case: Case, batches: Any, *, by_kernel: bool, restart: bool = False) -> Answer:
    """A case in this process; other joins than of tables by key run in the driver, which calls
    their kernels.
    """
    family, join = join_of(case)
    run = kernel if by_kernel and family is tables else driver
    return as_asked(family, run(family, join, batches, restart=restart))


def as_asked(family: Family, parts: Answer) -> Answer:
    """Results as cases have them: by foreign key under the left key, the only one that these joins
    have; counts under their key and the start of their window.
    """
    if family is foreign_keys:
        return [[result._replace(key=result.key[0]) for result in part] for part in parts]
    if family is windows:
        counted = windows.counted(parts)
        return [[r._replace(key=f"{r.key[0]}@{r.key[1]}") for r in part] for part in counted]
    return parts


def in_process(cases: Sequence[Case], options: argparse.Namespace) -> dict[int, Answer]:
    """Each case by itself."""
    answers = {}
    for number, case in enumerate(cases):
        records = records_of(case)
        batches = cut(records, options.split or max(len(records), 1))
        by_kernel = options.runner == "kernel"
        parts = run_once(case, batches, by_kernel=by_kernel, restart=options.restart)
        answers[number] = attributed(case, batches, parts)
    return answers


def on_spark(cases: Sequence[Case], options: argparse.Namespace) -> dict[int, Answer]:
    """One streaming query for all cases of an op, each case under keys of its own; where stream
    time matters, which keys share, one for each case.
    """
    answers = {}
    by_op = defaultdict(list)
    session = spark_session() if cases else None
    for number, case in enumerate(cases):
        family, join = join_of(case)
        if family is tables or join in (ForeignKeyJoin("inner"), ForeignKeyJoin("left")):
            by_op[case["op"]].append(number)
        else:
            batches = cut(records_of(case), options.split or 10**9)
            emitted = streamed(session, case, batches, restart=options.restart)
            answers[number] = attributed(case, [records_of(case)], [emitted])
    for numbers in by_op.values():
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
        found = defaultdict(list)
        for result in streamed(session, cases[numbers[0]], together, restart=options.restart):
            number, _, key = result.key.partition(":")
            found[int(number)].append(result._replace(key=key))
        for n in numbers:
            answers[n] = attributed(cases[n], [records_of(cases[n])], [found[n]])
    return answers


def streamed(session: Any, case: Case, batches: Any, *, restart: bool) -> list[Any]:
    """What a streaming query of a case's join makes of these batches."""
    family, join = join_of(case)
    with tempfile.TemporaryDirectory() as name:
        parts = stream(session, Path(name), family, join, batches, restart=restart)
    return flat(as_asked(family, parts))


def attributed(case: Case, batches: Sequence[Sequence[Record]], parts: Answer) -> Answer:
    """A micro-batch's changes dealt out to its events."""
    singly = iter(run_once(case, cut(records_of(case), 1), by_kernel=True))
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
        line["dropped"] = dropped_of(case)
    return line


def dropped_of(case: Case) -> list[int]:
    """Per event how many records it dropped, for a count by windows from how many windows."""
    join, clock, found = join_of(case)[1], -1, []
    for event in case["events"]:
        late = 0
        if isinstance(join, View) and event["key"] is not None:
            (_, windows), time = join.windows[0], event["ts"]
            clock = max(clock, time)
            starts = range(max(0, time - windows.size + 1), time + 1)
            ends = (start + windows.size for start in starts if start % windows.advance == 0)
            late = sum(not windows.open(end, clock) for end in ends)
        found.append(int(event["key"] is None) + late)
    return found


def joined(values: tuple[Any, ...] | None) -> str | None:
    """What the joiner makes of a row."""
    return None if values is None else "+".join("null" if v is None else v for v in values)


def records_of(case: Case) -> list[Record]:
    """The events as the runners take them; a left value by foreign key with its foreign key."""
    family, _ = join_of(case)
    by_foreign_key, by_windows = family is foreign_keys, family is windows
    records = []
    for event in case["events"]:
        value: Any = event["value"]
        if by_windows:
            # In windows Kafka Streams counts a record without a value: here one of a null.
            value = None if value is None else "v"
            records.append(Record("L", event["key"], event["ts"], value, False))
            continue
        if by_foreign_key and event["side"] == "L" and value is not None:
            name, bar, _ = value.partition("|")
            value = (name if bar and name else None, value)
        deleted = event["value"] is None
        records.append(Record(event["side"], event["key"], event["ts"], value, deleted))
    return records


def named(number: int, case: Case) -> list[Record]:
    """The events under keys and foreign keys that no other case has."""

    def own(key: str | None) -> str | None:
        return None if key is None else f"{number}:{key}"

    return [
        r._replace(
            key=own(r.key),
            value=(own(r.value[0]), r.value[1]) if isinstance(r.value, tuple) else r.value,
        )
        for r in records_of(case)
    ]


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
