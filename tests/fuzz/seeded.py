"""The law of seeding: a query whose tables begin with frames emits what one does that got the
frames' rows as its first micro-batch, less what that one emitted.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from fuzz import spark
from fuzz.case import Case
from fuzz.runs import inputs


def drawn(seed: int, number: int) -> Case:
    """A case whose first micro-batch has rows of tables alone, one a key, in the order of their
    times; every second one has several operators.
    """
    random_ = random.Random(f"{seed} {number} seeded")
    while True:
        case = spark.drawn(seed, random_.randrange(10**6))
        tables = [n for n, node in enumerate(case.topology) if node["op"] == "table"]
        count = case.batches[0]
        rows = [
            record
            for record in case.records[:count]
            if record[0] in tables and not record[4] and None not in record[1]
        ]
        times = {record[2]: record for record in rows}
        first = {(record[0], repr(record[1])): record for record in times.values()}
        operators = sum(node["op"] not in ("table", "stream") for node in case.topology)
        static = any(node.get("static") for node in case.topology)
        fits = (
            not static and len(first) >= 3 and count < len(case.records) and operators > number % 2
        )
        if fits:
            rest = case.records[count:]
            batches = [len(first), len(rest)]
            by_time = sorted(first.values(), key=lambda record: int(record[2]))
            records = [*by_time, *rest]
            limits = {"files": 1}
            return replace(case, records=records, batches=batches, limits=limits, restarts=[])


def difference(case: Case) -> str | None:
    """What a seeded query emits otherwise, None for nothing."""
    tables = inputs(case)
    count = case.batches[0]
    with tempfile.TemporaryDirectory(prefix="dovetail-seeded-") as folder:
        paths = [Path(folder) / name for name in ("streamed", "seeded")]
        for path in paths:
            path.mkdir()
        _, *expected = spark.streamed(case, tables, paths[0])
        found = spark.streamed(
            replace(case, records=case.records[count:], batches=case.batches[1:]),
            {number: _from(table, count) for number, table in tables.items()},
            paths[1],
            initial={
                f"s{number}": table.slice(0, len(table) - len(_from(table, count)))
                for number, table in tables.items()
                if case.topology[number]["op"] == "table"
            },
            first=count,
        )
    if found == expected:
        return None
    return f"{case.to_json()}\nstreamed: {expected}\nseeded: {found}"


def _from(table: pa.Table, place: int) -> pa.Table:
    """The records from a place on."""
    return table.slice(int(table.column("_sequence").to_numpy().searchsorted(place)))
