"""The declaration of a lookup source, and the reader that a worker opens from it.

A declaration (``LookupSource``) is plain, hashable data that travels to the workers. Its method
``open`` returns a ``Reader``, which belongs to one process. A source holds the rows of one table,
under the same column names. A lookup reads only the columns that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeAlias

import pyarrow as pa

from dovetail.arrays.timeline import Ints, Mask
from dovetail.base.validation import (
    ColumnName,
    ColumnNames,
    Rule,
    Text,
    validated,
    validated_fields,
)
from dovetail.errors import PlanError

Constant: TypeAlias = str | int | float | bool | None
Where: TypeAlias = Annotated[
    Mapping[str, Constant | Sequence[Constant]],
    Rule("a mapping of columns to constants: a text, a number, True, False, None, or a list"),
]


@validated_fields
@dataclass(frozen=True)
class Index:
    """Columns by which a store finds whole rows quickly.

    ``dt.lookups.index`` makes one. An index is informational: the store's owner promises that it
    exists, and nothing checks it.

    See Also
    --------
    index : Declare an index.
    LookupSource : A store that holds a table's rows, with its indexes.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.lookups.index("customer")
    Index(name='INDEX_customer', columns=('customer',), unique=False)
    """

    name: Text
    """The name of the index, for errors and ``explain``."""
    columns: tuple[str, ...]
    """The indexed columns."""
    unique: bool = False
    """True if at most one row has a given value of the columns."""

    @property
    def summary(self) -> str:
        """The index in words, as ``explain`` prints it.

        See Also
        --------
        index : Declare an index.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.lookups.index("a", "b").summary
        'INDEX INDEX_a_b (a, b)'
        >>> dt.lookups.index("a", unique=True).summary
        'UNIQUE INDEX INDEX_a (a)'
        """
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        return f"{kind} {self.name} ({', '.join(self.columns)})"


@validated
def index(*columns: ColumnName, unique: bool = False, name: Text | None = None) -> Index:
    """Declare an index over columns of a store.

    A lookup source lists its indexes in ``indexes=``. The primary key is an index without
    being declared.

    Parameters
    ----------
    *columns : str
        The indexed columns. A lookup must name all of them, in any order.
    unique : bool, default False
        True if each value belongs to at most one row. A lookup that finds more rows fails
        the micro-batch.
    name : str, optional
        The index's name in errors and ``explain``. By default ``INDEX_`` and the columns,
        joined by ``_``.

    Returns
    -------
    Index
        The declaration. It creates nothing in the store.

    Raises
    ------
    PlanError
        If no column is named, or one is named twice.

    See Also
    --------
    postgres : A PostgreSQL table in which rows are looked up.
    sqlite : A table of a SQLite file in which rows are looked up.

    Notes
    -----
    The owner of the store promises that the index exists. Only ``unique`` is checked, row
    by row, in each lookup. Source: FLIP-486, "Introduce Index in CatalogTable" and "Future
    Work".

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.lookups.index("city", "street")
    Index(name='INDEX_city_street', columns=('city', 'street'), unique=False)
    >>> dt.lookups.index("email", unique=True, name="by_email")
    Index(name='by_email', columns=('email',), unique=True)
    """
    name = name or "_".join(["INDEX", *columns])
    if not columns:
        raise PlanError(f"index {name}", "it has no columns", "Name at least one")
    twice = next((c for c in columns if columns.count(c) > 1), None)
    if twice is not None:
        raise PlanError(f"index {name}", f"column {twice!r} occurs twice", "Name it once")
    return Index(name, columns, unique)


@dataclass(frozen=True)
class Found:
    """The rows that a lookup found."""

    rows: pa.Table
    """The n rows found, in any order, with the columns that the reader was opened for."""
    key: Ints
    """The position of each row's key among the keys asked for: int64[n]."""
    unfit: Mask
    """True for each key asked for that the store's columns cannot have, so that no row was sought:
    one boolean per key. A source may leave out the check: then all are False.
    """


Indexes: TypeAlias = Annotated[
    Sequence[Index],
    Rule("a list such as [dt.lookups.index('a', 'b'), dt.lookups.index('c', unique=True)]"),
]


