"""Whose a Delta table is: tables that are there already, other columns, restarts, kills."""

from __future__ import annotations

import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

import delta_rows
import pytest
from bench.parameters import slow_after
from parquet_rows import add_file
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.io.sinks.delta import merge as delta_merge
from dovetail.io.sinks.delta import tables
from dovetail.io.sinks.delta.batch import DeltaMerger
from dovetail.io.sinks.delta.columns import fail_on_unfit_partitions
from dovetail.io.sinks.delta.conflicts import commit_with_retry
from dovetail.io.sinks.ownership import refuse_taken
from dovetail.platform import delta_tables, delta_upsert

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
OWN = [(1, "a"), (2, "b")]
SPANS = ("retention", "log_retention")
FOREIGN = [(2, "x"), (9, "y")]

Rows = list[tuple[Any, ...]]


class Place:
    """Files of a table, a checkpoint and a target."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.target = directory / "target"
        self.come(OWN)

    def come(self, rows: Rows) -> None:
        """A file of changes; a row without a value is a tombstone."""
        given = [(*row, START) for row in rows]
        add_file(self.directory / "in", given, "id long, v string, at timestamp")

    def there(self, rows: Rows, schema: str = "id long, v string") -> None:
        """A table that is no query's."""
        placed = [(*row, START) for row in rows]
        delta_rows.write(self.target, placed, f"{schema}, _timestamp timestamp")

    def changes(self, files: int = 1000) -> DataFrame:
        """The changes, of which a micro-batch reads so many files."""
        reader = self.spark.readStream.schema("id long, v string, at timestamp")
        return reader.option("maxFilesPerTrigger", files).parquet(str(self.directory / "in"))

    def table(self, files: int = 1000) -> dt.Table:
        deleted = F.col("v").isNull()
        return dt.Table.from_changelog(
            self.changes(files), key="id", timestamp="at", deleted=deleted, name="t"
        )

    def run(
        self,
        checkpoint: str = "checkpoint",
        begin: dict[str, Any] | None = None,
        of: dt.Table | dt.Stream | None = None,
        **options: Any,
    ) -> None:
        if "table" not in options:
            options["path"] = self.target
        (of or self.table()).write_stream(
            dt.to_delta(**options),
            checkpoint=str(self.directory / checkpoint),
            trigger={"availableNow": True},
            buckets=1,
            **(begin or {}),
        ).awaitTermination()

    def stored(self, *columns: str, version: int | None = None) -> Rows:
        """The rows of the table, by default the columns ``id`` and ``v``."""
        rows = delta_rows.read(self.target, version).to_pylist()
        return sorted((tuple(row[c] for c in columns or ("id", "v")) for row in rows), key=repr)

    def versions(self) -> list[Rows]:
        """Each version's rows."""
        commits = sorted((self.target / "_delta_log").glob("*.json"))
        return [self.stored(version=int(commit.stem)) for commit in commits]

    def files(self) -> dict[str, int]:
        """The table's files and when each was written."""
        files = (path for path in self.target.rglob("*") if path.is_file())
        return {str(path): path.stat().st_mtime_ns for path in files}


@pytest.fixture
def place(delta_spark: SparkSession, tmp_path: Path) -> Place:
    return Place(delta_spark, tmp_path)


def refused(place: Place, *parts: str, **options: Any) -> None:
    """Before the query starts, and with the table as it was."""
    before = place.files()
    with pytest.raises(dt.errors.TargetError) as raised:
        place.run(**options)
    for part in parts:
        assert part in str(raised.value), raised.value
    assert len(str(raised.value)) < 500
    assert not place.spark.streams.active
    assert place.files() == before != {}


@pytest.mark.slow
def test_rows_that_are_there_are_refused_replaced_or_adopted(place: Place) -> None:
    place.there(FOREIGN)
    refused(place, "has rows that this query has not written", "existing='replace'")
    place.run(existing="adopt")
    assert place.versions() == [FOREIGN, FOREIGN, [(1, "a"), (2, "b"), (9, "y")]]
    place.come([(1, None)])
    place.run()
    assert place.stored() == [(2, "b"), (9, "y")]
    refused(place, "has rows", checkpoint="another")
    place.run(checkpoint="another", existing="replace")
    assert place.versions()[-2:] == [[(2, "b"), (9, "y")], [(2, "b")]]
    refused(place, "it is not the table that this checkpoint has kept")
    place.come([(3, "c")])
    place.run(checkpoint="another", existing="replace")
    assert place.versions()[-2:] == [[(2, "b")], [(2, "b"), (3, "c")]]


