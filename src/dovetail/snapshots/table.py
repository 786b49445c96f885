"""``SnapshotTable``: tables with snapshots, their joins, and the targets that hold these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import sleep
from typing import Annotated, NoReturn, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.base.text_cells import columns_text, html_columns
from dovetail.base.validation import (
    ColumnName,
    ColumnNames,
    Path,
    Positive,
    Rule,
    Text,
    validated,
)
from dovetail.errors import PlanError
from dovetail.iceberg.catalogs import GivenCatalog, TableAddress
from dovetail.laws.joins.table_join import How
from dovetail.plan.changelog_source import Session
from dovetail.plan.joins.join_keys import On
from dovetail.plan.select import Selection
from dovetail.plan.types.arrow import spark_schema
from dovetail.plan.types.spans import Span, microseconds
from dovetail.platform import delta_tables
from dovetail.platform.sessions import cloned_session
from dovetail.platform.spark_errors import convert_spark_errors
from dovetail.snapshots import plan
from dovetail.snapshots.commit_records import Commit
from dovetail.snapshots.costs import Way
from dovetail.snapshots.delta_reader import DeltaState, StoredFrames, VersionReader, present_version
from dovetail.snapshots.refresh import Refresher, target_of

Version: TypeAlias = Annotated[
    int, Rule("a whole number from 0 to 9223372036854775807", lambda n: 0 <= n < 1 << 63)
]
"""The version of a Delta table, or the id of an Iceberg table's snapshot."""
_GIVE_A_TABLE = "Give a Delta table's path, or its name in a catalog"