class Reader(Protocol):
    """An open lookup source, used by one thread of one process."""

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows whose columns ``by`` equal one of ``keys``, as the store has them at one
        moment. Each comes with the position of its key, the index of a row of ``keys``.

        ``keys``: one column for each of ``by``, in this order, with distinct rows without nulls;
        names do not count. Without keys the store is only asked whether it can be read, and no row
        is returned. The rows found, in any order, have the columns of the schema that the reader
        was opened with. A key without rows has none in the result. A key that the store's columns
        cannot have is marked in ``unfit``.

        A row has a key if the changelog would give it that key, to the letter. A store that
        compares more loosely, for instance without case, must not return rows of other keys.

        Raises ``DataError`` for rows that do not fit the schema, a missing column, and a null in
        the primary key. Also for keys of a type that the store does not compare exactly. Raises
        ``ConfigurationError`` if the store cannot be reached.
        """

    def close(self) -> None:
        """Close all connections and files that the reader has open, if any. A later lookup opens
        them again.
        """


class LookupSource(Protocol):
    """The declaration of a store that holds a table's rows: the interface of all lookup sources.

    ``postgres``, ``redis``, ``mongodb``, ``sqlite``, ``dbapi``, ``delta_files`` and
    ``iceberg`` make one. A class of your own serves as well, if it has these members. It must
    be plain, hashable data that pickles, because it travels to the workers.

    See Also
    --------
    Table.with_lookup : Declare that a source holds the table's rows.
    Stream.lookup : Join each record with the rows of a source.
    index : Declare an index of a source.

    Examples
    --------
    >>> import dovetail as dt
    >>> by_customer = dt.lookups.index("customer")
    >>> source = dt.lookups.sqlite("shop.db", "orders", key="id", indexes=[by_customer])
    >>> source.title, source.key, [index.columns for index in source.indexes]
    ('sqlite orders', ('id',), [('customer',)])
    """

    @property
    def title(self) -> str:
        """The source's name in errors and ``explain``, without secrets.

        See Also
        --------
        LookupSource.key : The columns of the primary key.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.lookups.postgres("postgresql://app:secret@db/shop", "sales.orders", key="id").title
        'postgres sales.orders'
        """

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key, in order.

        Each row of the store has a key without nulls, and no two rows have the same one. A
        lookup that finds other rows fails the micro-batch.

        See Also
        --------
        LookupSource.indexes : The other columns by which the store finds rows.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.lookups.sqlite("shop.db", "items", key=["order", "line"]).key
        ('order', 'line')
        """

    @property
    def indexes(self) -> tuple[Index, ...]:
        """The indexes besides the primary key: the other columns by which the store finds rows.

        The tuple is empty if the store finds rows by the primary key alone.

        See Also
        --------
        index : Declare an index.
        LookupSource.key : The columns of the primary key.

        Examples
        --------
        >>> import dovetail as dt
        >>> by_customer = dt.lookups.index("customer")
        >>> dt.lookups.sqlite("shop.db", "orders", key="id", indexes=[by_customer]).indexes
        (Index(name='INDEX_customer', columns=('customer',), unique=False),)
        """

    @property
    def filters(self) -> tuple[tuple[str, tuple[Constant, ...]], ...]:
        """The constants that each restricted column may have: pairs of a column and its constants.

        A row belongs to the table if each of these columns has one of its constants. None
        among them stands for null. The tuple is empty if all rows of the store belong to
        the table.

        See Also
        --------
        postgres : A source whose argument ``where=`` gives the filters.

        Examples
        --------
        >>> import dovetail as dt
        >>> where = {"region": "EU", "kind": ["a", None]}
        >>> dt.lookups.sqlite("shop.db", "orders", key="id", where=where).filters
        (('region', ('EU',)), ('kind', ('a', None)))
        """

    def open(self, schema: pa.Schema) -> Reader:
        """Return a reader for lookups in this store.

        A worker process calls it, and keeps the reader for its later tasks. A reader
        belongs to one process, and one thread uses it.

        Parameters
        ----------
        schema : pyarrow.Schema
            The columns that the reader's rows have, in any order. They are those that the
            join needs, the primary key among them.

        Returns
        -------
        Reader
            A reader with two methods. ``rows(by, keys)`` returns the rows whose columns
            ``by`` equal one of ``keys``. ``close()`` releases all that is open.

        Raises
        ------
        ConfigurationError
            If the package of the store's driver is not installed on the worker.

        See Also
        --------
        LookupSource.key : The columns of the primary key.

        Notes
        -----
        ``keys`` has one column for each of ``by``, and distinct rows without nulls. It has no
        rows when a query starts and only asks whether the store can be read.

        ``rows`` returns three parts: the rows found in any order, the position of each row's
        key in ``keys``, and one boolean per key. The boolean is true if the store's columns
        cannot have the key.

        All rows of a call are those that the store has at one moment. Keys match to the
        letter. A store that compares more loosely, for instance without case, must not
        return rows of other keys.

        ``rows`` raises ``DataError`` for rows that do not fit the schema, and
        ``ConfigurationError`` if the store cannot be reached.

        Examples
        --------
        >>> import sqlite3, tempfile
        >>> import dovetail as dt
        >>> import pyarrow as pa
        >>> folder = tempfile.TemporaryDirectory()
        >>> store = sqlite3.connect(f"{folder.name}/shop.db", isolation_level=None)
        >>> _ = store.execute("CREATE TABLE plans (name TEXT PRIMARY KEY, price INTEGER)")
        >>> _ = store.execute("INSERT INTO plans VALUES ('free', 0), ('paid', 9)")
        >>> source = dt.lookups.sqlite(f"{folder.name}/shop.db", "plans", key="name")
        >>> reader = source.open(pa.schema({"name": pa.string(), "price": pa.int64()}))
        >>> found = reader.rows(["name"], pa.table({"name": ["paid", "gold"]}))
        >>> found.rows.to_pylist(), found.key.tolist(), found.unfit.tolist()
        ([{'name': 'paid', 'price': 9}], [0], [False, False])
        >>> reader.close()
        """