@pytest.mark.parametrize("mode", slow_after(1, ["name", "id"]))
def test_a_replaced_table_keeps_its_column_mapping(place: Place, mode: str) -> None:
    table = delta_tables.sql_name(str(place.target))
    place.spark.sql(
        f"CREATE TABLE {table} (`an id` long) USING delta "
        f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')"
    )
    place.spark.sql(f"INSERT INTO {table} VALUES (7)")
    place.run(of=place.table().rename({"v": "a value"}), existing="replace")
    place.come([(1, None), (3, "c")])
    place.run(of=place.table().rename({"v": "a value"}))
    rows = place.spark.table(table).select("id", "a value").collect()
    assert sorted(map(tuple, rows)) == [(2, "b"), (3, "c")]


@pytest.mark.slow
def test_a_table_goes_on_with_the_state_of_another_query(place: Place) -> None:
    """A new one has all rows from its first commit on; the one that is there may be adopted."""
    place.run()
    place.come([(1, None), (3, "c")])
    first, place.target = place.target, place.directory / "target 2"
    begin = {"initial": place.directory / "checkpoint"}
    place.run("second", begin | {"emit_initial": True})
    assert [rows for rows in place.versions() if rows] == [OWN, [(2, "b"), (3, "c")]]
    place.target = first
    refused(place, "has rows that this query has not written", checkpoint="third", begin=begin)
    shutil.rmtree(place.directory / "third")
    place.run("third", begin, existing="adopt")
    assert place.stored() == [(2, "b"), (3, "c")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "rows", "problem"),
    slow_after(
        2,
        [
            ("id long, v string, w int", [(9, "y", 1)], "w is not among the query's"),
            ("id long, v long", [(9, 1)], "v is bigint and comes as string"),
            ("id long", [(9,)], "v is missing"),
        ],
    ),
)
def test_other_columns_are_refused_before_the_query_starts(
    place: Place, schema: str, rows: Rows, problem: str
) -> None:
    place.there([], schema)
    with pytest.raises(dt.errors.TargetError) as raised:
        place.run(existing="adopt")
    assert problem in str(raised.value)
    place.run(existing="replace")
    assert place.stored() == OWN


@pytest.mark.parametrize("column", ["v char(3)", "v varchar(3)"])
def test_a_column_that_fills_texts_with_blanks_is_refused(place: Place, column: str) -> None:
    columns = f"id bigint, {column}, _timestamp timestamp"
    place.spark.sql(f"CREATE TABLE delta.`{place.target}` ({columns}) USING delta")
    if column == "v varchar(3)":
        place.run()
        assert place.stored() == OWN
    else:
        refused(place, "v is char(3) and comes as string")


def test_a_table_that_is_append_only_is_refused(place: Place) -> None:
    columns = "id bigint, v string, _timestamp timestamp"
    append_only = "TBLPROPERTIES (delta.appendOnly = true)"
    place.spark.sql(f"CREATE TABLE delta.`{place.target}` ({columns}) USING delta {append_only}")
    refused(place, "the table is append-only (delta.appendOnly)")


@pytest.mark.parametrize(
    ("column", "rule", "problem", "engine"),
    slow_after(
        1,
        [
            (
                "v string",
                "ADD CONSTRAINT short CHECK (v <> 'b')",
                "constraint short .* v : b",
                "spark",
            ),
            ("v varchar(3)", "", "exceeds char/varchar type length limitation", "spark"),
            ("v string NOT NULL", "", "NOT NULL constraint violated for column: v", "spark"),
            ("v string NOT NULL", "", "NOT NULL constraint violated for column: v", "deltalake"),
        ],
    ),
)
def test_a_row_that_the_table_refuses_is_an_error(
    place: Place, column: str, rule: str, problem: str, engine: str
) -> None:
    table = f"delta.`{place.target}`"
    columns = f"id bigint, {column}, _timestamp timestamp"
    place.spark.sql(f"CREATE TABLE {table} ({columns}) USING delta")
    if rule:
        place.spark.sql(f"ALTER TABLE {table} {rule}")
    made = F.expr("null" if "NULL" in column else "repeat(v, 4)" if "var" in column else "v")
    with pytest.raises(StreamingQueryException, match=f"the table refuses a row: .*{problem}"):
        place.run(of=place.table().with_columns(v=made.cast("string")), engine=engine)


