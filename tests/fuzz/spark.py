"""Graphs on Spark: files, several a micro-batch and an input, partitions, buckets, a restart; as a
batch and as a stream, both judged by DuckDB.

Where the order between inputs matters to the result, a shared log says it, or the times of the
records do, which then ascend. Where it does not, the files' times do: then rows come in the order
of the files.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from timed_files import timed_file

import dovetail as dt
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from fuzz import calls, columns, graphs, topologies
from fuzz.case import Case
from fuzz.runs import Answers, Change, inputs
from fuzz.sessions import session

EVERY = 150
"""One case in so many runs on Spark, too."""

_FIRST_FILE_S = 1_700_000_000


def drawn(seed: int, number: int) -> Case:
    """A graph of up to some hundred records in a few micro-batches; ``limits`` says how many files
    an input has in each.
    """
    random_ = random.Random(f"{seed} {number} on Spark")
    while True:
        case = graphs.drawn(random_, 400)
        stages = sum(node["op"] not in ("table", "stream") for node in case.topology)
        # What waits for another input is not emitted at the end of a query.
        waits = topologies.aligned(case.topology)
        if stages <= 3 and len(case.records) <= 400 and not waits:
            break
    count, batches = len(case.records), []
    while count:
        batches.append(count if len(batches) == 2 else random_.randint(1 + count // 3, count))
        count -= batches[-1]
    case = replace(
        case,
        batches=batches,
        buckets=random_.choice([1, 2, 8]),
        partitions=0,
        hash="own",
        limits={"files": 1 if _goes_by_time(case) else random_.choice([1, 2, 5])},
        restarts=[1] if len(batches) > 1 and random_.random() < 0.5 else [],
    )
    case = _with_static(case) if random_.random() < 0.6 else case
    if not ordered_by_files(case) and random_.random() < 0.6:
        case = _by_time(case, random_.choice([1, 2]))
    return case


def _by_time(case: Case, own_logs: int) -> Case:
    """The case with times that ascend over all inputs. Each has so many logs of its own."""
    records, last = [], 0
    for number, key, time, value, deleted in case.records:
        last = max(last + 1, time)
        records.append([number, key, last, value, deleted])
    return replace(case, records=records, limits=case.limits | {"own_logs": own_logs})


def _with_static(case: Case) -> Case:
    """The case with its first table as a static one, where there is another input: of each key the
    first row, before all other records.
    """
    inputs_ = [n for n, node in enumerate(case.topology) if node["op"] in ("table", "stream")]
    if not ordered_by_files(case) or len(inputs_) < 2:
        return case
    number, rows, others = inputs_[0], dict[str, Any](), []
    for record in case.records:
        if record[0] != number:
            others.append(record)
        elif not record[4] and None not in record[1]:
            rows.setdefault(repr(record[1]), [*record[:2], 0, *record[3:]])
    if not others:
        return case
    nodes = [
        node | {"static": True} if n == number else node for n, node in enumerate(case.topology)
    ]
    records = [*rows.values(), *others]
    return replace(case, topology=nodes, records=records, batches=[len(records)], restarts=[])


def _goes_by_time(case: Case) -> bool:
    """Whether anything comes too late: clocks are exact where one partition reads a log."""
    return any(
        node.get("versioned") is not None
        or node.get("grace", topologies.LONG_US) < topologies.LONG_US
        for node in case.topology
    )


def difference(case: Case) -> str | None:
    """What is wrong with what dovetail makes of a case on Spark, None for nothing."""
    tables = inputs(case)
    with tempfile.TemporaryDirectory(prefix="dovetail-fuzz-") as folder:
        try:
            problem = _judged(case, tables, "stream", streamed(case, tables, Path(folder)))
            if problem is None and not any(n.get("emit") == "final" for n in case.topology):
                problem = _judged(case, tables, "batch", [_static(case, tables, Path(folder))])
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:800]}"
    return problem


def _judged(case: Case, tables: Mapping[int, pa.Table], how: str, answers: Answers) -> str | None:
    problem = graphs.of_sql(case, tables, len(case.records), answers)
    return problem and f"{how}: {problem}"


def ordered_by_files(case: Case) -> bool:
    """Whether the result needs no order between the inputs, so that files alone are tried."""
    ops = {node["op"] for node in case.topology}
    return ops <= {"table", "join", "foreign", "group"} and not any(
        node.get("versioned") is not None for node in case.topology
    )


def streamed(
    case: Case,
    tables: Mapping[int, pa.Table],
    folder: Path,
    *,
    initial: Mapping[str, pa.Table] | None = None,
    first: int = 0,
) -> Answers:
    """What a query emits, started anew before each of ``restarts``; ``initial``: by name the rows
    that tables begin with; ``first``: the place of the first record.
    """
    answers: dict[int, list[Change]] = {}

    def collect(changes: DataFrame, batch: int) -> None:
        answers[batch] = list(_plain(case, changes))

    files = max(1, case.limits.get("files", 1))
    for number in tables:
        (folder / f"s{number}").mkdir()
    topology = _over(case, tables, folder, files)
    frames = {
        n: session().createDataFrame(_stored(t)).coalesce(1) for n, t in (initial or {}).items()
    }
    start = first
    for number, length in enumerate(case.batches):
        _write(tables, folder, range(start, start + length), number, files)
        start += length
        if number + 1 in [*case.restarts, len(case.batches)]:
            query = topology.write_stream(
                dt.to_foreach_batch(collect),
                checkpoint=str(folder / "checkpoint"),
                trigger={"availableNow": True},
                emit=case.emit,
                buckets=case.buckets,
                initial=frames or None,
            )
            query.awaitTermination()
            topology = _over(case, tables, folder, files)
    return [answers[batch] for batch in sorted(answers)]


def _static(case: Case, tables: Mapping[int, pa.Table], folder: Path) -> list[Change]:
    """What a batch run over the same files gives."""
    topology = _over(case, tables, folder, None)
    return list(_plain(case, topology.changelog(emit=case.emit, buckets=case.buckets)))


def _over(case: Case, tables: Mapping[int, pa.Table], folder: Path, files: int | None) -> Any:
    """The topology over these files, as a stream of so many files a micro-batch."""
    given: dict[int, Any] = {}
    for number, table in tables.items():
        name = f"s{number}"
        reader: Any = session().read if files is None else session().readStream
        if files is not None:
            reader = reader.option("maxFilesPerTrigger", files)
        kind, call, options = reading(case, number)
        if call == "from_static":
            frame = session().createDataFrame(_stored(table)).drop("t", "d", "s")
            given[number] = dt.Table.from_static(frame, **options)
            continue
        frame = reader.schema(from_arrow_schema(_stored(table).schema)).parquet(str(folder / name))
        if "log_partition" in options:
            frame = frame.withColumn("l", F.col("s") % case.limits["own_logs"])
        elif "sequence" not in options:
            frame = frame.drop("s")
        given[number] = getattr(kind, call)(frame, **options)
    return topologies.over(case.topology, given)


def reading(case: Case, number: int) -> tuple[type[Any], str, dict[str, Any]]:
    """How an input is read: the class, its method, and the options."""
    node, name = case.topology[number], f"s{number}"
    options: dict[str, Any] = {"name": name, "key": [key for key, _ in node["key"]]}
    if node.get("static"):
        return dt.Table, "from_static", options
    options |= {"timestamp": "t", "deleted": "d"}
    own_logs = case.limits.get("own_logs", 0)
    if own_logs > 1:
        options |= {"sequence": "s", "log_partition": "l"}
    elif not own_logs and not ordered_by_files(case):
        options |= {"sequence": "s", "shared_log": True}
    kind: type[Any] = dt.Stream if node["op"] == "stream" else dt.Table
    return (
        kind,
        "from_changelog",
        options | (topologies.versioned(node) if kind is dt.Table else {}),
    )


def calls_of(case: Case) -> Iterator[str]:
    """The calls that read a case's inputs."""
    for number, node in enumerate(case.topology):
        if node["op"] in ("table", "stream"):
            kind, call, options = reading(case, number)
            name = f"{kind.__name__}.{call}"
            yield from calls.given(name, getattr(kind, call), options)