@dataclass(frozen=True, kw_only=True)
class DeclaredSource:
    """The fields that all sources share."""

    key: tuple[str, ...]
    """The columns of the primary key."""
    indexes: tuple[Index, ...] = ()
    """The other columns by which the store finds rows."""
    filters: tuple[tuple[str, tuple[Constant, ...]], ...] = ()
    """Pairs of a column and the constants that it may have, None for null. Rows with other values
    do not belong to the table.
    """
    timeout_s: float = 10.0
    """The limit in seconds for connecting and for each query. Sources without a time-out of their
    own ignore it.
    """
    retries: int = 5
    """The number of further attempts after a failure."""
    wait_s: float = field(default=0.1, repr=False)
    """The wait in seconds before the first further attempt; it doubles each time, up to 5 s."""


def declared_fields(
    operator: str,
    *,
    key: ColumnNames,
    indexes: Indexes,
    where: Where | None,
    timeout_s: float,
    retries: int,
) -> dict[str, Any]:
    """Return the fields of ``DeclaredSource`` by name, from the arguments of a source: ``key``,
    ``indexes`` and ``filters`` as tuples, ``timeout_s`` in seconds, and ``retries``.

    ``operator``: the source's title in errors. ``key``: one column or several. ``where``: for each
    column one constant or a list of them, which become filters; None for none. Raises ``PlanError``
    without a key column, and for an empty list of constants; nothing else is checked.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise PlanError(operator, "no key column is given", "Name at least one in key=")
    filters = tuple((column, _constants_of(value)) for column, value in (where or {}).items())
    for column, constants in filters:
        if not constants:
            raise PlanError(
                operator,
                f"where= has no constant for {column!r}, so the table would have no rows",
                "List at least one, or leave the column out",
            )
    return {
        "key": keys,
        "indexes": tuple(indexes),
        "filters": filters,
        "timeout_s": float(timeout_s),
        "retries": retries,
    }


def _constants_of(value: Constant | Sequence[Constant]) -> tuple[Constant, ...]:
    """Return the constants of a filter as a tuple: a single one (None or a text too) as one
    element, those of a list in its order. An empty list gives an empty tuple.
    """
    if value is None or isinstance(value, (str, int, float)):
        return (value,)
    return tuple(value)


def index_for(source: LookupSource, columns: Sequence[str]) -> Index | None:
    """Return the index of a source that serves a lookup by ``columns``, or None if there is none.

    All columns of the index must be in ``columns``, in any order; there may be others. Unique
    indexes are preferred, then those with most columns, then those declared first. The primary key
    counts as the first index of all, unique and named ``PRIMARY KEY``.
    """
    indexes = (Index("PRIMARY KEY", source.key, unique=True), *source.indexes)
    usable = [item for item in indexes if set(item.columns) <= set(columns)]
    return max(usable, key=lambda item: (item.unique, len(item.columns)), default=None)
