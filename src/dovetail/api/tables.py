"""Tables, streams and windowed tables, which users join, aggregate and select from.

The DSL checks arguments and builds plan nodes; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from dovetail.api.store_lookups import StoreLookups
from dovetail.api.table_methods import TableRows
from dovetail.api.topology import AWindowedTable, WindowedSide
from dovetail.base.hints import HintedGroups
from dovetail.base.validation import ColumnName, ColumnNames, Positive, Text, validated
from dovetail.laws.joins.stream_join import Unmatched
from dovetail.laws.joins.table_join import How
from dovetail.plan import views
from dovetail.plan.changelog_source import Given
from dovetail.plan.joins.delta_options import ADeltaJoin, DeltaJoinOptions, join_tables
from dovetail.plan.joins.join_call import JoinCall
from dovetail.plan.joins.join_keys import On, OnComputed
from dovetail.plan.joins.stream_join import AWithin, stream_join
from dovetail.plan.joins.stream_table_join import Load, stream_table_join
from dovetail.plan.joins.window_join import window_join
from dovetail.plan.nodes import Late, Node
from dovetail.plan.select import Selection
from dovetail.plan.transforms.aggregation import aggregation
from dovetail.plan.transforms.deduplicate import deduplicate
from dovetail.plan.transforms.to_changes import KINDS, ChangeNames, to_changes
from dovetail.plan.transforms.union import union
from dovetail.plan.transforms.unwindow import WindowMode, windows_as_stream, windows_as_table
from dovetail.plan.types.aggregates import AnAggregate
from dovetail.plan.types.spans import Span
from dovetail.plan.types.windows import SomeWindows, Windows
from dovetail.plan.views import Errors, Item, join_with_dead_letters


class Table(TableRows):
    """A table that changes: at any time, it has one row per key.

    Readers make tables (``from_changelog``, ``from_topic``, ``from_records``,
    ``from_delta``, ``from_static``), and so do joins and aggregates. A table is an
    immutable plan and holds no rows. It is equivalent to a Kafka Streams KTable.

    See Also
    --------
    Stream : Records in time, none of which replaces another.
    WindowedTable : Aggregates per key and window of time.
    table : A table that a test feeds by hand.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> orders
    Table[orders; key id]
      id bigint, amount bigint
    >>> driver = testing.Driver(orders)
    >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
    [<id=1: amount=40 @1>]
    >>> driver.pipe(orders, {"id": 1, "amount": 55}, timestamp=2)
    [<id=1: amount=55 @2>]
    >>> driver.table(orders)
    {1: {'amount': 55}}
    """

    @overload  # by key
    def join(
        self,
        right: Table,
        *,
        on: OnComputed | None = None,
        how: Literal["inner", "left", "outer"] | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        late: Late = "ignore",
        align: Span | None = None,
        name: Text | None = None,
    ) -> Table: ...

    @overload  # by foreign key
    def join(
        self,
        right: Table,
        *,
        on: OnComputed,
        how: How | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        spread: Positive | None = None,
        name: Text | None = None,
    ) -> Table: ...

    @overload  # by lookups, or in state if the options say so
    def join(
        self,
        right: Table,
        *,
        on: OnComputed | None = None,
        how: How | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        late: Late = "ignore",
        align: Span | None = None,
        spread: Positive | None = None,
        delta_join: ADeltaJoin,
        name: Text | None = None,
    ) -> Table: ...

    @overload
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        window_of: Given,
        name: Text | None = None,
    ) -> Table: ...

    @validated
    def join(
        self,
        right: Table | AWindowedTable,
        *,
        on: OnComputed | None = None,
        how: How | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        late: Late = "ignore",
        align: Span | None = None,
        spread: Positive | None = None,
        window_of: Given | None = None,
        delta_join: ADeltaJoin | None = None,
        name: Text | None = None,
    ) -> Table:
        """Join with another table; the result is a table that follows every change of either.

        The sides decide the way in which rows match:

        - **by key**: ``on`` names this table's key, or is left out. A left and a right row make
          one row.
        - **by foreign key**: ``on`` names other columns. Many left rows refer to one right row.
        - **by lookups**: both tables have stores of their rows (``with_lookup``). The join keeps
          no state.
        - **with a windowed table**: each row meets the window that begins at ``window_of``.

        Parameters
        ----------
        right : Table or WindowedTable
            The right side.
        on : str, Column, sequence or mapping, optional
            Columns of this table that equal the right side's key, in the key's order. By
            default both keys, which then have the same names. By foreign key, Spark
            expressions over this table's row are possible, too. A mapping pairs columns
            of this table with the columns of that key; by lookups, with any right
            columns that an index finds. With a windowed table, both keys. A null equals
            nothing.
        how : {"inner", "left", "right", "outer"}, optional
            The rows without a match that the result keeps, with nulls for the missing
            side: ``"inner"`` none, ``"left"`` the left ones, ``"right"`` the right ones,
            ``"outer"`` both. By default ``"inner"``. By key there is no ``"right"``. With
            a windowed table ``"left"`` is the only kind, and the default.
        select : sequence or mapping, optional
            The value columns of the result; by default all of both sides. An item is
            ``"left.x"``, ``"right.x"``, or ``"x"`` if only one side has the column. It
            may be a Spark expression over the joined row, such as
            ``F.col("left.x") + F.col("right.y")``. A mapping gives new names.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which an expression in ``select`` fails. ``"fail"``
            stops the query. ``"dead_letter"`` leaves the row out as if it had never come.
            The row is counted in the metric ``<name>.failed``, and becomes a dead letter
            (see ``dead_letters``).
        late : {"ignore", "history"}, default "ignore"
            By key only: the effect of a late record, one that is older than its key's
            latest version. Only tables read with ``versioned=`` have versions.
            ``"ignore"``: a late record emits nothing. ``"history"``, for two versioned
            tables: it emits the results that it changes, from its own time up to its
            key's next version. Such a result can only be written.
        align : str or timedelta, optional
            By key only: let rows that are ahead of the other side's stream time wait, in
            state. Stream time is the largest event time so far. Rows wait until the other
            side has caught up, or has brought nothing for this span by the clock. By
            default they do not wait.
        spread : int, optional
            By foreign key only, for ``"inner"`` and ``"left"``: the number of buckets over
            which the left rows of one right row are spread, at most those that the query
            has. Each right row is stored and sent to as many. It is for small right tables
            of which some rows have very many left rows. By default 1: one bucket, and so
            one task, has all left rows of a right row.
        window_of : str or Column, optional
            Only for a windowed table, and required there: the start of the window that a
            row meets. A timestamp column, or a Spark expression over the row. Any other time
            finds no window.
        delta_join : DeltaJoinOptions, optional
            The choice between lookups and state, made by ``dt.delta_join``. By default
            lookups, if both tables have lookup sources and no limitation of lookups is
            broken.
        name : str, optional
            The name of the join in errors and ``explain``. By default it is such as ``left
            join of orders and payments``.

        Returns
        -------
        Table
            The joined rows, under this table's key. By foreign key and by lookups,
            ``"right"`` and ``"outer"`` add the right key's columns to the key, as
            ``right_<column>``.

        Raises
        ------
        PlanError
            If an argument does not fit the sides, if types differ, or if a name is
            unknown or ambiguous. The message says what to write instead.

        See Also
        --------
        Stream.join : Join a stream's records with a table, a stream or a windowed table.
        WindowedTable.join : Join the windows of two windowed tables, or with a table.
        Table.with_lookup : Give a table the store in which joins look up its rows.
        delta_join : Choose between lookups and state.

        Notes
        -----
        *By key.* Each record of either table gives its own result. A result that ceases
        is deleted by a tombstone: a change with the key and no values. The timestamp of a
        result is the larger one of both rows. The record of an unversioned table replaces
        its key's row, whatever its time.

        *By foreign key.* The result has one row for each left row. A right record, also one
        that changes nothing, gives a result for each left row that refers to it. The result has
        the right record's timestamp. A
        left record's result has the larger timestamp of both rows. A left row whose
        foreign key is null, or names no row, has no match. The rows that ``"right"`` and
        ``"outer"`` keep alone are those to which no left row refers. The result's key
        then has both tables' key columns, and one table's are null. A left row for which
        an expression in ``on`` fails is left out. It is counted in the metric
        ``<left name>.failed``.

        *By lookups.* If ``on`` names the right table's key in full, the result has this
        table's key. ``"right"`` and ``"outer"`` add the right key's columns, unless both
        keys are joined. If ``on`` does not name the right key in full, the result has
        both keys.

        *With a windowed table.* Records of both sides give results. The window's columns
        are null if there is no such window, or if it is no longer kept.

        *With late="history".* Each result is stamped with the time from which it holds.
        So the last result of each key and time is the history of the join, whatever the
        order of arrival.

        Source: KIP-77 "KTable-KTable"; KIP-213; KIP-914; FLIP-486; spec/table_table,
        spec/foreign_key, spec/versioned.

        Examples
        --------
        By key, payments beside their orders:

        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> number, text = pa.int64(), pa.string()
        >>> schema = {"id": number, "customer": text, "at": pa.timestamp("us", "UTC")}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> payments = testing.table("payments", key="id", schema={"id": number, "paid": number})
        >>> paid = orders.join(payments, how="left", select=["customer", "paid"])
        >>> driver = testing.Driver(paid)
        >>> driver.pipe(orders, {"id": 1, "customer": "ann"}, timestamp=1)
        [<id=1: customer='ann', paid=None @1>]
        >>> driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
        [<id=1: customer='ann', paid=15 @2>]
        >>> driver.pipe(orders, {"id": 1}, timestamp=3, deleted=True)
        [<id=1: deleted @3>]

        By foreign key, a customer beside each of the customer's orders:

        >>> customers = testing.table("customers", key="name", schema={"name": text, "city": text})
        >>> driver = testing.Driver(orders.join(customers, on="customer", select=["city"]))
        >>> driver.pipe(orders, {"id": 1, "customer": "ann"}, timestamp=1)
        []
        >>> driver.pipe(orders, {"id": 2, "customer": "ann"}, timestamp=1)
        []
        >>> driver.pipe(customers, {"name": "ann", "city": "Oslo"}, timestamp=2)
        [<id=1: city='Oslo' @2>, <id=2: city='Oslo' @2>]

        With a windowed table, each order beside the clicks on it within the hour of ``at``:

        >>> clicks = testing.stream("clicks", key="id", schema={"id": number})
        >>> windows = dt.windows.tumbling("1 hour")
        >>> hourly = clicks.group_by("id").window(windows).agg(clicks=dt.count())
        >>> driver = testing.Driver(orders.join(hourly, window_of="at", select=["clicks"]))
        >>> driver.pipe(orders, {"id": 1, "at": 0}, timestamp=1)
        [<id=1: clicks=None @1>]
        >>> driver.pipe(clicks, {"id": 1}, timestamp=2)
        [<id=1: clicks=1 @2>]

        By foreign key, the orders of a customer with very many spread over four buckets. The
        results are the same:

        >>> spread = orders.join(customers, on="customer", select=["city"], spread=4)
        >>> driver = testing.Driver(spread, buckets=4)
        >>> driver.pipe(orders, [{"id": n, "customer": "ann"} for n in (1, 2, 3)], timestamp=1)
        []
        >>> found = driver.pipe(customers, {"name": "ann", "city": "Oslo"}, timestamp=2)
        >>> sorted(str(change) for change in found)
        ["<id=1: city='Oslo' @2>", "<id=2: city='Oslo' @2>", "<id=3: city='Oslo' @2>"]

        By lookups in a database, without state:

        >>> left, right = (
        ...     table.with_lookup(dt.lookups.sqlite("shop.db", name, key="id"))
        ...     for table, name in ((orders, "orders"), (payments, "payments"))
        ... )
        >>> left.join(right, how="left", delta_join=dt.delta_join(strategy="force"))
        Table[left join of orders and payments; key id]
          id bigint, customer string, at timestamp, paid bigint
        """
        call = JoinCall(self.plan, right.plan, on, how, select, align, name, spread=spread)
        if isinstance(right, WindowedSide):
            changes = {"late": None if late == "ignore" else late, "spread": spread}
            others = {**changes, "delta_join": delta_join}
            return Table(
                join_with_dead_letters(
                    window_join(call, window_of=window_of, others=others), errors
                )
            )
        call.refuse({"window_of": window_of}, "is for a windowed table")
        return Table(
            join_with_dead_letters(
                join_tables(call, late, delta_join or DeltaJoinOptions()), errors
            )
        )

    @validated
    def union(self, *tables: Table, source: Text, name: Text | None = None) -> Table:
        """Unite the rows of this table and others, side by side.

        Parameters
        ----------
        *tables : Table
            The other tables, at least one, with the same key columns in the same order and
            the same value columns in any order.
        source : str
            The name of a further key column. It has the name of the table that a row is
            from, so rows of two tables never share a key.
        name : str, optional
            The name of the union in errors and ``explain``. By default it is ``union of`` and
            the names of the tables.

        Returns
        -------
        Table
            The rows of all tables. The names in ``source`` are those given to the
            readers; a join has its name in errors.

        Raises
        ------
        PlanError
            If no other table is given, or if columns differ. If ``source`` is reserved or the
            name of another column, or if two tables have one name. Also for a join of
            histories (``late="history"``).

        See Also
        --------
        Stream.union : Unite the records of several streams.
        Table.join : Put columns of two tables beside each other.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> shop = testing.table("shop", key="id", schema=schema)
        >>> web = testing.table("web", key="id", schema=schema)
        >>> driver = testing.Driver(shop.union(web, source="channel"))
        >>> driver.pipe(shop, {"id": 1, "amount": 40}, timestamp=1)
        [<id=1, channel='shop': amount=40 @1>]
        >>> driver.pipe(web, {"id": 1, "amount": 15}, timestamp=2)
        [<id=1, channel='web': amount=15 @2>]
        """
        return Table(union([self.plan, *(table.plan for table in tables)], name, source))

    def to_stream(self) -> Stream:
        """Read the table's changes as a stream of records.

        Returns
        -------
        Stream
            A record for each change, under the table's key. A deleted row is a record
            without a value, which joins and aggregates of the stream drop. Late rows of a
            versioned table are left out.

        Raises
        ------
        PlanError
            For a join with ``late="history"``, whose result is no table of current rows.

        See Also
        --------
        Table.to_changes : The rows before and after each change, as records.
        Stream.to_table : The latest record of each key, as a table.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders.to_stream())
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        [<id=1: amount=40 @1>]
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=2)
        [<id=1: amount=40 @2>]
        >>> changes = driver.pipe(orders, {"id": 1}, timestamp=3, deleted=True)
        >>> [change.change for change in changes]
        ['delete']
        """
        return Stream(views.changes_as_stream(self.plan))

    @validated
    def to_changes(self, *, column: Text = "kind", kinds: ChangeNames = KINDS) -> Stream:
        """Read the table's real changes as a stream: the rows before and after each change.

        Audit trails and ledgers need both rows, and so do sinks that must take back what
        they have added.

        Parameters
        ----------
        column : str, default "kind"
            The name of a further value column with the kind of the record.
        kinds : sequence of str, default ("insert", "update_before", "update_after", "delete")
            Four different words: for a new row, a replaced one, its replacement and a
            deleted one. Flink's are ``("+I", "-U", "+U", "-D")``.

        Returns
        -------
        Stream
            One or two records for each change, both under the time of the change. The record
            of a deleted row has that row's values. Late rows of a versioned table give none.

        Raises
        ------
        PlanError
            If ``column`` is reserved or the name of another column, or if ``kinds`` are not
            four different words. Also for a join with ``late="history"``.

        See Also
        --------
        Table.to_stream : One record for each change.
        Table.materialize : The table without records that change nothing.

        Notes
        -----
        A record that leaves the row as it was is no change, whatever its time; 0.0 and -0.0
        differ. A delete of a key without a row is none either. The table's last rows are kept
        in state.

        Source: spec/view/changes.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "state": pa.string()}
        >>> doors = testing.table("doors", key="id", schema=schema)
        >>> driver = testing.Driver(doors.to_changes())
        >>> driver.pipe(doors, {"id": 1, "state": "open"}, timestamp=1)
        [<id=1: state='open', kind='insert' @1>]
        >>> for change in driver.pipe(doors, {"id": 1, "state": "shut"}, timestamp=2):
        ...     print(change)
        <id=1: state='open', kind='update_before' @2>
        <id=1: state='shut', kind='update_after' @2>
        >>> driver.pipe(doors, {"id": 1, "state": "shut"}, timestamp=3)
        []
        """
        return Stream(to_changes(self.plan, column, kinds))

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedTable:
        """Group the table's rows by other columns than its key, for ``agg``.

        Parameters
        ----------
        *columns : str
            The columns of the group, at least one. They become the key of the result of
            ``agg``.

        Returns
        -------
        GroupedTable
            The groups. Call ``agg`` to make a table of them.

        Raises
        ------
        PlanError
            If an argument is not a text. ``agg`` refuses unknown and repeated columns, and no
            columns at all.

        See Also
        --------
        GroupedTable.agg : Aggregate the groups.
        Stream.group_by : Group the records of a stream.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "city": pa.string()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> orders.group_by("city").agg(orders=dt.count())
        Table[aggregate of orders by city; key city]
          city string, orders bigint
        """
        return GroupedTable(self.plan, columns)


class GroupedTable(HintedGroups):
    """A table's rows in groups, made by ``Table.group_by``.

    See Also
    --------
    Table.group_by : Group the rows of a table.
    GroupedStream : Groups of a stream's records.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> groups = orders.group_by("city")
    >>> groups.agg(orders=dt.count(), ids=dt.collect_set("id"))
    Table[aggregate of orders by city; key city]
      city string, orders bigint, ids array<bigint>
    """

    def __init__(self, plan: Node, by: Sequence[str]) -> None:
        self._plan = plan
        self._by = by

    @validated
    def agg(self, **aggregates: AnAggregate) -> Table:
        """Aggregate the groups; the result is a table of one row per group.

        At any time, the result has the aggregates of the rows that the table has.

        Parameters
        ----------
        **aggregates : AggregateCall
            The aggregates by the names of their result columns, such as ``n=dt.count()``;
            at least one.

        Returns
        -------
        Table
            A row for each group that has rows, keyed by the grouping columns.

        Raises
        ------
        PlanError
            If a column is unknown, or if an aggregate does not take its type. If an
            aggregate cannot take rows back, such as ``dt.first`` and ``dt.last``. If no column
            or no aggregate is given, if a result has the name of a grouping column, or if that
            cannot be a key.

        See Also
        --------
        GroupedStream.agg : Aggregate a stream's records.
        aggregate : Make an aggregate from functions over Arrow columns.

        Notes
        -----
        A record that changes a row takes the old row out of its group and puts the new
        row into its group. These are two results, or one result if both are the same
        group. A group without rows is deleted by a tombstone: a change with the key and
        no values. A row with a null among the columns is in no group, and is counted in
        the metric ``<table>.null_group``. The timestamp of a result is the largest one of
        the records that changed the group since it last had no rows.

        Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "city": pa.string()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders.group_by("city").agg(orders=dt.count()))
        >>> driver.pipe(orders, {"id": 1, "city": "Oslo"}, timestamp=1)
        [<city='Oslo': orders=1 @1>]
        >>> driver.pipe(orders, {"id": 1, "city": "Rome"}, timestamp=2)
        [<city='Oslo': deleted @2>, <city='Rome': orders=1 @2>]
        """
        return Table(aggregation(self._plan, self._by, aggregates, None))


class Stream(StoreLookups):
    """Keyed records in time, none of which replaces another.

    Readers make streams (``from_changelog``, ``from_topic``, ``from_records``), and so do
    joins, ``Table.to_stream`` and ``Table.to_changes``. With ``from_changelog``,
    ``deleted`` is true for a record without a value, which joins ignore. A stream is an
    immutable plan and holds no records. It is equivalent to a Kafka Streams KStream.

    See Also
    --------
    Table : The latest row of each key.
    stream : A stream that a test feeds by hand.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "page": pa.string()}
    >>> clicks = testing.stream("clicks", key="id", schema=schema)
    >>> clicks
    Stream[clicks; key id]
      id bigint, page string
    >>> driver = testing.Driver(clicks.rename({"page": "path"}))
    >>> driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=1)
    [<id=1: path='home' @1>]
    """

    _stream = True

    @overload
    def join(
        self,
        right: Table,
        *,
        on: On | None = None,
        how: Literal["inner", "left"] | None = None,
        grace: Span | None = None,
        load: Load | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        align: Span | None = None,
        name: Text | None = None,
    ) -> Stream: ...

    @overload
    def join(
        self,
        right: Stream,
        *,
        on: On | None = None,
        how: Literal["inner", "left", "outer"] | None = None,
        within: AWithin,
        unmatched: Unmatched = "on_close",
        select: Selection | None = None,
        errors: Errors = "fail",
        align: Span | None = None,
        name: Text | None = None,
    ) -> Stream: ...

    @overload
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        window_of: Given,
        name: Text | None = None,
    ) -> Stream: ...

    @validated
    def join(
        self,
        right: Table | Stream | AWindowedTable,
        *,
        on: On | None = None,
        how: How | None = None,
        within: AWithin | None = None,
        unmatched: Unmatched = "on_close",
        grace: Span | None = None,
        load: Load | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        align: Span | None = None,
        window_of: Given | None = None,
        name: Text | None = None,
    ) -> Stream:
        """Join with a table, with a stream within a window of time, or with a windowed table.

        The right side decides what the records of this stream meet:

        - **a table**: the row of the table as the record is processed. Only this stream's records
          give results. If the table is versioned, the row is that of the record's own time: a
          version holds from its own time, inclusive, to that of the next one, exclusive.
        - **a stream**: the records of the other stream whose times are within ``within``.
        - **a windowed table**: the window that begins at ``window_of``.

        Parameters
        ----------
        right : Table, Stream or WindowedTable
            The right side.
        on : str, sequence or mapping, optional
            Columns of this stream that equal the right side's key, in the key's order. By
            default both keys, which then have the same names. A mapping pairs this
            stream's columns with those of that key. With streams and windowed tables,
            both whole keys are joined; of a windowed table the key without its window. A
            null equals nothing.
        how : {"inner", "left", "right", "outer"}, optional
            The records without a match that come out, with nulls for the missing side:
            ``"inner"`` none, ``"left"`` those of this stream, ``"outer"`` those of both
            streams. By default ``"inner"``. ``"outer"`` is for two streams; ``"right"``
            is refused. With a windowed table ``"left"`` is the only kind, and the
            default.
        within : Within, optional
            Only for two streams, and required there: the window, made by ``dt.within``.
        unmatched : {"on_close", "eager", "retract"}, default "on_close"
            Only for two streams: the time at which a record comes out that ``how`` keeps
            without a match. ``"on_close"``: once its window and grace period have passed
            in stream time. ``"eager"``: at once. ``"retract"``: at once, and withdrawn by
            a ``delete`` when a match comes; such a result can only be written. Stream
            time is the largest event time so far.
        grace : str or timedelta, optional
            Only for versioned tables: a record waits until stream time has passed the
            record's time by this span. The table's history must be at least as long. By
            default no wait.
        load : {"first"}, optional
            Only for tables: ``"first"`` lets the records wait, in their source, until the
            table has been read to the end that it had when the query began. By default
            both are read side by side.
        select : sequence or mapping, optional
            The value columns of the result; by default all of both sides. An item is
            ``"left.x"``, ``"right.x"``, or ``"x"`` if only one side has the column. It
            may be a Spark expression over the joined row, such as
            ``F.col("left.x") + F.col("right.y")``. A mapping gives new names.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which an expression in ``select`` fails. ``"fail"``
            stops the query. ``"dead_letter"`` leaves the row out as if it had never come.
            The row is counted in the metric ``<name>.failed``, and becomes a dead letter
            (see ``dead_letters``).
        align : str or timedelta, optional
            Let rows that are ahead of the other side's stream time wait, in state. They
            wait until the other side has caught up, or has brought nothing for this span
            by the clock. By default they do not wait. Not for windowed tables. With ``grace``,
            records wait for both.
        window_of : str or Column, optional
            Only for a windowed table, and required there: the start of the window that a
            record meets. A timestamp column, or a Spark expression over the record. Any other
            time finds no window.
        name : str, optional
            The name of the join in errors and ``explain``. By default it is such as ``left
            join of clicks and users``.

        Returns
        -------
        Stream
            The joined records, under this stream's key. A record's time is its event
            time; of a pair of two streams' records, the larger of both.

        Raises
        ------
        PlanError
            If an argument does not fit the sides, if types differ, or if a name is
            unknown or ambiguous. The message says what to write instead.

        See Also
        --------
        Table.join : Join two tables.
        Stream.lookup : Join with a store that has no changelog.
        within : The window of a join of two streams.

        Notes
        -----
        *With a table.* A record older than a versioned table's whole history finds no
        row, unless its key's latest version is older still. With ``grace``, records come
        out in order of time; a record that is later than the grace period comes out at
        once.

        *With a stream.* A pair is emitted once, when its second record arrives. With
        ``unmatched="on_close"``, a record that has come out without a match joins nothing
        after that.

        *With a windowed table.* A record meets the window as it stands when the record
        comes. Its columns are null if there is no such window, or if it is no longer
        kept.

        *Nulls.* A record with a null in its key or in ``on`` matches nothing. It comes
        out at once if ``how`` keeps it; otherwise it is dropped and counted in the metric
        ``<stream>.dropped``. A record without a value is always dropped and counted.

        *Loading.* With ``load="first"``, all inputs but the waiting streams are read first, in
        micro-batches of the sizes that their readers set. A batch run takes the table's rows
        before the stream's. A test driver takes records as they are piped.

        *Replays.* With ``align``, a replay gives what the live run gave. With
        ``trigger={"availableNow": True}``, rows that wait at the end of the data wait for the next
        run. With ``close_at_end=True`` besides, they come out.

        Source: KIP-77; KIP-914; Kafka Streams join design; spec/stream_table, spec/stream_stream,
        spec/windowed.

        Examples
        --------
        With a table, as it stands when a click comes:

        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "user": pa.string(), "at": pa.timestamp("us", "UTC")}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> schema = {"user": pa.string(), "plan": pa.string()}
        >>> users = testing.table("users", key="user", schema=schema)
        >>> driver = testing.Driver(clicks.join(users, on="user", how="left", select=["plan"]))
        >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
        [<id=1: plan=None @1>]
        >>> driver.pipe(users, {"user": "ann", "plan": "free"}, timestamp=2)
        []
        >>> driver.pipe(clicks, {"id": 2, "user": "ann"}, timestamp=3)
        [<id=2: plan='free' @3>]

        With a versioned table, as it was at the time of the click:

        >>> past = testing.table("past", key="user", schema=schema, versioned="7 days")
        >>> driver = testing.Driver(clicks.join(past, on="user", select=["plan"]))
        >>> driver.pipe(past, {"user": "ann", "plan": "free"}, timestamp=10)
        []
        >>> driver.pipe(past, {"user": "ann", "plan": "paid"}, timestamp=20)
        []
        >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=15)
        [<id=1: plan='free' @15>]

        With a stream, within a window of time:

        >>> schema = {"id": pa.int64(), "status": pa.int64()}
        >>> replies = testing.stream("replies", key="id", schema=schema)
        >>> within = dt.within(after="10 us")
        >>> answered = clicks.join(replies, how="left", within=within, select=["status"])
        >>> driver = testing.Driver(answered)
        >>> driver.pipe(clicks, [{"id": 1, "user": "ann"}, {"id": 2, "user": "bob"}], timestamp=1)
        []
        >>> driver.pipe(replies, {"id": 1, "status": 200}, timestamp=5)
        [<id=1: status=200 @5>]
        >>> driver.advance_stream_time(12)
        [<id=2: status=None @1>]

        With a windowed table, the hour that ``at`` names:

        >>> sales = testing.stream("sales", key="id", schema={"id": pa.int64()})
        >>> windows = dt.windows.tumbling("1 hour")
        >>> hourly = sales.group_by("id").window(windows).agg(sales=dt.count())
        >>> driver = testing.Driver(clicks.join(hourly, window_of="at", select=["sales"]))
        >>> driver.pipe(sales, {"id": 1}, timestamp=1)
        []
        >>> driver.pipe(clicks, {"id": 1, "at": 0}, timestamp=2)
        [<id=1: sales=1 @2>]
        """
        call = JoinCall(self.plan, right.plan, on, how, select, align, name)
        two = {"within": within, "unmatched": None if unmatched == "on_close" else unmatched}
        if isinstance(right, WindowedSide):
            others = {"grace": grace, "load": load, **two}
            return Stream(
                join_with_dead_letters(
                    window_join(call, window_of=window_of, others=others), errors
                )
            )
        call.refuse({"window_of": window_of}, "is for a windowed table")
        if isinstance(right, Stream):
            remedy = "A grace period of two streams belongs into within="
            call.refuse({"grace": grace}, "is for joins with a table", remedy)
            call.refuse({"load": load}, "is for joins with a table")
            return Stream(join_with_dead_letters(stream_join(call, within, unmatched), errors))
        call.refuse(two, "is for joins of two streams")
        return Stream(join_with_dead_letters(stream_table_join(call, grace, load), errors))

    @validated
    def to_table(self) -> Table:
        """Read the stream as a table, in which each record replaces the one before it of its key.

        Returns
        -------
        Table
            The latest record of each key. A record without a value deletes its key's row.
            A record with a null in its key is dropped and counted in the metric
            ``<stream>.dropped``.

        Raises
        ------
        PlanError
            If the stream withdraws rows, as a join with ``unmatched="retract"`` does.

        See Also
        --------
        Table.to_stream : The changes of a table, as a stream.
        Stream.deduplicate : The first record of each key within a span of time.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> latest = clicks.to_table()
        >>> driver = testing.Driver(latest)
        >>> driver.pipe(clicks, [{"id": 1, "page": "home"}, {"id": 1, "page": "help"}], timestamp=1)
        [<id=1: page='home' @1>, <id=1: page='help' @1>]
        >>> driver.table(latest)
        {1: {'page': 'help'}}
        """
        return Table(views.last_records_as_table(self.plan))

    @validated
    def key_by(self, *columns: ColumnName, errors: Errors = "fail", **named: Item) -> Stream:
        """Return the records under another key.

        Parameters
        ----------
        *columns : str
            Columns that become the key, in this order.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a record on which an expression fails. ``"fail"`` stops the
            query. ``"dead_letter"`` leaves the record out as if it had never come. The
            record is counted in the metric ``<name>.failed``, and becomes a dead letter
            (see ``dead_letters``).
        **named : str or Column
            Further key columns by their names, after ``columns``: a column under a new name,
            or a Spark expression.

        Returns
        -------
        Stream
            The same records, also those with a null in the new key. The columns of the
            former key that are not in the new one are values. A record without a value has
            nulls in the new key columns that were values.

        Raises
        ------
        PlanError
            If no column is named, if one is named twice, or if a name is unknown. If a type
            cannot be a key, or if an expression is random. Also for a stream that withdraws
            rows (``unmatched="retract"``).

        See Also
        --------
        Table.key_by : Give a table another key.
        Stream.group_by : Group records without changing their key.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "user": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> driver = testing.Driver(clicks.key_by(name="user"))
        >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
        [<name='ann': id=1 @1>]
        """
        return Stream(views.rows_under_key(self.plan, columns, named, errors))

    @validated
    def union(self, *streams: Stream, name: Text | None = None) -> Stream:
        """Unite the records of this stream and others, in the order of arrival.

        Parameters
        ----------
        *streams : Stream
            The other streams, at least one, with the same key columns in the same order and
            the same value columns in any order.
        name : str, optional
            The name of the union in errors and ``explain``.

        Returns
        -------
        Stream
            The records of all streams, under their key. Its stream time, the largest event
            time so far, is that of all of them. Without ``name``, its name is ``union of``
            and theirs.

        Raises
        ------
        PlanError
            If no other stream is given, if one is given twice, or if columns differ. If a
            stream withdraws rows, as a join with ``unmatched="retract"`` does.

        See Also
        --------
        Table.union : Unite the rows of several tables.

        Notes
        -----
        Source: Kafka Streams, ``merge``.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> sales = testing.stream("sales", key="id", schema=schema)
        >>> returns = testing.stream("returns", key="id", schema=schema)
        >>> driver = testing.Driver(sales.union(returns))
        >>> driver.pipe(sales, {"id": 1, "amount": 5}, timestamp=1)
        [<id=1: amount=5 @1>]
        >>> driver.pipe(returns, {"id": 1, "amount": -5}, timestamp=2)
        [<id=1: amount=-5 @2>]
        """
        return Stream(union([self.plan, *(stream.plan for stream in streams)], name))

    @validated
    def deduplicate(self, *, within: Span) -> Stream:
        """Leave out the records that repeat another record of their key.

        Records repeat each other by their key. ``key_by`` gives them the key that
        identifies them.

        Parameters
        ----------
        within : str or timedelta
            The largest distance in event time, to either side, at which a record repeats
            one of its key that came out before.

        Returns
        -------
        Stream
            The first record of each key to arrive, at once. The others come out if they
            are further than ``within`` from each record of the key that came out.

        Raises
        ------
        PlanError
            If ``within`` is no span of time or negative, or if the stream withdraws rows, as a
            join with ``unmatched="retract"`` does.

        See Also
        --------
        Stream.to_table : The latest record of each key.
        Stream.key_by : Give records the key that identifies them.

        Notes
        -----
        The metric ``<name>.repeated`` counts the records that repeat another. A record
        that is further than ``within`` behind stream time, the largest event time so far,
        is left out, too: the record that it repeats may be forgotten. The metric
        ``<name>.late`` counts it. A record without a value is dropped and counted in
        ``<name>.dropped``. A record with a null in its key comes out.

        Source: spec/view.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> driver = testing.Driver(clicks.deduplicate(within="10 us"))
        >>> driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=1)
        [<id=1: page='home' @1>]
        >>> driver.pipe(clicks, {"id": 1, "page": "again"}, timestamp=11)
        []
        >>> driver.pipe(clicks, {"id": 1, "page": "later"}, timestamp=12)
        [<id=1: page='later' @12>]
        """
        return Stream(deduplicate(self.plan, within))

    @validated
    def explode(self, column: ColumnName) -> Stream:
        """Make a record of each element of an array, in the array's order.

        Parameters
        ----------
        column : str
            The array, a value column. The element takes its place.

        Returns
        -------
        Stream
            A record for each element, under the key and the time of its record. A null
            element gives a record with null. A record whose array is null or empty gives
            none, and neither does a record without a value.

        Raises
        ------
        PlanError
            If the column is unknown, a key column, or no array. Also for a stream that
            withdraws rows (``unmatched="retract"``).

        See Also
        --------
        Table.explode : Make a row of each element of an array.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "words": pa.list_(pa.string())}
        >>> posts = testing.stream("posts", key="id", schema=schema)
        >>> driver = testing.Driver(posts.explode("words"))
        >>> driver.pipe(posts, {"id": 1, "words": ["so", "so"]}, timestamp=1)
        [<id=1: words='so' @1>, <id=1: words='so' @1>]
        >>> driver.pipe(posts, {"id": 2, "words": []}, timestamp=2)
        []
        """
        return Stream(views.explode_records(self.plan, column))

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedStream:
        """Group the stream's records by columns, for ``agg``.

        The groups are aggregated over all time or, with ``window``, by windows of time.

        Parameters
        ----------
        *columns : str
            The columns of the group, at least one. They become the key of the result of
            ``agg``.

        Returns
        -------
        GroupedStream
            The groups. Call ``agg`` to make a table of them, or ``window`` first.

        Raises
        ------
        PlanError
            If an argument is not a text. ``agg`` refuses unknown and repeated columns, and no
            columns at all.

        See Also
        --------
        GroupedStream.agg : Aggregate the groups over all time.
        GroupedStream.window : Aggregate the groups by windows of time.
        Table.group_by : Group the rows of a table.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> clicks.group_by("page").agg(clicks=dt.count())
        Table[aggregate of clicks by page; key page]
          page string, clicks bigint
        """
        return GroupedStream(self.plan, columns)


class GroupedStream(HintedGroups):
    """A stream's records in groups, made by ``Stream.group_by``.

    See Also
    --------
    Stream.group_by : Group the records of a stream.
    WindowedStream : The groups by windows of time.
    GroupedTable : Groups of a table's rows.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "page": pa.string()}
    >>> clicks = testing.stream("clicks", key="id", schema=schema)
    >>> groups = clicks.group_by("page")
    >>> groups.agg(clicks=dt.count(), last=dt.last("id"))
    Table[aggregate of clicks by page; key page]
      page string, clicks bigint, last bigint
    """

    def __init__(self, plan: Node, by: Sequence[str]) -> None:
        self._plan = plan
        self._by = by

    @validated
    def agg(self, **aggregates: AnAggregate) -> Table:
        """Aggregate all records of each group; the result is a table of one row per group.

        Parameters
        ----------
        **aggregates : AggregateCall
            The aggregates by the names of their result columns, such as ``n=dt.count()``;
            at least one.

        Returns
        -------
        Table
            A row for each group, keyed by the grouping columns.

        Raises
        ------
        PlanError
            If a column is unknown, or if an aggregate does not take the type of its column. If
            no column or no aggregate is given, if a result has the name of a grouping column,
            or if that cannot be a key. If the stream withdraws rows, as a join with
            ``unmatched="retract"`` does.

        See Also
        --------
        WindowedStream.agg : Aggregate by windows of time.
        GroupedTable.agg : Aggregate a table's rows, which may change.

        Notes
        -----
        Each record gives a result, under the largest timestamp of its group. A record
        with a null among the columns, or without a value, is dropped and counted in the
        metric ``<stream>.dropped``.

        Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> driver = testing.Driver(clicks.group_by("page").agg(clicks=dt.count()))
        >>> driver.pipe(clicks, [{"id": 1, "page": "home"}, {"id": 2, "page": "home"}], timestamp=1)
        [<page='home': clicks=1 @1>, <page='home': clicks=2 @1>]
        >>> driver.pipe(clicks, {"id": 3}, timestamp=2)
        []
        """
        return Table(aggregation(self._plan, self._by, aggregates, None))

    @validated
    def window(self, windows: SomeWindows) -> WindowedStream:
        """Group the records by windows of time, too.

        Parameters
        ----------
        windows : Windows
            The windows, made by ``dt.windows.tumbling``, ``hopping``, ``sliding`` or
            ``dt.windows.session``.

        Returns
        -------
        WindowedStream
            The groups by window. Call ``agg`` to make a windowed table of them.

        Raises
        ------
        PlanError
            If the argument is no description of windows.

        See Also
        --------
        WindowedStream.agg : Aggregate the groups of each window.
        tumbling : Windows side by side.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> hourly = clicks.group_by("page").window(dt.windows.tumbling("1 hour"))
        >>> hourly.agg(clicks=dt.count())
        WindowedTable[aggregate of clicks by page; key page, window_start, window_end]
          page string, window_start timestamp, window_end timestamp, clicks bigint
        """
        return WindowedStream(self._plan, self._by, windows)


class WindowedStream(HintedGroups):
    """A stream's records in groups and windows of time, made by ``GroupedStream.window``.

    See Also
    --------
    GroupedStream.window : Group records by windows of time.
    WindowedTable : The aggregates of the groups.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "page": pa.string()}
    >>> clicks = testing.stream("clicks", key="id", schema=schema)
    >>> sessions = clicks.group_by("page").window(dt.windows.session("30 min"))
    >>> sessions.agg(clicks=dt.count())
    WindowedTable[aggregate of clicks by page; key page, window_start, window_end]
      page string, window_start timestamp, window_end timestamp, clicks bigint
    """

    def __init__(self, plan: Node, by: Sequence[str], windows: Windows) -> None:
        self._plan = plan
        self._by = by
        self._windows = windows

    @validated
    def agg(self, **aggregates: AnAggregate) -> WindowedTable:
        """Aggregate the groups of each window; the result has one row per group and window.

        Parameters
        ----------
        **aggregates : AggregateCall
            The aggregates by the names of their result columns, such as ``n=dt.count()``;
            at least one.

        Returns
        -------
        WindowedTable
            A row for each group and window that has records. Its key is the grouping
            columns, ``window_start`` and ``window_end``.

        Raises
        ------
        PlanError
            If a column is unknown, or if an aggregate does not take the type of its column. If
            no column or no aggregate is given, if a result has the name of a grouping column,
            or if that cannot be a key. If a column has the name ``window_start`` or
            ``window_end``, or if the stream withdraws rows (``unmatched="retract"``).

        See Also
        --------
        GroupedStream.agg : Aggregate over all time.
        WindowedTable.to_table : Read the result as a table.

        Notes
        -----
        Each record gives a result for each of its windows. A window is closed once stream
        time, the largest event time so far, has reached its end and its grace period. A
        record that comes for a closed window is left out of that window, and counted in
        the metric ``<stream>.late``. A record with a null among the columns, or without a
        value, is dropped and counted in ``<stream>.dropped``.

        The timestamp of a result is the largest one of the window's records so far. A record
        may make a session longer, or join several: their rows are deleted by tombstones, each
        under its former timestamp, before the longer session's row comes.

        Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> windows = dt.windows.tumbling("10 us")
        >>> counts = clicks.group_by("page").window(windows).agg(clicks=dt.count())
        >>> driver = testing.Driver(counts.to_table())
        >>> changes = driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=5)
        >>> changes += driver.pipe(clicks, {"id": 2, "page": "home"}, timestamp=12)
        >>> [(change.key["window_start"].microsecond, change.values) for change in changes]
        [(0, {'clicks': 1}), (10, {'clicks': 1})]
        >>> driver.pipe(clicks, {"id": 3, "page": "home"}, timestamp=9)
        []
        >>> driver.counts
        {'clicks.late': 1}
        """
        return WindowedTable(aggregation(self._plan, self._by, aggregates, self._windows))


class WindowedTable(WindowedSide):
    """A table whose rows belong to a key and a window of time.

    ``WindowedStream.agg`` makes windowed tables, and so do their joins. The key ends with
    the columns ``window_start`` and ``window_end``. A windowed table is joined by the key
    before them, without a shuffle. It is not written itself: ``to_table`` and
    ``to_stream`` make a table or a stream of it. It is equivalent to a windowed KTable of
    Kafka Streams.

    See Also
    --------
    WindowedStream.agg : Make a windowed table.
    Table : A table without windows.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "page": pa.string()}
    >>> clicks = testing.stream("clicks", key="id", schema=schema)
    >>> windows = dt.windows.tumbling("1 hour")
    >>> hourly = clicks.group_by("page").window(windows).agg(clicks=dt.count())
    >>> hourly
    WindowedTable[aggregate of clicks by page; key page, window_start, window_end]
      page string, window_start timestamp, window_end timestamp, clicks bigint
    >>> hourly.to_table()
    Table[aggregate of clicks by page; key page, window_start, window_end]
      page string, window_start timestamp, window_end timestamp, clicks bigint
    """

    @overload  # on the same window
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["inner", "left", "outer"] | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable: ...

    @overload  # on a shifted window
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        shift: Span,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable: ...

    @overload
    def join(
        self,
        right: Table,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable: ...

    @validated
    def join(
        self,
        right: Table | AWindowedTable,
        *,
        on: On | None = None,
        how: How | None = None,
        shift: Span | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable:
        """Join with another windowed table, or with a table, by the key without its window.

        - **a windowed table**: rows of the same key and window meet. With ``shift``, a row meets
          the right side's window that begins so much later.
        - **a table**: the table's row of a key stands beside every window of that key.

        Parameters
        ----------
        right : WindowedTable or Table
            The right side. A windowed table has windows of the same kind and size.
        on : str, sequence or mapping, optional
            Columns of this table that equal the right side's key, in the key's order.
            Both whole keys are joined, without their windows. By default both keys have
            the same names. A mapping pairs columns of other names.
        how : {"inner", "left", "outer"}, optional
            The rows without a match that the result keeps, with nulls for the missing
            side: ``"inner"`` none, ``"left"`` the left ones, ``"outer"`` both. By default
            ``"inner"``. With ``shift`` and with a table ``"left"`` is the only kind, and
            the default.
        shift : str or timedelta, optional
            Only for two windowed tables: the time from a left window's start to that of
            the right window. ``"-7 days"`` is the same hour a week before. By default the
            same window.
        select : sequence or mapping, optional
            The value columns of the result; by default all of both sides. An item is
            ``"left.x"``, ``"right.x"``, or ``"x"`` if only one side has the column. It
            may be a Spark expression over the joined row, such as
            ``F.col("left.x") + F.col("right.y")``. A mapping gives new names.
        name : str, optional
            The name of the join in errors and ``explain``. By default it is such as ``left
            join of views and clicks``.

        Returns
        -------
        WindowedTable
            The joined rows, under this table's key and windows.

        Raises
        ------
        PlanError
            If keys or windows of the sides differ, or if an argument does not fit them.
            If a name is unknown or ambiguous. If a side would no longer keep a window
            that the other side asks for; the message says how long its ``retention`` must
            be.

        See Also
        --------
        Table.join : Join a table with a windowed table.
        Stream.join : Join a stream with a windowed table.
        WindowedTable.to_table : Read the result as a table.

        Notes
        -----
        Records of both sides give results, so a late record corrects them. A record of a
        table gives a result for each window of its key that is retained, under its own time.
        If ``select`` computes, the result cannot be joined further, and is read with
        ``windows="on_change"`` only.

        Source: Kafka Streams join design, "WTable-KTable", "WTable-WTable"; spec/windowed.

        Examples
        --------
        On the same window, clicks beside views:

        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> windows = dt.windows.tumbling("10 us", retention="100 us")
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> views = testing.stream("views", key="id", schema=schema)
        >>> clicked = clicks.group_by("page").window(windows).agg(clicks=dt.count())
        >>> viewed = views.group_by("page").window(windows).agg(views=dt.count())
        >>> driver = testing.Driver(viewed.join(clicked, how="left").to_table())
        >>> changes = driver.pipe(views, {"id": 1, "page": "home"}, timestamp=1)
        >>> changes += driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=2)
        >>> [change.values for change in changes]
        [{'views': 1, 'clicks': None}, {'views': 1, 'clicks': 1}]

        On a shifted window, clicks beside those of the window before:

        >>> columns = {"clicks": "left.clicks", "before": "right.clicks"}
        >>> trend = clicked.join(clicked, shift="-10 us", select=columns)
        >>> driver = testing.Driver(trend.to_table())
        >>> changes = driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=5)
        >>> changes = driver.pipe(clicks, {"id": 2, "page": "home"}, timestamp=15)
        >>> [change.values for change in changes]
        [{'clicks': 1, 'before': 1}]

        With a table, clicks beside the title of their page:

        >>> schema = {"page": pa.string(), "title": pa.string()}
        >>> pages = testing.table("pages", key="page", schema=schema)
        >>> driver = testing.Driver(clicked.join(pages).to_table())
        >>> changes = driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=1)
        >>> changes += driver.pipe(pages, {"page": "home", "title": "Welcome"}, timestamp=2)
        >>> [change.values for change in changes]
        [{'clicks': 1, 'title': None}, {'clicks': 1, 'title': 'Welcome'}]
        """
        call = JoinCall(self.plan, right.plan, on, how, select, label=name)
        return WindowedTable(window_join(call, shift=shift))

    @validated
    def to_table(self, *, windows: WindowMode = "on_change") -> Table:
        """Return the table whose key is the key and the window.

        Parameters
        ----------
        windows : {"on_change", "on_close"}, default "on_change"
            ``"on_change"``: each change of a window's row. ``"on_close"``: only each
            window's last row, once. It comes when stream time has reached the window's
            end and its grace period, even if its key has no record then. Stream time is
            the largest event time so far.

        Returns
        -------
        Table
            The rows under the key, ``window_start`` and ``window_end``. With ``"on_close"``, a
            row has the time of the last change of its window. A window whose row is
            deleted by then has none.

        Raises
        ------
        PlanError
            If ``windows`` is another text.

        See Also
        --------
        WindowedTable.to_stream : Read the changes as a stream.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> windows = dt.windows.tumbling("10 us")
        >>> counts = clicks.group_by("page").window(windows).agg(clicks=dt.count())
        >>> driver = testing.Driver(counts.to_table(windows="on_close"))
        >>> driver.pipe(clicks, [{"id": 1, "page": "home"}, {"id": 2, "page": "home"}], timestamp=5)
        []
        >>> changes = driver.pipe(clicks, {"id": 3, "page": "help"}, timestamp=10)
        >>> [(change.key["page"], change.values) for change in changes]
        [('home', {'clicks': 2})]
        """
        return Table(windows_as_table(self.plan, windows))

    @validated
    def to_stream(
        self,
        *,
        key: ColumnNames | None = None,
        select: Selection | None = None,
        windows: WindowMode = "on_change",
    ) -> Stream:
        """Return the windowed table's changes as a stream, with the window among the values.

        Parameters
        ----------
        key : str or sequence of str, optional
            The columns of ``select`` that are the stream's key. By default the key columns
            without the window; ``select`` must then have them under their own names.
        select : sequence or mapping, optional
            The stream's columns; by default all columns of key, window and row. They are
            names or Spark expressions over these columns. A mapping gives new names.
        windows : {"on_change", "on_close"}, default "on_change"
            ``"on_change"``: each change of a window's row. ``"on_close"``: only each
            window's last row, once. It comes when stream time has reached the window's
            end and its grace period. Stream time is the largest event time so far.

        Returns
        -------
        Stream
            A record for each change. A deleted row is a record without a value. With
            ``"on_close"``, a record has the time of the last change of its window. A
            window whose row is deleted by then has none.

        Raises
        ------
        PlanError
            If a column is unknown, reserved or named twice, or if ``key`` names a column that
            ``select`` leaves out. If ``key`` names none, or one of a type that cannot be a key.
            If an expression does not resolve.

        See Also
        --------
        WindowedTable.to_table : Read the rows as a table.

        Notes
        -----
        Source: Kafka Streams join design, "WTable".

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> windows = dt.windows.tumbling("10 us")
        >>> counts = clicks.group_by("page").window(windows).agg(clicks=dt.count())
        >>> named = counts.to_stream(select={"name": "page", "total": "clicks"}, key="name")
        >>> driver = testing.Driver(named)
        >>> driver.pipe(clicks, {"id": 1, "page": "home"}, timestamp=5)
        [<name='home': total=1 @5>]
        """
        return Stream(windows_as_stream(self.plan, windows, key, select))
