"""Names that users of Spark, pandas and Kafka Streams try, and the call that does it here.

A class that inherits ``Hinted`` answers such a name with the call to make. It answers an unknown
name with the nearest known one. To ``len``, iteration and ``table["column"]`` it answers how to
read rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from dovetail.errors import PlanError

ROWS: Final = (
    "Its first rows are table.preview(), which prints, or preview().to_pandas(). All of them come "
    "out of a query: table.changelog(emit='batch') over static frames, "
    "table.write_stream(dt.to_memory('name'), checkpoint=...) over streaming ones, and "
    "dt.checkpoints.read_state(spark, checkpoint) reads what a query has stored"
)
_WRITE: Final = "Write write_stream(sink, checkpoint=...), with dt.to_delta(path) as the sink, say"
_TOPIC: Final = "Write dt.Table.from_topic(spark, 'name', servers=...)"
_EACH: Final = "Write write_stream(dt.to_foreach_batch(f), checkpoint=...)"
_COUNT: Final = (
    "Count in groups: group_by('column').agg(n=dt.count()). All rows: changelog(emit='batch')"
    ".count() over static frames, dt.checkpoints.read_state(spark, checkpoint) beside a query"
)
_GROUP: Final = "Write group_by('column').agg(n=dt.count())"
_JOIN: Final = "Write join(other, how='left')"
_RENAME: Final = "Write rename({'old': 'new'})"
_COMPUTE: Final = "Write with_columns(name=F.expr('...'))"
_FLAT: Final = "Write explode('column'), which makes a record of each element of an array"
_KEY: Final = "Write key_by('column')"
_TIME: Final = "Nothing is to be set: time is timestamp= of the reader, lateness grace= of the join"
_TOP: Final = (
    "A changelog has no order. Write group_by('column').agg(best=dt.top(3, 'x', by='y')), or sort "
    "the frame that changelog() returns"
)
_ONE: Final = (
    "A table has one row for each key anyway. Of a stream, write deduplicate(within='1 hour')"
)

OF_TABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("filter", "query", "loc", "filterNot"), "Write where('amount > 1')"),
    **dict.fromkeys(
        ("withColumn", "withColumns", "with_column", "assign", "mapValues", "map", "transform"),
        _COMPUTE,
    ),
    **dict.fromkeys(("withColumnRenamed", "withColumnsRenamed", "toDF", "rename_axis"), _RENAME),
    **dict.fromkeys(("groupBy", "groupby", "groupByKey", "cube", "rollup"), _GROUP),
    **dict.fromkeys(("agg", "aggregate", "reduce", "sum", "mean", "avg", "min", "max"), _GROUP),
    **dict.fromkeys(("writeStream", "write", "writeTo", "to", "save", "foreachBatch"), _WRITE),
    **dict.fromkeys(("start", "to_delta", "to_parquet", "to_postgres", "to_topic"), _WRITE),
    **dict.fromkeys(("foreach", "peek", "to_sql"), _EACH),
    **dict.fromkeys(
        ("collect", "toPandas", "to_pandas", "take", "head", "tail", "limit", "first"), ROWS
    ),
    **dict.fromkeys(("toArrow", "toLocalIterator", "display", "print", "iloc", "sample"), ROWS),
    **dict.fromkeys(("iterrows", "items", "describe", "info", "values", "isEmpty"), ROWS),
    "count": _COUNT,
    **dict.fromkeys(("distinct", "dropDuplicates", "drop_duplicates"), _ONE),
    **dict.fromkeys(("dropDuplicatesWithinWatermark", "deduplicate"), _ONE),
    **dict.fromkeys(("orderBy", "sort", "sort_values", "sortWithinPartitions"), _TOP),
    **dict.fromkeys(("unionByName", "unionAll", "concat", "append"), "Write union(other, ...)"),
    **dict.fromkeys(("leftJoin", "outerJoin", "innerJoin", "merge", "crossJoin"), _JOIN),
    **dict.fromkeys(("foreignKeyJoin", "joinWith", "lateralJoin", "nearestByJoin"), _JOIN),
    **dict.fromkeys(("columns", "dtypes", "printSchema", "shape"), "Read schema, or its names"),
    **dict.fromkeys(("withWatermark", "withMetadata", "outputMode", "suppress"), _TIME),
    **dict.fromkeys(("selectExpr",), "Write select(F.expr('amount + 1').alias('next'))"),
    **dict.fromkeys(("flatMap", "flatMapValues", "mapInArrow", "mapInPandas"), _FLAT),
    **dict.fromkeys(("selectKey", "set_index", "keyBy", "repartition", "partitionBy"), _KEY),
    **dict.fromkeys(("reKey", "re_key", "rekey"), _KEY),
    **dict.fromkeys(
        ("look_up", "lookUp", "lookup_join"), "Write lookup(source, columns=...), of a stream"
    ),
    **dict.fromkeys(("toStream", "asStream"), "Write to_stream()"),
    **dict.fromkeys(("toTable", "asTable", "to_table"), "Write to_table(), of a stream"),
    **dict.fromkeys(("fillna", "fill_null"), "Write with_columns(x=F.coalesce('x', F.lit(0)))"),
    **dict.fromkeys(
        ("expect_or_drop", "expect_or_fail", "expect_all", "expect_all_or_drop"),
        "Write expect('amount > 0', on_fail='drop')",
    ),
    **dict.fromkeys(("dropna", "na"), "Write where('x IS NOT NULL')"),
    **dict.fromkeys(("cast", "astype"), "Write with_columns(x=F.col('x').cast('long'))"),
    **dict.fromkeys(("alias", "as_"), "Give name= to the reader, to join or to union"),
    **dict.fromkeys(("cache", "persist", "checkpoint", "localCheckpoint"), "Write materialize()"),
    **dict.fromkeys(
        ("window", "windowedBy", "rolling", "resample"),
        (
            "Streams have windows: stream.group_by('key').window("
            "dt.windows.tumbling('1 hour')).agg(n=dt.count())"
        ),
    ),
    "isStreaming": "Ask the frame that it is read from, or changelog().isStreaming",
    "sparkSession": "Ask SparkSession.getActiveSession()",
}
"""What to write in place of a name that Spark's frames, pandas' or Kafka Streams' have."""

