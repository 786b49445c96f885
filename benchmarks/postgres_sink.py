"""A changelog into a table of PostgreSQL, beside Spark's JDBC sink with an upsert, and nowhere.

Orders and their customers, joined by foreign key: a first micro-batch loads both tables, each
further one changes some orders, all over the table. The contenders run the same join in turn, each
into a table of its own. That of JDBC is what a user would write by ``foreachBatch``: the last
change of each key goes into a staging table by Spark's JDBC sink, and from there a transaction
deletes and upserts. It has no number of the micro-batch in it, and no owner.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from benchmarks import harness
from benchmarks.delta_sink import feed, topology
from tools import postgres

DRIVER = "org.postgresql:postgresql:42.7.7"
COLUMNS = "id, amount, city"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=60_000, help="orders (60000)")
    parser.add_argument("--changed", type=int, default=300, help="of them each time (300)")
    parser.add_argument("--batches", type=int, default=20, help="micro-batches (20)")
    parser.add_argument("--rounds", type=int, default=2, help="of all contenders (2)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        with postgres.running(settings="") as server, harness.workspace() as directory:
            spark = harness.session(packages=[DRIVER])
            figures = measure(spark, directory, server, arguments)
            spark.stop()
            return figures
    except postgres.MissingError as missing:
        harness.note(f"postgres-sink: skipped, {missing}")
        return {}


def measure(
    spark: SparkSession, directory: Path, server: postgres.Server, arguments: argparse.Namespace
) -> dict[str, Any]:
    rows, changed, batches = arguments.rows, arguments.changed, arguments.batches
    # The load, the changes, and the reports of a query that finds nothing more.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", batches + 10)
    feed(directory, rows, changed, batches)
    joined = topology(spark, directory)
    sinks: dict[str, Callable[[str], Any]] = {
        "to_postgres": partial(dt.to_postgres, server.dsn()),
        "jdbc": lambda table: dt.to_foreach_batch(upserting(server, table)),
        "nowhere": lambda _: harness.Nowhere(),
    }
    measured = harness.queries_in_turn(
        {name: partial(write, joined, sink) for name, sink in sinks.items()},
        directory,
        rounds=arguments.rounds,
    )
    loaded = {
        query.rows[0] > rows and len(query.rows) == batches + 1
        for query in chain(*measured.values())
    }
    assert loaded == {True}, "a micro-batch has no report"
    taken = {
        name: ([q.batch_ms[0] for q in queries], [ms for q in queries for ms in q.batch_ms[1:]])
        for name, queries in measured.items()
    }
    harness.show(
        f"{changed:,} of {rows:,} rows change in each of {batches:,} micro-batches",
        [
            ("median ms of", "the first micro-batch", "the others"),
            *((name, *(f"{median(ms):,.0f}" for ms in both)) for name, both in taken.items()),
        ],
    )
    figures: dict[str, Any] = {"rows": rows, "changed": changed, "batches": batches}
    for name, (first, others) in taken.items():
        figures |= {f"{name}_first_ms": median(first), f"{name}_ms": median(others)}
    own, jdbc = (median(taken[name][1]) for name in ("to_postgres", "jdbc"))
    figures["jdbc_over_to_postgres"] = round(jdbc / own, 2)
    figures["tables_are_equal"] = all(
        alike(server, f"to_postgres_{number}", f"jdbc_{number}")
        for number in range(arguments.rounds + 1)
    )
    return figures


def write(joined: dt.Table, sink: Callable[[str], Any], checkpoint: str) -> Any:
    """Into a table that is called as the checkpoint."""
    made = sink(Path(checkpoint).name.replace("-", "_"))
    return joined.write_stream(made, checkpoint=checkpoint, trigger={"availableNow": True})


def upserting(server: postgres.Server, table: str) -> Callable[[DataFrame, int], None]:
    """What a user would write: the last change of each key, staged by JDBC and upserted."""
    import psycopg

    staged = f"{table}_staged"
    with psycopg.connect(server.dsn()) as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, amount bigint, city bigint)"
        )
    options = {
        "url": f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=dovetail",
        "driver": "org.postgresql.Driver",
        "dbtable": staged,
        "truncate": "true",
    }

    def upsert(batch: DataFrame, _: int) -> None:
        last = batch.sparkSession.sql(
            "SELECT id, last.* FROM (SELECT id, max_by(struct(amount, city, _change), _position) "
            "AS last FROM {batch} GROUP BY id)",
            batch=batch,
        )
        last.write.format("jdbc").options(**options).mode("overwrite").save()
        with psycopg.connect(server.dsn()) as connection:
            connection.execute(
                f"DELETE FROM {table} USING {staged} "
                f"WHERE {table}.id = {staged}.id AND _change = 'delete'"
            )
            connection.execute(
                f"INSERT INTO {table} SELECT {COLUMNS} FROM {staged} WHERE _change <> 'delete' "
                "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, city = excluded.city"
            )

    return upsert


def alike(server: postgres.Server, table: str, other: str) -> bool:
    """Whether two tables hold the same rows."""
    import psycopg

    one, two = (f"SELECT {COLUMNS} FROM {name}" for name in (table, other))
    differing = f"(({one} EXCEPT {two}) UNION ALL ({two} EXCEPT {one})) AS differing"
    with psycopg.connect(server.dsn()) as connection:
        found = [
            connection.execute(f"SELECT count(*) FROM {of}").fetchone() for of in (differing, table)
        ]
    return found[0] == (0,) != found[1]