def test_columns_that_are_missing_are_added(place: Place) -> None:
    """With the first micro-batch; what came before has nulls. Structs may have odd names."""
    place.there([(9, "y")], "id long, w string")
    refused(place, "v is missing, w is not among the query's", existing="adopt")
    refused(place, "w is not among the query's", existing="adopt", evolve=True)
    shutil.rmtree(place.target)
    place.there([(9,), (1,)], "id long")
    odd = F.struct(F.array(F.struct(F.col("v").alias("a-b"))).alias("c:`d"))
    table = place.table().with_columns(odd=odd)
    place.run(of=table, existing="adopt", evolve=True)
    stored = place.stored("id", "v", "odd")
    a, b = ({"c:`d": [{"a-b": value}]} for value in "ab")
    assert stored == [(1, "a", a), (2, "b", b), (9, None, None)]
    place.come([(1, None)])
    place.run(of=table)
    assert place.stored("id", "v", "odd") == stored[1:]


@pytest.mark.slow
def test_a_table_with_a_streams_records_is_laid_out_and_gets_columns(place: Place) -> None:
    stream = dt.Stream.from_changelog(place.changes(), key="id", timestamp="at", name="s")
    for select in (["v"], ["v", "w"]):
        written = stream.select("v", w=F.upper("v")).select(*select)
        place.run("-".join(select), of=written, partition_by="v", evolve=True)
    assert place.stored("id", "v", "w") == [
        *((1, "a", "A"), (1, "a", None), (2, "b", "B"), (2, "b", None)),
    ]
    assert {path.parent.name for path in place.target.glob("*/*.parquet")} == {"v=a", "v=b"}
    # The same micro-batch again, by a start with several sinks.
    stored = place.spark.read.format("delta").load(str(place.target))
    checkpoint = str(place.directory / "v-w")
    dt.to_delta(place.target).batches(place.spark, written.plan, checkpoint)(stored, 0)
    assert stored.sparkSession.read.format("delta").load(str(place.target)).count() == 4
    # An older copy of the checkpoint, whose next micro-batch would be taken for that one.
    for kind in ("offsets", "commits"):
        shutil.rmtree(f"{checkpoint}/{kind}")
    with pytest.raises(dt.errors.TargetError, match="up to 0, and the next one is 0: the checkpoi"):
        dt.to_delta(place.target).batches(place.spark, written.plan, checkpoint)


@pytest.mark.parametrize(
    ("of", "text", "shown"),
    [
        ("table", "", "an empty text"),
        ("stream", "__HIVE_DEFAULT_PARTITION__", "the text '__HIVE_DEFAULT_PARTITION__'"),
    ],
)
def test_a_text_that_delta_reads_as_null_lays_out_no_table(
    place: Place, of: str, text: str, shown: str
) -> None:
    """The micro-batch before is committed."""
    frame = place.changes(files=1).withColumn("w", F.nullif("v", F.lit("a")))
    kind = dt.Table if of == "table" else dt.Stream
    changes = kind.from_changelog(frame, key="v", timestamp="at", name="t").select("id", "w")
    place.come([(3, text)])
    with pytest.raises(StreamingQueryException, match=f"has {shown} in column 'v', by which"):
        place.run(of=changes, partition_by=["v", "w"])
    assert place.stored("v", "w") == [("a", None), ("b", "b")]