OF_GROUPS: Final[Mapping[str, str]] = {
    **{
        name: f"Write agg({name}=dt.{function}('column'))"
        for name, function in {
            "sum": "sum",
            "min": "min",
            "max": "max",
            "mean": "mean",
            "avg": "mean",
        }.items()
    },
    **dict.fromkeys(("count", "size"), "Write agg(n=dt.count())"),
    **dict.fromkeys(
        ("aggregate", "reduce", "apply", "applyInPandas"),
        ("Write agg(name=dt.aggregate(...)) with functions of your own"),
    ),
    **dict.fromkeys(("first", "last", "nunique", "pivot"), "Write agg(name=dt.last('column'))"),
    **dict.fromkeys(
        ("windowedBy", "windowed_by", "windows"),
        ("Write window(dt.windows.tumbling('1 hour')), of a stream's groups"),
    ),
    "window": (
        "Only streams have windows by time. Of a table, group by a column of its time: "
        "with_columns(hour=F.date_trunc('hour', 'at')).group_by('hour')"
    ),
    "filter": "Write where() before group_by()",
    "where": "Write where() before group_by(), or of what agg() returns",
}
"""The same for groups."""

_OF_WINDOWS: Final = (
    "A windowed table is joined or becomes a table first: to_table() has its windows as rows, "
    "to_stream() their changes; then {name} is there"
)

OF_MODULE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("col", "lit", "expr", "coalesce", "when", "udf"),
        ("Take Spark's: from pyspark.sql import functions as F"),
    ),
    **dict.fromkeys(("avg", "average"), "Write dt.mean('column')"),
    **dict.fromkeys(("countDistinct", "nunique"), "Write dt.count_distinct('column')"),
    **dict.fromkeys(("window", "TimeWindows", "Tumble"), "Write dt.windows.tumbling('1 hour')"),
    **dict.fromkeys(("SlidingWindows",), "Write dt.windows.sliding('1 hour')"),
    **dict.fromkeys(("SessionWindows", "session_window"), "Write dt.windows.session('30 minutes')"),
    **dict.fromkeys(("JoinWindows",), "Write dt.within(before='5 min', after='5 min')"),
    **dict.fromkeys(
        ("KTable", "GlobalKTable", "read_table", "table"),
        ("Write dt.Table.from_changelog(frame, key=..., timestamp=...)"),
    ),
    **dict.fromkeys(
        ("KStream", "read_stream", "stream"),
        ("Write dt.Stream.from_changelog(frame, key=..., timestamp=...)"),
    ),
    **dict.fromkeys(
        ("Driver", "TopologyTestDriver"),
        "Write testing.Driver(topology), from dovetail import testing",
    ),
    **dict.fromkeys(("to_kafka", "write_topic"), "Write dt.to_topic('name', servers=...)"),
    **dict.fromkeys(
        ("read_kafka", "from_topic"), "Write dt.Table.from_topic(spark, 'name', servers=...)"
    ),
    **dict.fromkeys(("to_csv", "to_json"), "Write dt.to_foreach_batch(f)"),
    **dict.fromkeys(("join",), "Write left.join(right, how='left')"),
    "delta": "Write dt.delta_join(...), as delta_join= of a join",
}
"""The same for the package."""


