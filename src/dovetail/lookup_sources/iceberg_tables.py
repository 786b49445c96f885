"""Lookups in an Iceberg table, read by the worker itself.

A worker skips the files that statistics and partitions exclude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from dovetail.arrays.timeline import Mask
from dovetail.base.validation import ColumnNames, Natural, Text, validated
from dovetail.errors import ConfigurationError, DovetailError, line_of
from dovetail.iceberg.catalogs import GivenCatalog, TableAddress, refuse_without_pyiceberg
from dovetail.laws.joins.delta_join import NO_GROUP
from dovetail.lookup_sources.conversion import (
    cast_table,
    changed_store_error,
    find_constants,
    refuse_mixed_constants,
    typed_constants,
    without_null_keys,
)
from dovetail.lookup_sources.keys import find_out_of_range_keys, positions_among, refuse_other_kinds
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, Indexes, Where, declared_fields

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, kw_only=True)
class IcebergLookup(DeclaredSource):
    """An Iceberg table as a lookup source."""

    address: TableAddress = field(repr=False)
    """The name of the table, and its catalog."""

    @property
    def title(self) -> str:
        """The words ``iceberg table`` and the table's name with its namespace, for errors and
        ``explain``.
        """
        return f"iceberg table {self.address.table}"

    def open(self, schema: pa.Schema) -> IcebergReader:
        """Return a reader whose rows have the columns of ``schema``. The reader opens the catalog
        at its first lookup. Raises ``ConfigurationError`` on a worker without pyiceberg.
        """
        refuse_without_pyiceberg(self.title)
        return IcebergReader(self, schema)


class IcebergReader:
    """A reader of the table's latest snapshot at each lookup."""

    def __init__(self, source: IcebergLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._table: Table | None = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows of the latest snapshot whose columns ``by`` equal one of ``keys``, in any
        order. The scan skips files without keys.

        Also return the position of each row's key among ``keys``, and a mask of the keys that the
        columns cannot have: whole numbers outside the column's range. ``keys``: one column for each
        of ``by``, distinct, without nulls: whole numbers, texts or booleans. Without keys the
        table's metadata is read, but no file. The schema must have the columns ``by``.

        Raises ``ConfigurationError`` if no attempt succeeds. Raises ``DataError`` for a missing
        column, a type, value or constant that does not fit, or a null in the primary key. Raises
        ``PlanError`` for a column of a type that Spark lacks.
        """
        rows, unfit = call_with_retries(self._source, lambda: self._scan_rows(by, keys))
        key = positions_among(keys, rows.select(list(by)))
        asked = key != NO_GROUP
        return Found(rows.filter(pa.array(asked)), key[asked], unfit)

    def close(self) -> None:
        """Forget the opened table, so that the next lookup asks the catalog."""
        self._table = None

    def _scan_rows(self, by: Sequence[str], keys: pa.Table) -> tuple[pa.Table, Mask]:
        """Return the rows of the latest snapshot that have one of the keys in the columns ``by``.
        They pass the source's filters and have the schema's columns and types.

        Also return a mask of the keys that these columns cannot have, and that are not sought:
        bool[keys]. ``keys``: one column for each of ``by``, without nulls.

        Raises ``OSError`` if another attempt may help. Raises ``DataError`` for a missing column,
        another type, a constant of another type, or a null in the primary key. Raises ``PlanError``
        for a type that Spark lacks.
        """
        from dovetail.iceberg.columns import arrow_schema
        from dovetail.iceberg.replacement import rows_of_keys

        title, names = self._source.title, self._schema.names
        table = self._open_table()
        filters = self._source.filters
        wanted = {*names, *by, *(name for name, _ in filters)}
        fields = {f.name: f for f in table.schema().fields if f.name in wanted}
        missing = [name for name in names if name not in fields]
        if missing:
            raise changed_store_error(title, f"there is no column {missing[0]!r}")
        stored = arrow_schema(title, fields.values())
        refuse_other_kinds(title, by, keys, stored)
        constants = typed_constants(title, filters, stored)
        unfit = find_out_of_range_keys(by, keys, stored)
        fit = keys.filter(pa.array(~unfit)).cast(pa.schema([stored.field(name) for name in by]))
        try:
            files = list(rows_of_keys(table, fit, all_rows=False))
        except DovetailError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise OSError(line_of(error)) from error
        parts = [
            self._rows_with_constants(part.rows.filter(pa.array(part.has_key)), constants)
            for part in files
        ]
        rows = pa.concat_tables([self._schema.empty_table(), *parts])
        return without_null_keys(title, rows, self._source.key), unfit

    def _open_table(self) -> Table:
        """Return the table as it is now, asking the catalog again. Raises ``OSError`` for all
        errors of the catalog, a missing table too, since another attempt may help.
        """
        try:
            self._table = self._source.address.open(self._source.title, self._table)
        except ConfigurationError as error:
            self.close()
            raise OSError(error.problem) from error
        return self._table

    def _rows_with_constants(self, rows: pa.Table, constants: Mapping[str, pa.Array]) -> pa.Table:
        """Return the rows in which each column of ``constants`` has one of its constants, with the
        schema's columns and types. A null in a column equals a null among its constants.

        ``rows``: rows with the schema's columns and those of the filters, in the types of the
        table. ``constants``: those of the source's filters by column, as ``typed_constants`` makes
        them; empty without filters. Raises ``DataError`` for a type or value that does not fit.
        """
        rows = rows.filter(find_constants(rows, constants))
        return cast_table(self._source.title, rows.select(self._schema.names), self._schema)


@validated
def iceberg(
    table: Text,
    *,
    catalog: GivenCatalog = "default",
    key: ColumnNames,
    indexes: Indexes = (),
    where: Where | None = None,
    retries: Natural = 5,
) -> IcebergLookup:
    """Declare an Iceberg table in which delta joins and ``lookup`` find rows.

    A lookup reads the table's latest snapshot by the package pyiceberg, without Spark. The
    package is needed on the driver and the workers: ``pip install 'dovetail[iceberg]'``.

    Parameters
    ----------
    table : str
        The name of the table with its namespace, such as ``"sales.orders"``.
    catalog : str or mapping of str to str, default "default"
        The catalog, which all workers can reach: its name in pyiceberg's configuration, or
        its properties. The property ``name`` is the catalog's own name.
    key : str or list of str
        The columns of its primary key, which are never null.
    indexes : list of Index, default ()
        The other columns by which rows are looked up, such as ``[dt.lookups.index("customer")]``.
        The layout of the files serves as the index.
    where : mapping, optional
        Columns with their constants: a text, a number, a boolean, None for null, or a list
        of these. A row belongs to the table if each of these columns has one of its
        constants. By default all rows do.
    retries : int, default 5
        The number of further attempts after a failure. The wait before the first one is 0.1
        s. Waits double, up to 5 s.

    Returns
    -------
    LookupSource
        The source, for ``Table.with_lookup`` and ``Stream.lookup``. The table is not read
        yet.

    Raises
    ------
    PlanError
        If ``key`` names no column, or a list in ``where`` is empty or of several types.
    ConfigurationError
        If pyiceberg is missing. A query fails with it if the table cannot be read after all
        attempts.
    DataError
        In a query, for a row that does not fit the declared types, a null in the key or two
        rows with one key. Also for a missing column, and for constants in ``where`` of
        another type than their column.

    See Also
    --------
    index : Declare an index.
    delta_files : The same for a Delta table.
    Stream.lookup : Join each record with the rows of a source.
    to_iceberg : Keep an Iceberg table equal to a query's table.

    Notes
    -----
    Statistics of the files and partitions say which of them may have a key. Lay the table
    out by the lookup columns, or each batch reads their columns of all files.

    The columns have the declared types or narrower ones. Rows are looked up by whole
    numbers, texts or booleans, which match to the letter. Source: FLIP-486, "Public
    Interfaces".

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> from pyiceberg.catalog import load_catalog
    >>> folder = tempfile.TemporaryDirectory()
    >>> uri = f"sqlite:///{folder.name}/catalog.db"
    >>> catalog = {"type": "sql", "uri": uri, "warehouse": folder.name}
    >>> shop = load_catalog("default", **catalog)
    >>> shop.create_namespace("shop")
    >>> rows = pa.table({"name": ["ann"], "city": ["Oslo"]})
    >>> shop.create_table("shop.users", schema=rows.schema).append(rows)
    >>> users = dt.lookups.iceberg("shop.users", catalog=catalog, key="name")
    >>> clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    >>> columns = {"name": pa.string(), "city": pa.string()}
    >>> driver = testing.Driver(clicks.lookup(users, columns=columns, on="user"))
    >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
    [<id=1: user='ann', city='Oslo' @1>]
    """
    address = TableAddress.of(table, catalog)
    title = f"iceberg table {address.table}"
    refuse_without_pyiceberg(title)
    options = declared_fields(
        title, key=key, indexes=indexes, where=where, timeout_s=1.0, retries=retries
    )
    refuse_mixed_constants(title, options["filters"])
    return IcebergLookup(address=address, **options)