def _stored(table: pa.Table) -> pa.Table:
    names = {EVENT_TIME: "t", DELETED: "d", SEQUENCE: "s"}
    at = table.column_names.index(EVENT_TIME)
    table = table.set_column(
        at, EVENT_TIME, table.column(EVENT_TIME).cast(pa.timestamp("us", "UTC"))
    )
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def _write(
    tables: Mapping[int, pa.Table], folder: Path, places: range, batch: int, files: int
) -> None:
    """The files of a micro-batch: of each input as many, some of them empty. Their names say
    nothing of their order, their times do.
    """
    for number, table in tables.items():
        own = _stored(table)
        place = own.column("s").to_numpy()
        low, high = place.searchsorted((places.start, places.stop))
        for part, rows in enumerate(_parts(own.slice(low, high - low), files)):
            age = batch * files + part
            name = f"s{number}/{(age * 7919) % 10007:05}.parquet"
            with timed_file(folder / name, _FIRST_FILE_S + age) as path:
                pq.write_table(rows, path)


def _parts(rows: pa.Table, count: int) -> Iterator[pa.Table]:
    length = -(-len(rows) // count)
    for part in range(count):
        yield rows.slice(part * length, length)


def _plain(case: Case, changes: DataFrame) -> Iterator[Change]:
    """Changes as the runs in process emit them, in the order of their positions."""
    rows = changes.toArrow()
    rows = rows.sort_by("_position")
    shape = topologies.shapes(case.topology)[-1]
    key = [columns.plain(rows.column(name)) for name, _ in shape.key]
    values = [columns.plain(rows.column(name)) for name, _ in shape.values]
    times = columns.plain(rows.column("_timestamp"))
    stream = shape.kind == "stream"
    changed: Sequence[str] = rows.column("_change").to_pylist()
    for one, row, time, change in zip(
        zip(*key, strict=True), zip(*values, strict=True), times, changed, strict=True
    ):
        gone = change == "delete"
        yield Change(one, None if gone and not stream else row, time, gone and stream)