_OF_DRIVERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("send", "pipe_input", "pipeInput", "process", "feed", "write", "put"),
        ("Write pipe(table, {'id': 1}, timestamp=...)"),
    ),
    **dict.fromkeys(
        ("changes", "output", "read_output", "readValue", "results"),
        ("Write read(), for the changes since the last one"),
    ),
    **dict.fromkeys(
        ("advanceWallClockTime", "advance_time", "advance"),
        ("Write advance_wall_clock('1 min'), or advance_stream_time(...)"),
    ),
}
_OF_CHANGES: Final[Mapping[str, str]] = {
    "value": "Read values, a mapping of columns",
    "time": "Read timestamp_us or timestamp",
}


class MissingNameError(PlanError, AttributeError):
    """A name that an object does not have; also an ``AttributeError``."""


class NoRowsError(PlanError, TypeError):
    """An object that describes rows is used as if it held them; also a ``TypeError``."""


class Hinted:
    """An object that answers unknown names with the call to make, or with the nearest name."""

    _hints: ClassVar[Mapping[str, str]] = OF_TABLES

    def _columns(self) -> Iterable[str]:
        """Return the names of the columns that users may take for attributes: none, unless a
        subclass has some.
        """
        return ()

    def _instead(self, name: str) -> str:
        """Return the remedy, a sentence for an error, for an unknown attribute ``name``: the use of
        a column of that name, else a known hint, else the nearest public attribute. If none is
        near, it lists all public attributes.
        """
        if name in self._columns():
            return self._of_column(name)
        if name in self._hints:
            return self._hints[name]
        return nearest(
            name, (attribute for attribute in dir(type(self)) if not attribute.startswith("_"))
        )

    def _of_column(self, name: str) -> str:
        """Return the remedy, a sentence for an error, for the column ``name`` used as an attribute
        or an item: name it by a text or an expression.
        """
        return f'Name a column by its name, "{name}", or in an expression as F.col("{name}")'

    def __bool__(self) -> bool:
        """Return True. Without this method, a condition would call ``__len__``, which raises."""
        return True

    if not TYPE_CHECKING:  # a type checker refuses these names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise ``MissingNameError`` with the call to make instead. For a name that begins with
            an underscore, raise a plain ``AttributeError``.
            """
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise MissingNameError(kind, f"it has no {name!r}", self._instead(name))

        def __getitem__(self, name: object) -> NoReturn:
            """Raise ``NoRowsError``, which for a text says how to name a column."""
            kind = type(self).__name__
            if isinstance(name, str):
                raise NoRowsError(kind, f"it has no item {name!r}", self._of_column(name))
            raise NoRowsError(kind, "it holds no rows", ROWS)

        def __iter__(self) -> Iterator[Any]:
            """Raise ``NoRowsError``, which says how to read rows."""
            raise NoRowsError(type(self).__name__, "it holds no rows to go through", ROWS)

        def __contains__(self, name: object) -> bool:
            """Raise ``NoRowsError``, which says how to read rows."""
            raise NoRowsError(type(self).__name__, "it holds no rows to search", ROWS)

        def __len__(self) -> int:
            """Raise ``NoRowsError``, which says how to count rows."""
            raise NoRowsError(type(self).__name__, "it holds no rows to count", _COUNT)


class HintedDriver(Hinted):
    """A driver of tests."""

    _hints = _OF_DRIVERS


class HintedChange(Hinted):
    """A change, whose columns are values of two mappings."""

    _hints = _OF_CHANGES

    def _of_column(self, name: str) -> str:
        """Return the remedy, a sentence for an error, for the column ``name`` used as an attribute
        or item of a change: read it from ``values`` or ``key``.
        """
        return f"Read values[{name!r}], or key[{name!r}]"


class HintedGroups(Hinted):
    """Groups of a table's or a stream's rows."""

    _hints = OF_GROUPS


class HintedWindows(Hinted):
    """A windowed table, which has few calls of its own."""

    def _instead(self, name: str) -> str:
        """Return the remedy, a sentence for an error, for an unknown attribute ``name``. If it is a
        call of tables and no column, or begins with ``write``, the remedy says that ``to_table()``
        comes first. Otherwise it is that of ``Hinted``.

        Calls of tables are the names in ``OF_TABLES``, ``where``, ``select``, ``group_by``,
        ``changelog`` and ``schema``.
        """
        is_of_tables = name in self._hints or name in (
            "where",
            "select",
            "group_by",
            "changelog",
            "schema",
        )
        if name.startswith("write") or (is_of_tables and name not in self._columns()):
            return _OF_WINDOWS.format(name=name)
        return super()._instead(name)


def topic_module_remedy(
    name: str, names: Iterable[str], topics: Iterable[ModuleType]
) -> str | None:
    """Return a remedy such as ``Write dt.windows.tumbling`` for the mistaken name ``name``. Return
    None unless the nearest known name is that of a call in one of ``topics``. It is near at a
    similarity of 0.6 or more (``difflib``).

    ``names``: the known names of the package itself. ``topics``: its modules of public calls by
    topic, such as ``dovetail.windows``, whose ``__all__`` counts. Of two modules with one call, the
    last counts.
    """
    calls = {
        call: f"dt.{topic.__name__.rpartition('.')[2]}.{call}"
        for topic in topics
        for call in topic.__all__
    }
    close = difflib.get_close_matches(name, [*names, *calls], n=1)
    return f"Write {calls[close[0]]}" if close and close[0] in calls else None


def nearest(name: str, known_names: Iterable[str]) -> str:
    """Return a remedy, a sentence for an error, that names the one of ``known_names`` nearest to
    ``name``. A known name that differs only in case and underscores is the nearest. If none is
    near, at a similarity of 0.6 at least (``difflib``), the remedy lists all of them, sorted.
    """
    names = sorted(known_names)
    close = difflib.get_close_matches(name, names, n=1)
    alike = [
        candidate
        for candidate in names
        if candidate.lower().replace("_", "") == name.lower().replace("_", "")
    ]
    if alike or close:
        return f"The nearest name is {(alike or close)[0]!r}"
    return f"Known are {', '.join(names)}"


OF_ARGUMENTS: Final[Mapping[tuple[str, str], str]] = {
    ("join", "within"): "within= joins two streams; a table has its latest row at any time",
    ("join", "grace"): "grace= is for a stream that joins a table with versioned=",
    ("join", "unmatched"): "unmatched= is for joins of two streams, with within=",
    ("join", "spread"): "spread= is for two tables that join by foreign key",
    ("join", "delta"): "Write delta_join=dt.delta_join(...)",
    ("join", "type"): "Write how='left'",
    ("join", "left_on"): "Write on={'left_column': 'right_column'}",
    ("join", "right_on"): "Write on={'left_column': 'right_column'}",
    ("join", "suffixes"): "Write select={'other_name': 'right.column'}",
    ("rename", "*"): "Write rename({'old': 'new'})",
    ("write_stream", "checkpointLocation"): "Write checkpoint=",
    ("write_stream", "availableNow"): "Write trigger={'availableNow': True}",
    ("write_stream", "processingTime"): "Write trigger={'processingTime': '10 seconds'}",
    ("write_stream", "name"): "Write query_name=",
    ("run", "availableNow"): "Write trigger={'availableNow': True}",
    ("run", "processingTime"): "Write trigger={'processingTime': '10 seconds'}",
    ("run", "name"): "Write query_name=",
    ("write_stream", "outputMode"): "A changelog has no output mode; see emit=",
    ("write_stream", "path"): "Give a sink: write_stream(dt.to_delta(path), checkpoint=...)",
    ("from_changelog", "keys"): "Write key=['a', 'b']",
    ("from_changelog", "schema"): "Give the schema to spark.readStream",
}
"""What to write in place of an argument that a call does not have, by call and argument."""

OF_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("join", "a Stream"): (
        "A stream joins a table, not a table a stream: write stream.join(table). Or make a table "
        "of the stream, with to_table()"
    ),
    ("join", "a pyspark DataFrame"): (
        "Read it first: Table.from_changelog(frame, key=..., timestamp=...) if its rows are "
        "changes, Table.from_static(frame, key=...) if it does not change"
    ),
    ("Planned", "a pyspark DataFrame"): (
        "Read it: Table.from_changelog(frame, key=..., timestamp=...), or Table.from_static"
    ),
    ("", "a pandas DataFrame"): "Make a frame of Spark's of it: spark.createDataFrame(frame)",
    ("", "a polars DataFrame"): (
        "Make a frame of Spark's of it: spark.createDataFrame(frame.to_arrow())"
    ),
    ("", "a pyarrow Table"): "Make a frame of Spark's of it: spark.createDataFrame(table)",
    ("", "a GroupedTable"): "Aggregate it first: agg(n=dt.count())",
    ("", "a GroupedSnapshotTable"): "Aggregate it first: agg(n=F.count('*'))",
    ("", "a GroupedStream"): "Aggregate it first: agg(n=dt.count())",
    ("", "a WindowedStream"): "Aggregate it first: agg(n=dt.count())",
}
"""What to do with a value of a wrong kind, by call, or any, and what errors call the value."""
