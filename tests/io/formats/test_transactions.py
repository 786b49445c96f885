"""Keys that move within a transaction: with ``transactions=True`` a table has the database's rows
behind each transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parquet_rows import rows_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_avro import avro_spark, encoded
from test_avro import records as avro_records
from test_debezium import POSTGRES, RECORDS, column, event, problems, records, with_schema
from test_debezium_avro import avro_event, envelope
from test_unsent_values import TEXT

import dovetail as dt
from dovetail.physical.explain import explain

__all__ = ["avro_spark"]

COLUMNS = "id long, note string"


class Log:
    """PostgreSQL's log: an event's transaction is named by its place, too."""

    def __init__(self, transaction: int) -> None:
        self.transaction, self.order, self.lsn = transaction, 0, 100 * transaction

    def event(self, op: str, before: Any, after: Any) -> dict[str, Any]:
        """The next event of the transaction."""
        self.order, self.lsn = self.order + 1, self.lsn + 1
        own = {"id": f"{self.transaction}:{self.lsn}", "total_order": self.order}
        source = {**POSTGRES, "txId": self.transaction, "lsn": self.lsn}
        return event(op, before, after, source, transaction={**own, "data_collection_order": 1})

    def moves(self, *rows: tuple[int, int, str]) -> Iterator[dict[str, Any]]:
        """The events of an update that gives rows another key: old, new, the row's note."""
        for old, new, note in rows:
            yield self.event("d", {"id": old}, None)
            yield self.event("c", None, {"id": new, "note": note})


def snapshot(*keys: int) -> list[dict[str, Any]]:
    """The events of a snapshot, without a transaction."""
    return [event("r", None, {"id": n, "note": f"row {n}"}, transaction=None) for n in keys]


SHIFTED = [(1, 2, "row 1"), (2, 3, "row 2"), (3, 4, "row 3")]
"""``UPDATE t SET id = id + 1``."""


def table(frame: DataFrame, **options: Any) -> dt.Table:
    """The table of these records, by the value's key."""
    given = {"schema": COLUMNS} | options
    value = dt.formats.debezium(given.pop("schema"), transactions=True, **given)
    return dt.Table.from_records(frame, value=value, key_columns="id", name="t")


def current(made: dt.Table) -> dict[int, Any]:
    """The table's rows."""
    return {row.id: row.note for row in made.changelog(emit="batch").collect()}


def test_an_update_of_all_keys(spark: SparkSession) -> None:
    events = [*snapshot(1, 2, 3), *Log(7).moves(*SHIFTED)]
    made = table(records(spark, events))
    assert made.schema.names == ["id", "note", "_change", "_timestamp", "_position"]
    plain = dt.Table.from_records(
        records(spark, events), value=dt.formats.debezium(COLUMNS), key_columns="id", name="t"
    )
    assert current(plain) == {4: "row 3"}
    found = made.changelog(buckets=1).orderBy("_position").collect()
    assert [(row.id, row.note, row._change) for row in found[3:]] == [
        (1, None, "delete"), (2, "row 1", "upsert"), (3, "row 2", "upsert"), (4, "row 3", "upsert"),
    ]  # fmt: skip
    assert "counts rows within transactions" in explain(made.plan)


def own(op: str, before: Any, after: Any, id_: str | None, order: int = 0) -> dict[str, Any]:
    """An event of a transaction with an id that another database gives, or of none."""
    transaction = None if id_ is None else {"id": id_, "total_order": order}
    return event(op, before, after, transaction=transaction)


def restarted() -> list[dict[str, Any]]:
    """The events that come again count from 1, and so do those behind them, which are new."""
    first, second, third, *rest = Log(8).moves(*SHIFTED)
    again = [
        {**one, "transaction": {**one["transaction"], "total_order": n}}
        for n, one in enumerate((third, *rest), start=1)
    ]
    return [*snapshot(1, 2, 3), first, second, third, *again]


def moved_at_once() -> list[dict[str, Any]]:
    """An update of the key in one event: it is a row that goes, and one that comes."""
    log = Log(9)
    return [*snapshot(1, 2, 3), *(
        log.event("u", {"id": old, "note": note}, {"id": new, "note": note})
        for old, new, note in SHIFTED
    )]  # fmt: skip


ROW, GONE = {"id": 1, "note": "new"}, {"id": 1}
AFTER = {2: "row 1", 3: "row 2", 4: "row 3"}
CASES: list[tuple[list[dict[str, Any]], dict[int, str]]] = [
    # an id is taken as it is
    ([*snapshot(1), own("c", None, ROW, "0e4d5ba1:23", 1), own("d", GONE, None, "0e4d5ba1:24", 1)],
     {}),
    ([*snapshot(1), own("c", None, ROW, "0-1-13", 1), own("d", GONE, None, "0-1-13", 2)],
     {1: "new"}),
    (restarted(), AFTER),
    (moved_at_once(), AFTER),
    # envelopes without a transaction
    ([*snapshot(1), own("u", None, ROW, None), own("c", None, {**ROW, "note": "other"}, None)],
     {1: "other"}),
    ([*snapshot(1), own("u", None, ROW, None), own("d", GONE, None, None)], {}),
]  # fmt: skip


def test_transactions_of_one_topic(spark: SparkSession) -> None:
    """Each case has keys of its own."""

    def with_keys(row: Any, number: int) -> Any:
        return row and {**row, "id": row["id"] + 10 * number}

    events = [
        {**one, **{side: with_keys(one[side], number) for side in ("before", "after")}}
        for number, (given, _) in enumerate(CASES)
        for one in given
    ]
    assert current(table(records(spark, events))) == {
        key + 10 * number: note
        for number, (_, rows) in enumerate(CASES)
        for key, note in rows.items()
    }