def test_a_delete_that_is_stored_is_refused_for_a_text_that_delta_reads_as_null(
    place: Place,
) -> None:
    changes = place.spark.createDataFrame([("", "delete")], "v string, _change string")
    merged = fail_on_unfit_partitions("to_delta('t')", changes, ["V"], deletes=False)
    assert merged.collect() == [("", "delete")]
    stored = fail_on_unfit_partitions("to_delta('t')", changes, ["V"], deletes=True)
    merger = DeltaMerger(
        *(Mock(title="to_delta('t')"), Mock(), ["v"]),
        nulls=False,
        history=True,
        track=(),
        marks=False,
        corrects=True,
        compact_every=None,
    )
    merger._partition_columns = ["v"]
    for rows in (stored, merger._refuse_unfit_partitions(changes)):
        with pytest.raises(PySparkException, match="has an empty text in column 'v', by which"):
            rows.collect()


def test_a_value_in_whose_place_another_one_would_be_stored_is_refused(place: Place) -> None:
    spark, table = place.spark, f"delta.`{place.target}`"
    for value, shown in {
        "repeat('x', 254)": "a text that is too long",
        "repeat('/', 85)": "a text that is too long",
        "repeat('\N{SNOWMAN}', 85)": "a text that is too long",
        "concat('a', char(0))": "a text with a NUL character",
        "cast(X'ff' AS string)": "a text that is no UTF-8",
        "timestamp_micros(-62135596800000001)": "a time before the year 1",
    }.items():
        changes = spark.sql(f"SELECT {value} AS v, 'upsert' AS _change")
        refused = fail_on_unfit_partitions("s", changes, ["v"], deletes=False, name_bytes_max=255)
        with pytest.raises(PySparkException, match=f"s: a row has {shown} in column 'v', by which"):
            refused.collect()
    fits = spark.sql(
        "SELECT 1 AS id, explode(array(repeat('x', 253), concat('/', repeat('x', 250)))) AS v,"
        " 'upsert' AS _change"
    )
    fits = fail_on_unfit_partitions("s", fits, ["v"], deletes=False, name_bytes_max=255)
    delta_tables.create(fits.drop("_change"), table, {}, replace=False, partition_by=["v"])
    assert place.stored("v") == [("/" + "x" * 250,), ("x" * 253,)]


def test_a_text_that_is_too_long_for_a_folders_name(place: Place) -> None:
    """With column mapping, folders have random names."""
    place.come([(3, "x" * 254)])
    with pytest.raises(StreamingQueryException, match="has a text that is too long in column 'v'"):
        place.run(partition_by="v")
    shutil.rmtree(place.target)
    place.spark.sql(
        f"CREATE TABLE delta.`{place.target}` (id long, v string, _timestamp timestamp) USING delta"
        " PARTITIONED BY (v) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    place.run("another")
    rows = place.spark.read.format("delta").load(str(place.target)).select("id", "v").collect()
    assert sorted(rows) == [*OWN, (3, "x" * 254)]


@pytest.mark.parametrize("name", ["v", "a-b", "a.b-c", "select", "ä`b"])
def test_partition_columns_may_have_any_name(place: Place, name: str) -> None:
    row = place.spark.createDataFrame([(1, "x")], ["id", name])
    delta_tables.create(row, f"delta.`{place.target}`", {}, replace=False, partition_by=[name])
    assert place.spark.read.format("delta").load(str(place.target)).collect() == [(1, "x")]
    (folder,) = {path.parent.name for path in place.target.glob("*/*.parquet")}
    assert unquote(folder) == f"{name}=x"


@pytest.mark.slow
def test_a_table_is_laid_out_by_its_columns(place: Place) -> None:
    with pytest.raises(dt.errors.PlanError, match="partition_by= names an unknown column 'w'"):
        place.run(partition_by="w")
    place.run(partition_by="v")
    place.come([(1, "b"), (2, None)])
    place.run(partition_by="v")
    assert place.stored() == [(1, "b")]
    assert {path.parent.name for path in place.target.glob("*/*.parquet")} == {"v=a", "v=b"}
    place.run(checkpoint="another", existing="replace", partition_by=["v"])
    assert place.stored() == [(1, "b")]
    assert place.spark.sql(f"DESCRIBE DETAIL delta.`{place.target}`").first()[
        "partitionColumns"
    ] == ["v"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("existing", "step"),
    slow_after(
        1,
        [
            ("fail", "merge_changes"),
            ("fail", "create"),
            ("fail", "set_property"),
            ("replace", "create"),
        ],
    ),
)
def test_a_query_that_is_killed_in_its_first_micro_batch_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, existing: str, step: str
) -> None:
    """After each step that changes something; the table is never in between."""
    owner = delta_merge if step == "merge_changes" else delta_tables
    original = getattr(owner, step)
    if existing == "replace":
        place.there(FOREIGN)

    def dies(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dies)
        with pytest.raises((RuntimeError, StreamingQueryException), match="killed"):
            place.run(existing=existing)
    place.run(existing=existing)
    assert place.stored() == OWN
    before = FOREIGN if existing == "replace" else []
    assert [rows for rows in place.versions() if rows not in (before, OWN)] == []


