"""Lookups in a Delta table by its path, read by the worker itself.

A worker skips the parts of files that statistics exclude.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail.base.columns import double_quoted
from dovetail.base.error_text import first_line
from dovetail.base.packages import import_package
from dovetail.base.validation import ColumnNames, Natural, Path, validated
from dovetail.errors import ConfigurationError, DovetailError
from dovetail.laws.joins.delta_join import NO_GROUP
from dovetail.lookup_sources.conversion import (
    cast_table,
    changed_store_error,
    find_constants,
    is_text,
    refuse_mixed_constants,
    typed_constants,
    without_null_keys,
)
from dovetail.lookup_sources.keys import find_out_of_range_keys, positions_among, refuse_other_kinds
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, Indexes, Where, declared_fields

_EXACT_TIMES = "SET datafusion.execution.parquet.coerce_int96 = 'us'"
"""The setting by which deltalake reads Spark's timestamps as microseconds. By default it reads
nanoseconds, which times before 1678 and after 2261 do not have: it wraps them.
"""
_LACKS_FEATURES = "Unsupported table features"
"""A part of deltalake's error for a table with features that it does not have."""


@dataclass(frozen=True, kw_only=True)
class DeltaFilesLookup(DeclaredSource):
    """A Delta table as a lookup source."""

    path: str
    """The table's folder."""

    @property
    def title(self) -> str:
        """The words ``delta table`` and the name of the table's folder, without its path, for
        errors and ``explain``.
        """
        return f"delta table {pathlib.Path(self.path).name}"

    def open(self, schema: pa.Schema) -> DeltaFilesReader:
        """Return a reader whose rows have the columns of ``schema``. The reader's first lookup
        reads the table's log, and raises ``ConfigurationError`` without deltalake.
        """
        return DeltaFilesReader(self, schema)