class SnapshotTable:
    """A Delta or Iceberg table at its versions, or a join or aggregate of such tables; immutable.

    ``from_delta``, ``from_iceberg``, ``join`` and ``group_by`` make it. ``refresh`` and
    ``maintain`` keep it in another table, the *target*. At every commit, the target equals
    the result over its sources at the versions that the commit covers. The strong form of
    the delta join needs no streaming query and no state.

    See Also
    --------
    SnapshotTable.from_delta : Read a Delta table.
    SnapshotTable.refresh : Bring a target up to date.
    Table.join : Join tables in a streaming query.

    Notes
    -----
    Source: FLIP-486, "Future Work" (strong consistency); docs/joins/snapshots.md.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = f"{folder.name}/orders"
    >>> columns = "(id BIGINT, customer STRING)"
    >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
    >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
    >>> orders
    SnapshotTable[orders; key id]
      id bigint, customer string
    """

    @validated
    def __init__(self, session: SparkSession, node: plan.SnapshotNode) -> None:
        self._session = session
        self.plan = node

    @classmethod
    @validated
    def from_delta(
        cls,
        spark: Session,
        path: Path | None = None,
        *,
        table: Text | None = None,
        key: ColumnNames,
        name: Text | None = None,
    ) -> SnapshotTable:
        """Return a Delta table, given by its path or by its name in a catalog.

        The change data feed of the table must be enabled, which ``refresh`` checks.

        Parameters
        ----------
        spark : SparkSession
            The session, with Delta Lake's jar and settings.
        path : str or path, optional
            The path of the table.
        table : str, optional
            The name of the table in a catalog. Give either ``path`` or ``table``.
        key : str or list of str
            The columns that tell rows apart at every version.
        name : str, optional
            The name in errors and commits. By default it is the last part of the path or of
            the name.

        Returns
        -------
        SnapshotTable
            The table at any of its versions.

        Raises
        ------
        PlanError
            If a column of ``key`` is unknown, repeated or of a type that cannot be a key, or if
            ``key`` is empty. Also if a column has a name that dovetail or the change feed uses,
            such as ``_change_type``. Also if not exactly one of ``path`` and ``table`` is given.
        ConfigurationError
            If the session lacks Delta Lake, or if the table cannot be read.

        See Also
        --------
        SnapshotTable.join : Join two tables.
        Table.from_delta : Read the changes of a Delta table in a streaming query.

        Notes
        -----
        ``refresh`` raises ``DataError`` if a key occurs twice or if all of its columns are
        null. Source: FLIP-486, "What is Delta Join" (snapshots of the source table).

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> orders.schema.names
        ['id', 'customer']
        """
        delta_tables.refuse_but_one("from_delta", path, table)
        operator = f"snapshot {name or table or path}"
        delta_tables.refuse_without_delta(spark, operator)
        with convert_spark_errors(
            operator,
            f"{f'{path=!s}' if table is None else f'{table=!s}'} cannot be read",
            _GIVE_A_TABLE,
        ):
            if table is None:
                folder = delta_tables.path_of(spark, operator, "path=", path or "")
                label = name or folder.rstrip("/").rsplit("/", 1)[-1]
            else:
                folder = delta_tables.location(spark, table)
                label = name or table.rsplit(".", 1)[-1].strip("`")
            schema = delta_tables.read(spark, delta_tables.sql_name(folder)).schema
            table_id = DeltaState.read(spark, folder).table_id
        return cls(
            spark, plan.source(path=folder, table_id=table_id, schema=schema, key=key, name=label)
        )

    @classmethod
    @validated
    def from_iceberg(
        cls,
        spark: Session,
        table: Text,
        *,
        catalog: GivenCatalog = "default",
        key: ColumnNames,
        name: Text | None = None,
    ) -> SnapshotTable:
        """Return an Iceberg table, given by its name in a catalog.

        Its versions are the ids of its snapshots. The package pyiceberg reads it: ``pip install
        'dovetail[iceberg]'``, on the driver and the workers.

        Parameters
        ----------
        spark : SparkSession
            The session.
        table : str
            The name of the table with its namespace, such as ``"sales.orders"``.
        catalog : str or mapping of str to str, default "default"
            The catalog: its name in pyiceberg's configuration, or its properties. The
            property ``name`` is the catalog's own name, by default ``default``.
        key : str or list of str
            The columns that tell rows apart at every version.
        name : str, optional
            The name in errors and commits. By default it is the last part of the table's
            name.

        Returns
        -------
        SnapshotTable
            The table at any of its versions.

        Raises
        ------
        PlanError
            If a column of ``key`` is unknown, repeated or of a type that cannot be a key, or if
            ``key`` is empty. Also if a column has a type that Spark does not have. Also if a
            column has a name that dovetail or Delta's change feed uses, such as
            ``_change_type``.
        ConfigurationError
            If pyiceberg is not installed, or if the catalog or the table cannot be read.
            Also for a table of format version 1, whose commits have no numbers.

        See Also
        --------
        SnapshotTable.from_delta : Return a Delta table.
        Table.from_iceberg : Read the changes of an Iceberg table in a streaming query.

        Notes
        -----
        Columns are known by their numbers. A column that is dropped and added again under its
        name is another one, and the target must be rebuilt. ``refresh`` raises ``DataError``
        if a key occurs twice or if all of its columns are null.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> import pyarrow as pa
        >>> from pyiceberg.catalog import load_catalog
        >>> folder = tempfile.TemporaryDirectory()
        >>> catalog = {"type": "sql", "uri": f"sqlite:///{folder.name}/shop.db"}
        >>> catalog["warehouse"] = folder.name
        >>> load_catalog("default", **catalog).create_namespace("sales")
        >>> rows = pa.table({"id": [1], "customer": ["ann"]})
        >>> created = load_catalog("default", **catalog).create_table("sales.orders", rows.schema)
        >>> dt.SnapshotTable.from_iceberg(spark, "sales.orders", catalog=catalog, key="id")
        SnapshotTable[orders; key id]
          id bigint, customer string
        """
        address = TableAddress.of(table, catalog)
        label = name or address.short_name
        operator = f"snapshot {label}"
        opened = address.open(operator)
        from dovetail.iceberg import columns
        from dovetail.iceberg.lineage import refuse_unnumbered

        refuse_unnumbered(operator, opened.metadata)
        present = columns.projected(opened.schema(), None)
        schema = spark_schema(columns.arrow_schema(operator, present.fields)).toNullable()
        ids = {field.name: field.field_id for field in present.fields}
        node = plan.source(
            path=table,
            table_id=str(opened.metadata.table_uuid),
            schema=schema,
            key=key,
            name=label,
            iceberg=plan.IcebergTable(address, present.model_dump_json(), ids),
        )
        return cls(spark, node)

    @property
    def schema(self) -> StructType:
        """The columns of this table, join or aggregate, with their types: the key, then the values.

        A target that ``refresh`` makes has these columns.

        See Also
        --------
        SnapshotTable.join : Describes the key of a join's result.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> orders.schema.simpleString()
        'struct<id:bigint,customer:string>'
        """
        return StructType([*self.plan.key.fields, *self.plan.values.fields])

    @validated
    def join(
        self,
        right: SnapshotTable,
        *,
        on: On | None = None,
        how: How = "inner",
        select: Selection | None = None,
        name: Text | None = None,
    ) -> SnapshotTable:
        """Join two tables: at any versions of them, the rows that match.

        Results are joined further in the same way.

        Parameters
        ----------
        right : SnapshotTable
            The right table.
        on : str, list of str or mapping of str to str, optional
            The columns of this table that equal the right key, in its order. A mapping
            pairs columns of this table with columns of the right table. By default the keys
            of both are equal, and have the same names. A null equals nothing.
        how : {"inner", "left", "right", "outer"}, default "inner"
            The rows to keep without a match: none, those of this table, those of the right
            one, or both.
        select : list of str, mapping or list of Column, optional
            The value columns of the result: names (``"left.x"``, ``"right.x"``, ``"x"``), a
            mapping of new names, or deterministic Spark expressions over the joined row. By
            default all value columns.
        name : str, optional
            The name of the join in errors. By default it is made of both tables' names.

        Returns
        -------
        SnapshotTable
            The join.

        Raises
        ------
        PlanError
            If a name is unknown, ambiguous or occurs twice, or if compared columns have
            different types. Also if ``on`` is left out and the keys have different names, or
            if two different tables have one name. Also if an expression in ``select`` does
            not resolve, depends on chance or the time, or has no active Spark session.

        See Also
        --------
        SnapshotTable.refresh : Write the join to a target.
        Table.join : Join tables in a streaming query.

        Notes
        -----
        The key of the result is this table's key if each of its rows has at most one
        result. That holds in two cases:

        - ``on`` has the whole right key, and right rows do not appear alone;
        - both keys are joined, column by column.

        Otherwise the key is both tables' keys, with the right columns named
        ``right_<column>``. Source: FLIP-486, "Future Work" (strong consistency, cascading
        joins).

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> named = orders.join(orders, how="left", select={"customer": "left.customer"})
        >>> named.schema.names
        ['id', 'customer']
        >>> pairs = orders.join(orders, on={"customer": "customer"}, select=["left.customer"])
        >>> pairs.schema.names
        ['id', 'right_id', 'customer']
        """
        node = plan.join(self.plan, right.plan, on=on, how=how, select=select, name=name)
        return SnapshotTable(self._session, node)

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedSnapshotTable:
        """Group the rows by columns, for ``agg``.

        Parameters
        ----------
        *columns : str
            The columns of the group, at least one. They become the key of the result of
            ``agg``.

        Returns
        -------
        GroupedSnapshotTable
            The groups. Call ``agg`` to make a table of them.

        Raises
        ------
        PlanError
            If an argument is not a text. ``agg`` refuses unknown and repeated columns, and no
            columns at all.

        See Also
        --------
        GroupedSnapshotTable.agg : Aggregate the groups.
        Table.group_by : Group the rows of a table in a streaming query.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> from pyspark.sql import functions as F
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> orders.group_by("customer").agg(orders=F.count("*"))
        SnapshotTable[aggregate of orders by customer; key customer]
          customer string, orders bigint
        """
        return GroupedSnapshotTable(self._session, self.plan, columns)

    @validated
    def refresh(
        self,
        target: Path | None = None,
        *,
        table: Text | None = None,
        catalog: GivenCatalog | None = None,
        max_versions: Positive | None = None,
        way: Way | None = None,
        rebuild: bool = False,
    ) -> list[Commit]:
        """Bring a target to the present versions of the sources, and return the commits made.

        The first call makes the target by a batch join. Later calls take the cheaper way.
        They merge what has changed: they read the change data feeds since the versions
        covered, and the other tables' rows with the same join keys. Or they compute the
        batch join again and overwrite the target.

        Parameters
        ----------
        target : str or path, optional
            The path of the target, a Delta table.
        table : str, optional
            The name of the target in a catalog. Give either ``target`` or ``table``.
        catalog : str or mapping of str to str, optional
            The catalog of an Iceberg table that is the target: its name in pyiceberg's
            configuration, or its properties. By default the target is a Delta table.
        max_versions : int, optional
            The number of versions of each source that a commit covers at most, so that a
            backlog comes in steps. By default one commit covers all. A batch join that makes
            or rebuilds the target always covers all.
        way : {"changes", "all"}, optional
            How an existing target is brought up to date: changed rows are merged, or all rows
            are written. By default each step takes the way with the lower estimate. It merges
            if the target has a change data feed, if a source or the target is an Iceberg
            table, and on Spark Connect.
        rebuild : bool, default False
            True to replace the target by a batch join in one commit, even if it is the target
            of another join. It is replaced even if no source has changed. A table that is no
            target is never overwritten.

        Returns
        -------
        list of Commit
            The commits in order, an empty list if no source has changed. ``covered`` has
            the version of each source by its name. ``changed`` is the number of changed
            rows, None after a batch join. ``way`` and ``reason`` say how the commit was
            made, and why.

        Raises
        ------
        ConfigurationError
            If a source has no change data feed, or if the session lacks Delta Lake and needs
            it. Also if a folder, a catalog or an Iceberg table cannot be reached.
        DataError
            If a key occurs twice in a source, or if all of its columns are null.
        TargetError
            If the target is of another join, or others have changed it. Also if another process
            refreshes it at the same time. Also if a source was replaced, lacks a column, has
            other types, or has lost its changes.
        PlanError
            If not exactly one of ``target`` and ``table`` is given, or if ``target`` is given
            with ``catalog``. Also if Iceberg does not store the type of a column.

        See Also
        --------
        SnapshotTable.maintain : Refresh again and again.
        SnapshotTable.commits : Return the commits of a target.

        Notes
        -----
        Rows and the versions that they cover are one commit, so a run that was killed is
        simply run again. Let one process at a time keep a target. The estimate takes
        the bytes of the sources and of their changes, the number of cores, and the times of
        earlier steps. Source: FLIP-486, "Future Work" (strong consistency, batch-stream fusion).

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> for commit in orders.refresh(f"{folder.name}/copy"):
        ...     print(commit.version, commit.covered, commit.way)
        0 {'orders': 0} all
        >>> orders.refresh(f"{folder.name}/copy")  # nothing has changed
        []
        """
        keeper = Refresher(self._session, self.plan, "refresh", target, table, catalog)
        return keeper.refresh(max_versions=max_versions, rebuild=rebuild, way=way)

    @validated
    def maintain(
        self,
        target: Path | None = None,
        *,
        table: Text | None = None,
        catalog: GivenCatalog | None = None,
        every: Span = "10 s",
        max_versions: Positive | None = None,
    ) -> NoReturn:
        """Call ``refresh`` again and again, until it fails or the process ends.

        Parameters
        ----------
        target : str or path, optional
            The path of the target, a Delta table.
        table : str, optional
            The name of the target in a catalog. Give either ``target`` or ``table``.
        catalog : str or mapping of str to str, optional
            The catalog of an Iceberg table that is the target: its name in pyiceberg's
            configuration, or its properties. By default the target is a Delta table.
        every : str or timedelta, default "10 s"
            The wait between the end of one refresh and the start of the next one.
        max_versions : int, optional
            The number of versions of each source that a commit covers at most. By default
            one commit covers all.

        Returns
        -------
        NoReturn
            The call never returns.

        Raises
        ------
        ConfigurationError
            If a source has no change data feed, or if something cannot be reached, as for
            ``refresh``.
        DataError
            If a key occurs twice in a source, or if all of its columns are null.
        TargetError
            If the target cannot be brought up to date, as for ``refresh``.
        PlanError
            If ``every`` is no span or is negative, or if ``refresh`` would refuse ``target``,
            ``table`` and ``catalog``.

        See Also
        --------
        SnapshotTable.refresh : Refresh once, for instance by a scheduler.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> orders.maintain(f"{folder.name}/copy", every="often")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        dovetail.errors.PlanError: maintain: every='often' is not a span of time. ...
        """
        interval_s = microseconds("maintain", "every=", every) / 1e6
        keeper = Refresher(self._session, self.plan, "maintain", target, table, catalog)
        while True:
            keeper.refresh(max_versions=max_versions, rebuild=False)
            sleep(interval_s)

    @validated
    def commits(
        self,
        target: Path | None = None,
        *,
        table: Text | None = None,
        catalog: GivenCatalog | None = None,
    ) -> list[Commit]:
        """Return the commits of a target that its history still has, the last one first.

        Parameters
        ----------
        target : str or path, optional
            The path of the target, a Delta table.
        table : str, optional
            The name of the target in a catalog. Give either ``target`` or ``table``.
        catalog : str or mapping of str to str, optional
            The catalog of an Iceberg table that is the target: its name in pyiceberg's
            configuration, or its properties. By default the target is a Delta table.

        Returns
        -------
        list of Commit
            The commits, with ``version``, ``way`` and ``covered``: the version of each source
            by its name. Those of other joins in the same target are among them. The list is
            empty for a table that no join has been written to.

        Raises
        ------
        PlanError
            If not exactly one of ``target`` and ``table`` is given, or if ``target`` is given
            with ``catalog``. Also if Iceberg does not store the type of a column.
        ConfigurationError
            If the session lacks Delta Lake, or if the target cannot be read.

        See Also
        --------
        SnapshotTable.refresh : Make a commit.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> commits = orders.refresh(f"{folder.name}/copy")
        >>> [(commit.version, commit.covered) for commit in orders.commits(f"{folder.name}/copy")]
        [(0, {'orders': 0})]
        """
        operator = f"target {target or table}"
        opened = target_of(self._session, self.plan, "commits", target, table, catalog)
        with convert_spark_errors("commits", f"{operator} cannot be read", _GIVE_A_TABLE):
            return list(opened.commits())

    @validated
    def to_batch(self, versions: Mapping[str, Version] | None = None) -> DataFrame:
        """Return the table, join or aggregate at the present versions of its sources, as a frame.

        Parameters
        ----------
        versions : mapping of str to int, optional
            Other versions, by the names of the sources. The version of an Iceberg table is the
            id of a snapshot, or 0 for the empty table. A source that is left out is at its
            present version.

        Returns
        -------
        DataFrame
            The key, then the values. The versions are those at the call, also if the frame is
            read later. Keys are not checked: a key that occurs twice in a source gives several
            rows.

        Raises
        ------
        PlanError
            If ``versions`` names an unknown table, or names one table twice with different
            versions.
        ConfigurationError
            If a table does not have the version, or cannot be read.
        TargetError
            If a table was replaced and ``versions`` leaves it out.

        See Also
        --------
        SnapshotTable.refresh : Keep the join in a Delta table.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> rows = spark.createDataFrame([(1, "ann"), (2, "bob")], "id long, customer string")
        >>> writer = rows.write.format("delta").option("delta.enableChangeDataFeed", "true")
        >>> writer.save(f"{folder.name}/orders")
        >>> orders = dt.SnapshotTable.from_delta(spark, f"{folder.name}/orders", key="id")
        >>> orders.to_batch({"orders": 0}).orderBy("id").collect()
        [Row(id=1, customer='ann'), Row(id=2, customer='bob')]
        """
        sources = plan.distinct_sources(self.plan)
        names = {source.name for source in sources}
        unknown = [name for name in versions or {} if name not in names]
        if unknown:
            raise PlanError(
                "to_batch",
                f"versions= names an unknown table {unknown[0]!r}",
                f"Known are {', '.join(sorted(names))}",
            )
        session = cloned_session(self._session)
        delta_tables.fail_on_bad_files(session)
        reader = VersionReader(session, self.plan, StoredFrames())
        chosen = _chosen_versions(sources, versions or {})
        for source in sources:
            if source.table_id not in chosen:
                chosen[source.table_id] = present_version(reader, source)
        with convert_spark_errors(
            "to_batch", "versions= cannot be read", "Give versions that the tables have"
        ):
            return reader.rows(self.plan, chosen)

    @property
    def _title(self) -> str:
        """The class, the name and the key as text, such as ``SnapshotTable[orders; key id]``."""
        return f"SnapshotTable[{self.plan.name}; key {', '.join(self.plan.key.names)}]"

    @property
    def _columns(self) -> list[tuple[str, str]]:
        """The name of each column with its type as text, key columns first."""
        fields = (*self.plan.key, *self.plan.values)
        return [(field.name, field.dataType.simpleString()) for field in fields]

    def __repr__(self) -> str:
        return columns_text(self._title, self._columns)

    def _repr_html_(self) -> str:
        return html_columns(self._title, self._columns, len(self.plan.key))


