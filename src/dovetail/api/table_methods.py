"""Methods that make a table of a table: another key, other rows, rows that stay or go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.api.table_sources import TableSources
from dovetail.base.validation import ColumnName, ColumnNames, Text, validated
from dovetail.lookup_sources.source import LookupSource
from dovetail.plan.joins.delta_options import with_lookup
from dovetail.plan.joins.join_call import materialize
from dovetail.plan.nodes import ChangeKinds
from dovetail.plan.transforms.expire import expire_rows
from dovetail.plan.transforms.explode import explode_rows
from dovetail.plan.transforms.fill import Missing, fill_unsent, without_null_updates
from dovetail.plan.transforms.key_by import Duplicates, table_under_key
from dovetail.plan.transforms.retire import retire_rows
from dovetail.plan.types.spans import Span
from dovetail.plan.views import Errors, Item

if TYPE_CHECKING:
    from typing_extensions import Self


class TableRows(TableSources):
    """The methods that change a table's rows, each with a table as result."""

    @validated
    def key_by(
        self,
        *columns: ColumnName,
        duplicates: Duplicates = "fail",
        errors: Errors = "fail",
        **named: Item,
    ) -> Self:
        """Return the rows under another key.

        Parameters
        ----------
        *columns : str
            Columns that become the key, in this order.
        duplicates : {"fail", "last"}, default "fail"
            The effect of several rows with one key after a micro-batch. ``"fail"`` fails
            the query. ``"last"`` has the row that came last, and when it leaves, the one
            before it.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which an expression fails. ``"fail"`` stops the query.
            ``"dead_letter"`` leaves the row out as if it had never come. The row is
            counted in the metric ``<name>.failed``, and becomes a dead letter (see
            ``dead_letters``).
        **named : str or Column
            Further key columns by their names: a column under a new name, or a Spark
            expression.

        Returns
        -------
        Table
            The rows under the new key. The columns of the former key that are not in the
            new one are values. A row with a null in the new key is left out, and counted
            in the metric ``<name>.null_group``. The time of a change is the largest one of
            the records that changed its key's row. The result has no history.

        Raises
        ------
        PlanError
            If no column is named, if one is named twice, or if a name is unknown. If a type
            cannot be a key, or cannot be compared by its bytes, such as a map. If an
            expression is random. Also for a join of histories (``late="history"``).
        DataError
            In a batch, if several rows have one key under ``duplicates="fail"``.

        See Also
        --------
        Stream.key_by : Give records another key.
        Table.group_by : Aggregate the rows that share a value.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "mail": pa.string()}
        >>> users = testing.table("users", key="id", schema=schema)
        >>> driver = testing.Driver(users.key_by("mail"))
        >>> driver.pipe(users, {"id": 1, "mail": "ann@a"}, timestamp=1)
        [<mail='ann@a': id=1 @1>]
        >>> driver.pipe(users, {"id": 1, "mail": "ann@b"}, timestamp=2)
        [<mail='ann@a': deleted @2>, <mail='ann@b': id=1 @2>]
        >>> driver.pipe(users, {"id": 1, "mail": None}, timestamp=3)
        [<mail='ann@b': deleted @3>]
        """
        return type(self)(table_under_key(self.plan, columns, named, duplicates, errors))

    @validated
    def explode(self, column: ColumnName, *, position: Text | None = None) -> Self:
        """Return a row for each element of an array, for as long as the table's row has it.

        The row ``items=["a", "b"]`` becomes two rows. When it changes to ``["b", "c"]``,
        the row of ``a`` leaves and one of ``c`` comes.

        Parameters
        ----------
        column : str
            The array, a value column. Its elements take its place. A row whose array is
            null or empty has no row in the result.
        position : str, optional
            The name of a key column with the element's position, an int from 0. By
            default the element is part of the key instead.

        Returns
        -------
        Table
            Without ``position``, the key is the table's key and the element. An element
            that an array has twice is one row, and a null element is none. The metrics
            ``<name>.repeated`` and ``<name>.null_element`` count them. With ``position``,
            the key is the table's key and the position, and the element is a value. Each
            element, also a null, is then a row, and an element that moves is another row.

        Raises
        ------
        PlanError
            If the column is unknown, a key column or no array. If ``position`` is another
            column's name or, without it, elements cannot be a key. Also for a join of
            histories (``late="history"``).

        See Also
        --------
        Stream.explode : Make a record of each element of an array.

        Notes
        -----
        Each change of the table's row comes as a change of each of its elements' rows,
        under its time. The table's last rows are kept. The result has no history.

        Source: Spark, ``explode`` and ``posexplode``; spec/view/rows.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "tags": pa.list_(pa.string())}
        >>> articles = testing.table("articles", key="id", schema=schema)
        >>> driver = testing.Driver(articles.explode("tags"))
        >>> driver.pipe(articles, {"id": 1, "tags": ["a", "b"]}, timestamp=1)
        [<id=1, tags='a':  @1>, <id=1, tags='b':  @1>]
        >>> for change in driver.pipe(articles, {"id": 1, "tags": ["b", "c"]}, timestamp=2):
        ...     print(change.key, change.change)
        {'id': 1, 'tags': 'a'} delete
        {'id': 1, 'tags': 'b'} upsert
        {'id': 1, 'tags': 'c'} upsert
        """
        return type(self)(explode_rows(self.plan, column, position))

    @validated
    def keep_former(self, unsent: ColumnName, *, missing: Missing = "fail") -> Self:
        """Fill in the values that a record does not bring with those of its key's row before.

        A record ``city="Oslo", unsent=["note"]`` keeps the ``note`` of the row that it
        replaces.

        Parameters
        ----------
        unsent : str
            The column with the names of the value columns that a record leaves out, an
            array of texts. It is no column of the result. A null, and names of no value
            column, have no effect.
        missing : {"fail", "null"}, default "fail"
            The effect of a value that was not sent if the key has no row. ``"fail"``
            stops the query with the key and the column. ``"null"`` has null, counted in
            the metric ``<name>.unsent``.

        Returns
        -------
        Table
            The rows with all values, without the column ``unsent``.

        Raises
        ------
        PlanError
            If the column is unknown or no array of texts, or if the table is versioned. Also
            for a join of histories (``late="history"``).
        DataError
            In a batch, if a key without a row lacks a value under ``missing="fail"``.

        See Also
        --------
        debezium : A format whose values may be left out (``unsent="keep"``).

        Notes
        -----
        Records count in the order in which they arrive. After a delete there is no row
        before. The table's last rows are kept.

        Source: spec/view/former.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> text = pa.string()
        >>> schema = {"id": pa.int64(), "note": text, "city": text, "unsent": pa.list_(text)}
        >>> people = testing.table("people", key="id", schema=schema)
        >>> driver = testing.Driver(people.keep_former("unsent"))
        >>> driver.pipe(people, {"id": 1, "note": "long", "city": "Rome"}, timestamp=1)
        [<id=1: note='long', city='Rome' @1>]
        >>> driver.pipe(people, {"id": 1, "city": "Oslo", "unsent": ["note"]}, timestamp=2)
        [<id=1: note='long', city='Oslo' @2>]
        """
        return type(self)(fill_unsent(self.plan, unsent, missing))

    @validated
    def ignore_null_updates(self, columns: ColumnNames | None = None) -> Self:
        """Take a null in an update for a value that the record does not bring.

        The column then keeps the value of the row that is replaced.

        Parameters
        ----------
        columns : str or sequence of str, optional
            The value columns whose nulls are ignored. By default all.

        Returns
        -------
        Table
            The rows with the values that they keep.

        Raises
        ------
        PlanError
            If a column is unknown or named twice, if none is named, or if the table is
            versioned. Also for a join of histories (``late="history"``).

        See Also
        --------
        Table.keep_former : Keep the values of columns that each record names.

        Notes
        -----
        A key's first record, and the first one after a delete, has its nulls. So a column
        that was null until now gets a value, and a value never becomes null again without
        a delete. Records count in the order in which they arrive. The table's last rows
        are kept.

        Fields within a struct are no columns: a struct that is not null is taken whole.

        Source: AUTO CDC, ``ignore_null_updates``; spec/view/nulls.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "note": pa.string(), "city": pa.string()}
        >>> people = testing.table("people", key="id", schema=schema)
        >>> driver = testing.Driver(people.ignore_null_updates())
        >>> driver.pipe(people, {"id": 1, "note": "long", "city": "Rome"}, timestamp=1)
        [<id=1: note='long', city='Rome' @1>]
        >>> driver.pipe(people, {"id": 1, "city": "Oslo"}, timestamp=2)
        [<id=1: note='long', city='Oslo' @2>]
        """
        names = [columns] if isinstance(columns, str) else columns
        return type(self)(without_null_updates(self.plan, names))

    def materialize(self) -> Self:
        """Keep this table's rows in state; the result emits real changes only.

        Returns
        -------
        Table
            The same rows. It emits no row that is as it was, whatever its time. A key without
            a row gets no tombstone (a change that deletes a row). Floats are compared by their
            bits, so 0.0 and -0.0 differ. It has no history.

        Raises
        ------
        PlanError
            For a join of histories (``late="history"``).

        See Also
        --------
        Table.to_changes : Real changes as a stream of rows before and after.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders.materialize())
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        [<id=1: amount=40 @1>]
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=2)
        []
        >>> driver.pipe(orders, {"id": 2}, timestamp=3, deleted=True)
        []
        """
        return type(self)(materialize(self.plan))

    @validated
    def expire(self, *, after: Span) -> Self:
        """Delete a row once stream time is more than a span past the row's timestamp.

        Stream time is the largest event time of this table's records so far, of any key. The
        wall clock has no effect, unless the query has ``idle=``.

        Parameters
        ----------
        after : str or timedelta
            The span, such as ``"30 days"``. A row that is exactly as old stays.

        Returns
        -------
        Table
            The rows that have not expired. A row that expires is deleted by a tombstone,
            here and in all that is made of the table. The tombstone's time is the row's
            timestamp plus ``after``. A change of a row gives it a new life, from the change's
            own time, even if that is older. The result has no history.

        Raises
        ------
        PlanError
            If ``after`` is no span of time or negative, for a versioned table, and for a join
            of histories (``late="history"``).

        See Also
        --------
        Table.retire : Delete the rows that a feed's latest snapshot lacks.

        Notes
        -----
        A change that comes later than the span has expired at once, and deletes its key's
        row if there is one. It is counted in the metric ``<name>.late``.

        Source: spec/view/expire.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "page": pa.string()}
        >>> visits = testing.table("visits", key="id", schema=schema)
        >>> driver = testing.Driver(visits.expire(after="30 us"))
        >>> driver.pipe(visits, {"id": 1, "page": "home"}, timestamp=0)
        [<id=1: page='home' @0>]
        >>> driver.pipe(visits, {"id": 2, "page": "home"}, timestamp=30)
        [<id=2: page='home' @30>]
        >>> driver.pipe(visits, {"id": 3, "page": "home"}, timestamp=31)
        [<id=1: deleted @30>, <id=3: page='home' @31>]
        """
        return type(self)(expire_rows(self.plan, after))

    @validated
    def retire(self, *, snapshot: ColumnName, at: ColumnName) -> Self:
        """Leave out the rows that the feed's latest whole snapshot does not have.

        A feed that has lost its place reads all rows again. Rows that were deleted in
        between are not among them. They leave when the snapshot's last row has come,
        under its timestamp.

        Parameters
        ----------
        snapshot : str
            The text column that marks a snapshot's rows, such as Debezium's
            ``source.snapshot``. The first row has ``"first"`` or
            ``"first_in_data_collection"``, the last row ``"last"`` or
            ``"last_in_data_collection"``. Rows between them have ``"true"``, changes another
            text or null. A snapshot of one row has the last row alone. If the first row is
            missing otherwise, rows with ``"true"`` since the former snapshot's last row count.
            If two first rows come before a last one, the later one counts.
        at : str
            The column with the time at which the feed read a row or a change, such as
            Debezium's ``ts_ms``. It is a long that never falls along the log. A row
            leaves if its time is smaller than that of the snapshot's first row. A row
            whose time is null stays.

        Returns
        -------
        Table
            The rows that were read since the latest whole snapshot began. Without a whole
            snapshot, all rows.

        Raises
        ------
        PlanError
            If a column is unknown or a key column, or if its type cannot serve. Also without a
            Spark session, and for a join of histories (``late="history"``).

        See Also
        --------
        Table.expire : Delete rows that are older than a span.
        debezium : A format for Debezium's change events.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "snapshot": pa.string(), "at": pa.int64()}
        >>> feed = testing.table("feed", key="id", schema=schema)
        >>> driver = testing.Driver(feed.retire(snapshot="snapshot", at="at"), spark=spark)
        >>> first = {"id": 1, "snapshot": "first", "at": 10}
        >>> last = {"id": 2, "snapshot": "last", "at": 11}
        >>> changes = driver.pipe(feed, [first, last], timestamp=1)
        >>> first = {"id": 2, "snapshot": "first", "at": 20}
        >>> last = {"id": 3, "snapshot": "last", "at": 21}
        >>> changes = driver.pipe(feed, [first, last], timestamp=2)
        >>> [change.key for change in changes if change.change == "delete"]
        [{'id': 1}]
        """
        return type(self)(retire_rows(self.plan, snapshot, at))

    @validated
    def with_lookup(self, source: LookupSource, *, changes: ChangeKinds | None = None) -> Self:
        """Give this table a store of the same rows, in which delta joins look them up.

        A delta join is a join without state. It answers each change of one table by a
        lookup in the store of the other.

        Parameters
        ----------
        source : LookupSource
            The store, made by a function of ``dt.lookups``, such as ``postgres``, ``sqlite`` or
            ``delta_files``. It has this table's key, and columns of the same names and types.
            If its ``where=`` names constants, the changelog is restricted to them, too.
        changes : {"insert", "upsert", "all"}, optional
            The changes that may come. ``"insert"``: a key's row comes once and stays.
            ``"upsert"``: it may also be replaced. ``"all"``: it may also be deleted. By
            default ``"all"`` if the reader has ``deleted=``, else ``"upsert"``.

        Returns
        -------
        Table
            This table with its store.

        Raises
        ------
        PlanError
            If keys or columns do not fit, or if the table is not what a reader has returned.
            If the store's ``where=`` names a column that is not in the key, unless
            ``changes="insert"``.

        See Also
        --------
        delta_join : Choose between lookups and state in a join.
        Table.join : Join two tables, by lookups, too.

        Notes
        -----
        At any time, the store must have at least the changes that the changelog has
        brought. So write the store first, or read the changelog from the store's own log.
        A tombstone, a change that deletes a row, fails the batch if ``changes`` excludes
        it.

        Source: FLIP-486 "Limitations".

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> orders.with_lookup(dt.lookups.sqlite("shop.db", "orders", key="id"), changes="insert")
        Table[orders; key id]
          id bigint, amount bigint
        """
        return type(self)(with_lookup(self.plan, source, changes))