@pytest.mark.slow
def test_a_table_that_is_gone_or_taken_over_ends_its_query(place: Place) -> None:
    place.run()
    place.come([(3, "c")])
    shutil.rmtree(place.target)
    place.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(dt.errors.TargetError, match="is gone"):
        place.run(existing="replace")
    assert not place.target.exists()
    place.run(checkpoint="another")
    assert place.stored() == [*OWN, (3, "c")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    slow_after(
        1, [{}, {"history": True}, {"history": True, "late": "correct"}, {"deletes": "mark"}]
    ),
)
def test_a_table_that_is_taken_while_changes_are_computed_is_left_to_its_owner(
    place: Place, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    measure, table = delta_upsert.measure, delta_tables.sql_name(str(place.target))

    def taken(frame: DataFrame) -> tuple[int, bool]:
        measured = measure(frame)
        delta_tables.set_property(place.spark, table, tables.QUERY_PROPERTY, "another's")
        return measured

    monkeypatch.setattr(delta_upsert, "measure", taken)
    with pytest.raises(StreamingQueryException, match="another query has taken the table over"):
        place.run(**options)
    assert place.spark.table(table).isEmpty()


def test_a_second_attempt_looks_for_the_owner_again() -> None:
    attempts = []

    def commit() -> None:
        attempts.append(1)
        raise PySparkException("[DELTA_METADATA_CHANGED] another commit was faster")

    with pytest.raises(dt.errors.TargetError, match="another query has taken the table over"):
        commit_with_retry(lambda: refuse_taken("to_delta('t')"), commit)
    assert len(attempts) == 1


@pytest.mark.slow
def test_small_files_are_put_together(place: Place) -> None:
    place.run(compact_every=2)
    place.come([(3, "c")])
    place.run(compact_every=2)
    assert delta_rows.operations(place.target)[1:] == [
        "SET TBLPROPERTIES",
        "WRITE",
        "WRITE",
        "OPTIMIZE",
    ]
    assert place.stored() == [*OWN, (3, "c")]
    assert len(place.spark.read.format("delta").load(str(place.target)).inputFiles()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    slow_after(
        1,
        [
            ({"retention": "2 days"}, "interval 172800 seconds"),
            ({}, None),
        ],
    ),
)
def test_a_tables_log_forgets_files_that_are_no_part_of_it(
    place: Place, options: dict[str, Any], expected: str | None
) -> None:
    place.run(**options)
    table = delta_tables.sql_name(str(place.target))
    assert delta_tables.property_of(place.spark, table, tables.RETENTION_PROPERTY) == expected
    # Delta's own 30 days are longer.
    assert delta_tables.property_of(place.spark, table, tables.LOG_RETENTION_PROPERTY) is None
    place.run(existing="replace", checkpoint="another", **options)
    assert delta_tables.property_of(place.spark, table, tables.RETENTION_PROPERTY) == expected


def test_a_log_knows_its_commits_as_long_as_files_that_have_left() -> None:
    assert dt.to_delta("path").properties == {}
    sink = dt.to_delta("path", retention="40 days")
    assert sink.properties[tables.LOG_RETENTION_PROPERTY] == f"interval {40 * 86400} seconds"
    for options in (
        {"log_retention": "5 minutes", "retention": "3 days"},
        {"log_retention": "1 h"},
    ):
        with pytest.raises(dt.errors.PlanError, match="log_retention= is shorter than retention="):
            dt.to_delta("path", **options)


@pytest.mark.slow
def test_a_tables_log_loses_commits_that_are_old(place: Place) -> None:
    options: dict[str, Any] = {"compact_every": 1, **dict.fromkeys(SPANS, "2 minutes")}
    place.run(**options)
    table = delta_tables.sql_name(str(place.target))
    delta_tables.set_property(place.spark, table, "delta.checkpointInterval", "2")
    for value in "cdef":
        place.come([(3, value)])
        place.run(**options)
    log = place.target / "_delta_log"
    commits = sorted(log.glob("*.json"))
    old = datetime.now(timezone.utc).timestamp() - 300
    for commit in commits[:6]:
        os.utime(commit, (old, old))
    place.come([(3, "g")])
    place.run(**options)
    left = sorted(log.glob("*.json"))
    assert commits[0] not in left
    assert {*left} >= {*commits[6:]}
    assert place.stored() == [*OWN, (3, "g")]


def test_a_log_that_cannot_be_cleaned_is_a_warning_and_nothing_more(
    delta_spark: SparkSession,
) -> None:
    with pytest.warns(dt.errors.DovetailWarning, match="old commits of nowhere://table stay"):
        tables.clean_log(delta_spark, "nowhere://table")


@pytest.mark.slow
def test_a_relative_path_and_a_key_called_last(place: Place) -> None:
    place.come([(1, "c")])
    renamed = place.changes().withColumnsRenamed({"id": "last", "v": "source"})
    table = dt.Table.from_changelog(renamed, key="last", timestamp="at", name="t")
    for _ in range(2):
        table.write_stream(
            dt.to_delta(os.path.relpath(place.target)),
            checkpoint=str(place.directory / "checkpoint"),
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()
        place.come([(2, "d"), (3, "e")])
    assert place.stored("last", "source") == [(1, "c"), (2, "d"), (3, "e")]


@pytest.mark.slow
def test_a_table_of_the_catalog(place: Place) -> None:
    place.spark.sql("DROP TABLE IF EXISTS kept_by_a_query")
    try:
        place.run(table="kept_by_a_query")
        rows = place.spark.table("kept_by_a_query").select("id", "v").collect()
        assert sorted(map(tuple, rows)) == OWN
    finally:
        place.spark.sql("DROP TABLE IF EXISTS kept_by_a_query")


def test_a_table_by_its_path_and_by_its_name_is_one(place: Place) -> None:
    place.there([])
    name = "known_by_its_path"
    place.spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{place.target}'")
    table = place.table()
    by_name, by_path = dt.to_delta(table=name), dt.to_delta(place.target)
    try:
        for sinks in (
            {table: [by_path, by_name]},
            {table: by_name, table.where("id > 1"): by_path},
        ):
            with pytest.raises(dt.errors.PlanError, match="run: results= has one table twice, as"):
                dt.run(sinks, checkpoint=place.directory / "checkpoint")
    finally:
        place.spark.sql(f"DROP TABLE {name}")


@pytest.mark.slow
def test_a_conflicting_commit_is_made_once_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer is made up: Delta says of it what it says of one."""
    replace, conflicts = delta_tables.replace, 2

    def conflicting(*arguments: Any) -> None:
        nonlocal conflicts
        conflicts -= 1
        if conflicts >= 0:
            raise PySparkException("[DELTA_CONCURRENT_APPEND] A concurrent DELETE added data.")
        replace(*arguments)

    monkeypatch.setattr(delta_tables, "replace", conflicting)
    with pytest.raises(StreamingQueryException) as failed:
        place.run()
    for words in (str(place.target), "another writer", "Start the query again"):
        assert words in str(failed.value)
    assert place.stored() == []
    conflicts = 1
    place.run()
    assert place.stored() == OWN


def test_arguments() -> None:
    for options in ({}, {"path": "a", "table": "b"}):
        with pytest.raises(dt.errors.PlanError, match="needs a path or table="):
            dt.to_delta(**options)
    with pytest.raises(dt.errors.PlanError, match="existing= is 'append'"):
        dt.to_delta("a", existing="append")  # type: ignore[arg-type]
    with pytest.raises(dt.errors.PlanError, match="compact_every= is 0"):
        dt.to_delta("a", compact_every=0)