def _chosen_versions(
    sources: Sequence[plan.SnapshotSource], versions: Mapping[str, int]
) -> dict[str, int]:
    """Return the given version of each table, by its table id. Tables without a given version are
    left out.

    ``sources``: all of the plan. ``versions``: by the names of some sources; other names are
    ignored. Raises ``PlanError`` for two versions of one table, which sources of different names
    may read.
    """
    chosen: dict[str, int] = {}
    for source in sources:
        version = versions.get(source.name)
        if version is not None and chosen.setdefault(source.table_id, version) != version:
            raise PlanError(
                "to_batch",
                f"versions= has two versions of one table, which {source.name} reads, too",
                "Give one of them: all uses of a table share its version",
            )
    return chosen


class GroupedSnapshotTable:
    """The rows of a ``SnapshotTable`` in groups, made by its ``group_by``.

    See Also
    --------
    SnapshotTable.group_by : Group the rows of a table.
    GroupedTable : Groups of a table's rows in a streaming query.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = f"{folder.name}/orders"
    >>> columns = "(id BIGINT, customer STRING)"
    >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
    >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
    >>> groups = orders.group_by("customer")
    >>> groups.agg(first=F.min("id"), last=F.max("id")).schema.names
    ['customer', 'first', 'last']
    """

    def __init__(self, session: SparkSession, node: plan.SnapshotNode, by: tuple[str, ...]) -> None:
        self._session = session
        self._node = node
        self._by = by

    @validated
    def agg(self, **aggregates: Column) -> SnapshotTable:
        """Aggregate the groups: at any versions of the sources, a row per group.

        The result is joined, aggregated and kept in a target as any other table.

        Parameters
        ----------
        **aggregates : Column
            Spark's aggregates by the names of their result columns, such as
            ``total=F.sum("amount")``; at least one. They may name all columns of the table.

        Returns
        -------
        SnapshotTable
            The aggregate, whose key is the group columns. Rows with a null in one of them have
            no group.

        Raises
        ------
        PlanError
            If a group column is unknown, is named twice or has a type that cannot be a key.
            Also without a group column or an aggregate. Also if an aggregate does not resolve,
            or depends on the time of the moment or the user. Also if it has the name of a group
            column, or one that dovetail uses. Also without an active Spark session.

        See Also
        --------
        SnapshotTable.refresh : Write the aggregate to a target.
        GroupedTable.agg : Aggregate a table in a streaming query.

        Notes
        -----
        A step that merges changes reads all rows of the groups that have changed, and
        aggregates them anew. So any aggregate of Spark is exact. Those that depend on the
        order of rows, such as ``F.first``, take some order. Sums of floats may differ in their
        last digits. Source: FLIP-486, "Future Work" (strong consistency).

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> from pyspark.sql import functions as F
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/orders"
        >>> columns = "(id BIGINT, customer STRING, amount BIGINT)"
        >>> feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        >>> created = spark.sql(f"CREATE TABLE delta.`{path}` {columns} USING delta {feed}")
        >>> orders = dt.SnapshotTable.from_delta(spark, path, key="id")
        >>> totals = orders.group_by("customer").agg(total=F.sum("amount"))
        >>> totals
        SnapshotTable[aggregate of orders by customer; key customer]
          customer string, total bigint
        >>> totals.refresh(f"{folder.name}/totals")[0].version
        0
        """
        node = plan.aggregate(self._node, self._by, aggregates)
        return SnapshotTable(self._session, node)
