"""Streams whose records are looked up in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.api.topology import Topology
from dovetail.base.validation import Text, validated
from dovetail.laws.joins.lookup import HowAnswered
from dovetail.lookup_sources.source import LookupSource
from dovetail.plan.joins.join_keys import On
from dovetail.plan.joins.lookup import ACache, lookup
from dovetail.plan.select import Selection
from dovetail.plan.types.schemas import Columns
from dovetail.plan.views import Errors

if TYPE_CHECKING:
    from typing_extensions import Self


class StoreLookups(Topology):
    """The lookups of a stream's records in stores."""

    @validated
    def lookup(
        self,
        source: LookupSource,
        *,
        columns: Columns,
        on: On | None = None,
        how: HowAnswered = "inner",
        select: Selection | None = None,
        errors: Errors = "fail",
        cache: ACache | None = None,
        name: Text | None = None,
    ) -> Self:
        """Join with a store that has no changelog: each record beside the store's rows for it.

        Parameters
        ----------
        source : LookupSource
            The store, made by a function of ``dt.lookups``, such as ``postgres``, ``sqlite`` or
            ``dt.lookups.delta_files``.
        columns : str, StructType, Schema or mapping
            The store's columns that may be read, and their types; its key is among them.
            A text in SQL (``"id long, city string"``), a ``StructType``, a pyarrow
            schema, or a mapping of names to types.
        on : str, sequence or mapping, optional
            Columns of this stream that equal the store's key, in its order. Or a mapping
            of this stream's columns to the store's, which are or include its key or one
            of its indexes. By default both keys, which then have the same names. A null
            equals nothing.
        how : {"inner", "left"}, default "inner"
            ``"inner"`` leaves out a record that meets no row. ``"left"`` gives it nulls. A
            record with a null in ``on`` meets no row.
        select : sequence or mapping, optional
            The value columns of the result. By default the values of both, without the
            store's columns in ``on``. An item is ``"left.x"`` of the record,
            ``"right.y"`` of the store's row, or ``"x"`` if only one of them has the
            column. It may be a Spark expression over both. A mapping gives new names.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which an expression in ``select`` fails. ``"fail"``
            stops the query. ``"dead_letter"`` leaves the row out as if it had never come.
            The row is counted in the metric ``<name>.failed``, and becomes a dead letter
            (see ``dead_letters``).
        cache : LookupCache, optional
            Answers that are kept beyond a micro-batch, made by ``dt.lookups.cache``. By default
            none are: a task asks for each key once in a micro-batch.
        name : str, optional
            The name of the lookup in errors and in the metric ``<name>.lookups``. By default
            ``lookup of`` and the stream's name.

        Returns
        -------
        Stream
            The records with their order, their key and their time. By an index, a record
            may meet several rows: it comes once with each, in the order of the store's
            primary key.

        Raises
        ------
        PlanError
            If types differ, or if a name is unknown, ambiguous or reserved. If no index of
            the store is among the columns in ``on``, or if ``columns`` lacks the store's key.
            If the stream withdraws rows, as a join with ``unmatched="retract"`` does.
        DataError
            In a query, if a store's rows cannot be read as ``columns`` says.

        See Also
        --------
        Stream.join : Join with a table, in state and repeatably.
        cache : Keep answers of a store.
        sqlite : A store in a SQLite file.

        Notes
        -----
        A record is answered by the rows that the store has at some moment while the
        record's micro-batch is processed. With ``cache``, they may be the rows of up to
        ``max_age`` before. Nothing waits, nothing is stored, and nothing comes when the
        store changes. A micro-batch that is run again may be answered otherwise; only
        joins with tables are repeatable.

        A record without a value, such as a tombstone, is dropped and counted in
        ``<name>.lookups``. So is, with ``"inner"``, a record with a null in ``on``.

        Source: Flink, "Lookup Join".

        Examples
        --------
        >>> import sqlite3
        >>> import tempfile
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> folder = tempfile.TemporaryDirectory()
        >>> with sqlite3.connect(f"{folder.name}/shop.db") as store:
        ...     _ = store.execute("CREATE TABLE users (name TEXT PRIMARY KEY, city TEXT)")
        ...     _ = store.execute("INSERT INTO users VALUES ('ann', 'Oslo')")
        >>> store.close()
        >>> schema = {"id": pa.int64(), "user": pa.string()}
        >>> clicks = testing.stream("clicks", key="id", schema=schema)
        >>> users = dt.lookups.sqlite(f"{folder.name}/shop.db", "users", key="name")
        >>> columns = {"name": pa.string(), "city": pa.string()}
        >>> driver = testing.Driver(clicks.lookup(users, columns=columns, on="user", how="left"))
        >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
        [<id=1: user='ann', city='Oslo' @1>]
        >>> driver.pipe(clicks, {"id": 2, "user": "bob"}, timestamp=2)
        [<id=2: user='bob', city=None @2>]
        >>> folder.cleanup()
        """
        plan = lookup(
            self.plan,
            source,
            columns=columns,
            on=on,
            how=how,
            select=select,
            errors=errors,
            cached=cache,
            label=name,
        )
        return type(self)(plan)