@pytest.mark.parametrize("keyed", [False, True])
def test_tombstones(spark: SparkSession, keyed: bool) -> None:
    """The one behind a delete that is left out is, too. Others delete, as without transactions."""
    log = Log(7)
    values, keys = [*snapshot(1, 2, 3)], [{"id": n} for n in (1, 2, 3)]
    for one in log.moves(*SHIFTED):
        id_ = {"id": (one["before"] or one["after"])["id"]}
        values, keys = [*values, one], [*keys, id_]
        if one["op"] == "d":
            values, keys = [*values, None], [*keys, id_]
    values, keys = [*values, None], [*keys, {"id": 4}]
    frame = records(spark, values, keys)
    if keyed:
        value = dt.formats.debezium("note string", tombstones="delete", transactions=True)
        made = dt.Table.from_records(frame, key=dt.formats.json("id long"), value=value, name="t")
        assert current(made) == {2: "row 1", 3: "row 2"}
    else:
        assert current(table(frame)) == {2: "row 1", 3: "row 2", 4: "row 3"}


def test_values_that_are_not_sent(spark: SparkSession) -> None:
    """They are the row's own, never those of the row that had its key."""
    log = Log(7)
    events = [*snapshot(1, 2, 3), *log.moves(*SHIFTED)]
    events += [log.event("u", None, {"id": 3, "note": TEXT})]
    assert current(table(records(spark, events), unsent="keep")) == {
        2: "row 1", 3: "row 2", 4: "row 3",
    }  # fmt: skip
    moved = [*snapshot(1, 2), Log(7).event("c", None, {"id": 2, "note": TEXT})]
    value = dt.formats.debezium(COLUMNS, transactions=True, unsent="keep")
    found = problems(records(spark, moved), value, key_columns="id")
    assert [*found] == [2]
    assert "without its note" in found[2]
    assert "REPLICA IDENTITY" in found[2]


def test_events_that_say_nothing_of_transactions(spark: SparkSession) -> None:
    value = dt.formats.debezium(COLUMNS, transactions=True)
    columns = [column("id", "int64"), column("note", "string")]
    bare = event("c", None, {"id": 3, "note": "new"})
    null = snapshot(1)
    lacking = [bare, with_schema(bare, columns), *null, with_schema(null[0], columns)]
    found = problems(records(spark, lacking), value, key_columns="id")
    assert [*found] == [0, 1]
    assert "provide.transaction.metadata=true" in found[1]


def test_what_is_refused(spark: SparkSession) -> None:
    frame = records(spark, snapshot(1))
    options = {
        "value": dt.formats.debezium(COLUMNS, transactions=True),
        "key_columns": "id",
        "name": "t",
    }
    with pytest.raises(dt.errors.PlanError, match="transactions=True is for tables"):
        dt.Stream.from_records(frame, **options)
    with pytest.raises(dt.errors.PlanError, match="is versioned"):
        dt.Table.from_records(frame, versioned="1 day", **options)


def test_events_in_avro(avro_spark: SparkSession) -> None:
    columns = [column("id", "int32"), column("note", "string")]
    plain = envelope(columns)
    block = {"type": "record", "name": "Block", "namespace": "event", "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ]}  # fmt: skip
    own = {"name": "transaction", "type": ["null", block], "default": None}
    schema = {**plain, "fields": [*plain["fields"], own]}
    given = [*snapshot(1, 2, 3), *Log(7).moves(*SHIFTED)]
    values = [
        encoded(
            schema,
            avro_event(one["op"], _whole(one["before"]), _whole(one["after"]), one["source"])
            | {"transaction": one["transaction"]},
        )
        for one in given
    ]
    frame = avro_records(avro_spark, values)

    def of(text: Any) -> dt.Table:
        value = dt.formats.debezium(avro=dt.formats.avro(json.dumps(text)), transactions=True)
        return dt.Table.from_records(frame, value=value, key_columns="id", name="t")

    assert current(of(schema)) == {2: "row 1", 3: "row 2", 4: "row 3"}
    with pytest.raises(
        dt.errors.PlanError, match=r"no field 'transaction'.*Set provide.transaction"
    ):
        of(plain)


def _whole(row: Any) -> Any:
    return row and {"id": row["id"], "note": row.get("note")}


def test_a_query_that_is_started_again(spark: SparkSession, tmp_path: Path) -> None:
    """It stops within the transaction. What it leaves out is in its progress."""
    moved = [*Log(7).moves(*SHIFTED)]
    events = [*snapshot(1, 2, 3), *moved, *moved[2:]]
    folder, out, repeated = str(tmp_path / "records"), tmp_path / "out", 0
    for start, end in [(0, 5), (5, 6), (6, len(events))]:
        part = records(spark, events[start:end])
        part.withColumn("offset", F.col("offset") + start).write.mode("append").parquet(folder)
        frame = spark.readStream.schema(RECORDS).parquet(folder)
        query = table(frame).write_stream(
            dt.to_parquet(out),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=2,
        )
        query.awaitTermination()
        counted = [progress.observedMetrics.get("t.repeated") for progress in query.recentProgress]
        repeated += sum(row.records for row in counted if row is not None)
    changes = [(row["id"], row["note"], row["_change"]) for row in rows_of(out)]
    begun = [(n, f"row {n}", "upsert") for n in (1, 2, 3)]
    moved_ = [(n + 1, f"row {n}", "upsert") for n in (1, 2, 3)]
    assert sorted(changes, key=str) == sorted([*begun, *moved_, (1, None, "delete")], key=str)
    assert repeated == 4