class DeltaFilesReader:
    """A reader of the table's latest version at each lookup."""

    def __init__(self, source: DeltaFilesLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._table: Any = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows of the latest version whose columns ``by`` equal one of ``keys``, in any
        order. The scan skips files and row groups without keys.

        Also return the position of each row's key among ``keys``, and a mask of the keys that the
        columns cannot have: whole numbers outside the column's range. ``keys``: one column for each
        of ``by``, distinct, without nulls: whole numbers, texts or booleans. Without keys the
        table's log is read, but no data file. The schema must have the columns ``by``.

        Raises ``ConfigurationError`` if no attempt succeeds or without deltalake. Raises
        ``DataError`` for a missing column, a type, value or constant that does not fit, or a null
        in the primary key.
        """
        rows = call_with_retries(self._source, lambda: self._scan_rows(by, keys))
        key = positions_among(keys, rows.select(list(by)))
        asked = key != NO_GROUP
        return Found(
            rows.filter(pa.array(asked)),
            key[asked],
            find_out_of_range_keys(by, keys, _arrow_columns(self._table)),
        )

    def close(self) -> None:
        """Forget the table, so that the next lookup reads its log anew."""
        self._table = None

    def _scan_rows(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """Return the rows of the latest version that have one of the keys in the columns ``by`` and
        pass the source's filters. They have the schema's columns and types.

        With several columns in ``by`` other rows may be among them. The table is opened at the
        first call, and later brought up to date. ``keys``: one column for each of ``by``, without
        nulls: whole numbers, texts or booleans, of the same kind as the column in the store. Whole
        numbers outside the column's range may be among them.

        Raises ``OSError`` if another attempt may help: for any error of the package deltalake or of
        a data file, after which the table is forgotten. Raises ``DataError`` for a missing column,
        another type, a constant of another type, or a null in a primary key. Raises
        ``ConfigurationError`` without deltalake, and for a table with features that it lacks.
        """
        title = self._source.title
        deltalake = _import_deltalake(title)
        try:
            if self._table is None:
                self._table = deltalake.DeltaTable(self._source.path)
            else:
                self._table.update_incremental()
            stored = _arrow_columns(self._table)
            missing = [name for name in self._schema.names if name not in stored.names]
            if missing:
                raise changed_store_error(title, f"there is no column {missing[0]!r}")
            refuse_other_kinds(title, by, keys, stored)
            constants = typed_constants(title, self._source.filters, stored)
            if keys.num_rows:
                rows = self._query_rows(deltalake, by, keys, constants)
            else:
                rows = stored.empty_table().select(self._schema.names)
        except DovetailError:
            raise
        except Exception as error:  # data files that cannot be read raise no error of the package
            self.close()
            if _LACKS_FEATURES in str(error):
                raise ConfigurationError(
                    title,
                    f"the package deltalake cannot read the table: {first_line(error)}",
                    "ALTER TABLE … DROP FEATURE typeWidening, or another one that it names, "
                    "or look rows up in another store",
                ) from error
            raise OSError(first_line(error)) from error
        return without_null_keys(title, cast_table(title, rows, self._schema), self._source.key)

    def _query_rows(
        self, deltalake: Any, by: Sequence[str], keys: pa.Table, constants: Mapping[str, pa.Array]
    ) -> pa.Table:
        """Return the rows in which each column of ``by`` has a value of one of the keys, and that
        pass the source's filters. There must be a key, and a constant in each filter.

        With several columns these may be more rows than asked for, since their values are not
        paired. They have the schema's columns and types. Raises ``DataError`` for a value that does
        not fit, deltalake's errors, and others for data files. ``deltalake``: the package.
        ``constants``: those of the source's filters by column, as ``typed_constants`` makes them.
        """
        wanted = [
            self._value_condition(name, column.to_pylist())
            for name, column in zip(by, keys.columns, strict=True)
        ]
        others = dict(constants)
        for name, values in self._source.filters:
            type_ = constants[name].type
            if _has_exact_bounds(type_):
                typed = others.pop(name)
                whole = pa.types.is_integer(type_)
                wanted.append(self._value_condition(name, typed.to_pylist() if whole else values))
        columns = ", ".join(map(double_quoted, dict.fromkeys([*self._schema.names, *others])))
        query = f"SELECT {columns} FROM t WHERE {' AND '.join(wanted)}"  # noqa: S608
        builder = deltalake.QueryBuilder()
        builder.execute(_EXACT_TIMES).read_all()
        rows = pa.table(builder.register("t", self._table).execute(query).read_all())
        # Cast first, since Arrow does not filter texts in the layout of deltalake.
        wanted_columns = cast_table(
            self._source.title, rows.select(self._schema.names), self._schema
        )
        return wanted_columns.filter(find_constants(rows, others))

    def _value_condition(self, name: str, values: Sequence[Any]) -> str:
        """Return the SQL condition that the column ``name`` has one of the values, or is null if
        None is one of them. ``values``: texts, numbers, booleans and None, at least one; None alone
        will do.
        """
        column = double_quoted(name)
        literals = [_sql_literal(value) for value in values if value is not None]
        parts = [f"{column} IS NULL"] if None in values else []
        if literals:
            parts.append(f"{column} IN ({', '.join(literals)})")
        return f"({' OR '.join(parts)})"


def _has_exact_bounds(type_: pa.DataType) -> bool:
    """Return True if files may be skipped by conditions on a column of the type. A file's bounds
    leave out NaN, and cut off microseconds and the digits of long decimals. Even a file that is
    read is harmed by them: if both are equal, deltalake takes them for all values of the column.
    """
    exact = (pa.types.is_integer, is_text, pa.types.is_boolean, pa.types.is_date)
    return any(is_kind(type_) for is_kind in exact)


def _arrow_columns(table: Any) -> pa.Schema:
    """Return the columns of a deltalake table, with Arrow's types, in order."""
    return pa.schema(table.schema().to_arrow())


def _sql_literal(value: Any) -> str:
    """Return a text, a finite number or a boolean as an SQL literal. Quotes are doubled."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _import_deltalake(title: str) -> Any:
    """Return the module ``deltalake``, with ``deltalake.exceptions`` imported. Raises
    ``ConfigurationError`` if it is not installed. ``title``: the source in errors.
    """
    return import_package(title, "deltalake", "deltalake", "deltalake.exceptions")


@validated
def delta_files(
    path: Path,
    *,
    key: ColumnNames,
    indexes: Indexes = (),
    where: Where | None = None,
    retries: Natural = 5,
) -> DeltaFilesLookup:
    """Declare a Delta table, by its path, in which delta joins and ``lookup`` find rows.

    A lookup reads the table's latest version by the package deltalake, without Spark. The
    package is needed on the driver and the workers: ``pip install 'dovetail[deltalake]'``.

    Parameters
    ----------
    path : str or Path
        The table's folder, which all workers can read. The package deltalake also reads an
        address such as ``"s3://bucket/orders"``, with credentials from the environment.
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
        If deltalake is missing. A query fails with it if the table cannot be read after all
        attempts, or has features that deltalake lacks, such as type widening.
    DataError
        In a query, for a row that does not fit the declared types, a null in the key or two
        rows with one key. Also for a missing column, and for constants in ``where`` of
        another type than their column.

    See Also
    --------
    index : Declare an index.
    Stream.lookup : Join each record with the rows of a source.
    to_delta : Keep a Delta table equal to a query's table.

    Notes
    -----
    Statistics of the files say which of them may have a key. Cluster or sort the table by
    the lookup columns, or each batch scans all of it.

    The columns have the declared types or narrower ones. Rows are looked up by whole
    numbers, texts or booleans, which match to the letter. Source: FLIP-486, "Public
    Interfaces".

    Examples
    --------
    >>> import tempfile
    >>> import deltalake
    >>> import dovetail as dt
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> folder = tempfile.TemporaryDirectory()
    >>> deltalake.write_deltalake(folder.name, pa.table({"name": ["ann"], "city": ["Oslo"]}))
    >>> users = dt.lookups.delta_files(folder.name, key="name")
    >>> clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    >>> columns = {"name": pa.string(), "city": pa.string()}
    >>> driver = testing.Driver(clicks.lookup(users, columns=columns, on="user"))
    >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
    [<id=1: user='ann', city='Oslo' @1>]
    """
    title = f"delta table {pathlib.Path(path).name}"
    _import_deltalake(title)
    options = declared_fields(
        title, key=key, indexes=indexes, where=where, timeout_s=1.0, retries=retries
    )
    refuse_mixed_constants(title, options["filters"])
    return DeltaFilesLookup(path=str(path), **options)
