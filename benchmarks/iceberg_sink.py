"""A changelog into an Iceberg table, beside pyiceberg's own calls by hand.

A first micro-batch loads orders, each further one changes some of them, all over the table, and
deletes some. ``upsert`` and ``overwrite`` are what a user would write by ``foreachBatch``: the last
change of each key goes into the table by ``Table.upsert`` and ``Table.delete``, or by
``Table.overwrite`` with a filter on the keys. They have no number of the micro-batch, and make two
snapshots or more. The same changes as a stream are appended, beside ``Table.append``. The
contenders run in turn, each into a table of its own. A figure counts only if all tables are equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from benchmarks import harness
from benchmarks.delta_sink import put

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

SEED = 7
DELETED_SHARE = 0.1
ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("note", pa.string())])
LAST = (
    "SELECT id, last.* FROM (SELECT id, max_by(struct(amount, note, _change), _position) AS last "
    "FROM {batch} GROUP BY id)"
)
MERGES = ("to_iceberg", "upsert", "overwrite")
APPENDS = ("to_iceberg stream", "append")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=60_000, help="orders (60000)")
    parser.add_argument("--changed", type=int, default=300, help="of them each time (300)")
    parser.add_argument("--batches", type=int, default=8, help="micro-batches (8)")
    parser.add_argument("--rounds", type=int, default=1, help="of all contenders (1)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with harness.workspace() as directory:
        spark = harness.session()
        figures = measure(spark, directory, arguments)
        spark.stop()
        return figures


def measure(spark: SparkSession, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    rows, changed, batches = arguments.rows, arguments.changed, arguments.batches
    # The load, the changes, and the reports of a query that finds nothing more.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", batches + 10)
    feed(directory, rows, changed, batches)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    orders = changes(spark, directory)
    to_iceberg = partial(dt.to_iceberg, catalog=catalog)
    contenders: dict[str, tuple[Any, Callable[[str], Any]]] = {
        "to_iceberg": (orders, to_iceberg),
        "upsert": (orders, by_hand(catalog, upsert)),
        "overwrite": (orders, by_hand(catalog, overwrite)),
        "to_iceberg stream": (orders.to_stream(), to_iceberg),
        "append": (orders.to_stream(), by_hand(catalog, append)),
    }
    measured = harness.queries_in_turn(
        {name: partial(write, *contender) for name, contender in contenders.items()},
        directory,
        rounds=arguments.rounds,
    )
    refuse_unequal(opened(catalog), arguments.rounds)
    taken = {}
    for name, queries in measured.items():
        assert all(len(query.rows) == batches + 1 for query in queries), "a report is missing"
        taken[name] = (
            [query.batch_ms[0] for query in queries],
            [ms for query in queries for ms in query.batch_ms[1:]],
        )
    harness.show(
        f"{changed:,} of {rows:,} rows change in each of {batches:,} micro-batches",
        [
            ("median ms of", "the first micro-batch", "the others"),
            *((name, *(f"{median(ms):,.0f}" for ms in both)) for name, both in taken.items()),
        ],
    )
    figures: dict[str, Any] = {"rows": rows, "changed": changed, "batches": batches}
    for name, (first, others) in taken.items():
        key = name.replace(" ", "_")
        figures |= {f"{key}_first_ms": median(first), f"{key}_ms": median(others)}
    for name, own in (("upsert", MERGES[0]), ("overwrite", MERGES[0]), ("append", APPENDS[0])):
        ratio = median(taken[name][1]) / median(taken[own][1])
        figures[f"{name}_over_to_iceberg"] = round(ratio, 2)
    figures["tables_are_equal"] = True
    return figures


def feed(directory: Path, rows: int, changed: int, batches: int) -> None:
    """A file for each micro-batch, the first one with all rows."""
    random = np.random.default_rng(SEED)
    for number in range(batches + 1):
        ids = np.arange(rows) if number == 0 else random.choice(rows, changed, replace=False)
        amounts = random.integers(0, 1000, len(ids))
        put(
            directory / "orders",
            number,
            {
                "id": ids,
                "amount": amounts,
                "note": pc.binary_join_element_wise("order ", pa.array(amounts).cast("string"), ""),
                "gone": (random.random(len(ids)) < DELETED_SHARE) & (number > 0),
            },
        )


def changes(spark: SparkSession, directory: Path) -> dt.Table:
    schema = "id LONG, amount LONG, note STRING, gone BOOLEAN, at TIMESTAMP"
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return dt.Table.from_changelog(
        reader.parquet(str(directory / "orders")),
        key="id",
        timestamp="at",
        deleted="gone",
        name="orders",
    ).select("amount", "note")


def write(changed: dt.Table | dt.Stream, sink: Callable[[str], Any], checkpoint: str) -> Any:
    """Into a table that is called as the checkpoint."""
    made = sink(f"bench.{Path(checkpoint).name.replace('-', '_')}")
    return changed.write_stream(made, checkpoint=checkpoint, trigger={"availableNow": True})


def opened(catalog: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    loaded = load_catalog("default", **catalog)
    loaded.create_namespace_if_not_exists("bench")
    return loaded


def by_hand(
    catalog: dict[str, str], write_batch: Callable[[Table, DataFrame], None]
) -> Callable[[str], Any]:
    """A sink that loads a table of this name in each micro-batch, and writes into it."""

    def sink(name: str) -> Any:
        opened(catalog).create_table(name, ORDERS)
        return dt.to_foreach_batch(
            lambda batch, _: write_batch(opened(catalog).load_table(name), batch)
        )

    return sink


def last_changes(batch: DataFrame) -> tuple[pa.Table, list[int]]:
    """The rows that the last changes of keys leave, and the keys that these delete."""
    last = batch.sparkSession.sql(LAST, batch=batch).toArrow()
    is_gone = pc.equal(last["_change"], "delete")
    rows = last.filter(pc.invert(is_gone)).select(ORDERS.names).cast(ORDERS)
    return rows, last.filter(is_gone)["id"].to_pylist()


def upsert(table: Table, batch: DataFrame) -> None:
    from pyiceberg.expressions import In

    rows, gone = last_changes(batch)
    if table.current_snapshot() is None:
        table.append(rows)
        return
    table.upsert(rows, join_cols=["id"])
    if gone:
        table.delete(In("id", gone))


def overwrite(table: Table, batch: DataFrame) -> None:
    from pyiceberg.expressions import In

    rows, gone = last_changes(batch)
    if table.current_snapshot() is None:
        table.append(rows)
    else:
        table.overwrite(rows, overwrite_filter=In("id", [*rows["id"].to_pylist(), *gone]))


def append(table: Table, batch: DataFrame) -> None:
    table.append(batch.select(*ORDERS.names).toArrow().cast(ORDERS))


def refuse_unequal(catalog: Catalog, rounds: int) -> None:
    """Fail if contenders of a round have other rows than each other."""
    for number in range(rounds + 1):
        for names in (MERGES, APPENDS):
            first, *others = (
                sorted_rows(catalog.load_table(f"bench.{name.replace(' ', '_')}_{number}"))
                for name in names
            )
            assert len(first), names
            assert all(rows.equals(first) for rows in others), f"{names} of round {number} differ"


def sorted_rows(table: Table) -> pa.Table:
    rows = table.scan(selected_fields=tuple(ORDERS.names)).to_arrow().cast(ORDERS)
    return rows.sort_by([(name, "ascending") for name in ORDERS.names]).combine_chunks()
