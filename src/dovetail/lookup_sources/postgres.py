"""Lookups in PostgreSQL: one query for all keys of a batch, over one connection per process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.base.error_text import first_line
from dovetail.base.validation import ColumnNames, Natural, Seconds, Text, validated
from dovetail.errors import DataError
from dovetail.lookup_sources.conversion import (
    changed_store_error,
    refuse_mixed_constants,
    rows_as_table,
)
from dovetail.lookup_sources.postgres_connection import (
    connect,
    deadline,
    milliseconds,
    psycopg_for,
    refuse_names,
    without_secrets,
)
from dovetail.lookup_sources.postgres_types import (
    COLUMNS_QUERY,
    StoreColumn,
    equality_condition,
    find_possible_keys,
    key_column_type,
    refuse_column,
    select_expression,
)
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, Indexes, Where, declared_fields


@dataclass(frozen=True, kw_only=True)
class PostgresLookup(DeclaredSource):
    """A PostgreSQL table, view or materialized view as a lookup source."""

    dsn: str = field(repr=False)
    """The connection string or URL. It may have a password, so ``repr`` omits it."""
    table: str
    """The table's name, with or without its schema and a dot between them."""

    @property
    def title(self) -> str:
        """The word ``postgres`` and the table, such as ``postgres sales.orders``, for errors and
        ``explain``. It has none of the connection's secrets.
        """
        return f"postgres {self.table}"

    def open(self, schema: pa.Schema) -> PostgresReader:
        """Return a reader whose rows have the columns of ``schema``. The reader connects at its
        first lookup. Raises ``ConfigurationError`` without psycopg.
        """
        return PostgresReader(self, schema)


class PostgresReader:
    """A reader with one connection, made at the first lookup and again whenever it is lost.

    A lookup leaves nothing in the server's session, which others may share through a pooler. Each
    lookup is a transaction of its own, with its own settings.
    """

    def __init__(self, source: PostgresLookup, schema: pa.Schema) -> None:
        """Import psycopg, without connecting. Raises ``ConfigurationError`` if it is missing."""
        self._source = source
        self._schema = schema
        self._psycopg = psycopg_for(source.title)
        self._connection: Any = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows whose columns ``by`` equal one of ``keys``, in any order. One query sends
        the keys as arrays.

        Also return the position of each row's key among ``keys``, and a mask of the keys that the
        columns cannot have. Such keys are not sent. ``keys``: one column for each of ``by``,
        distinct, without nulls. Without keys the query runs, too, so a missing table or column is
        noticed.

        Raises ``ConfigurationError`` if no attempt succeeds. Raises ``DataError`` for a missing
        table or column, a type or value that does not fit, a null in the primary key, or missing
        rights.
        """
        return call_with_retries(
            self._source, lambda: self._look_up_once(keys.rename_columns(list(by)))
        )

    def close(self) -> None:
        """Close the connection to the server, if there is one. A later lookup connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look_up_once(self, keys: pa.Table) -> Found:
        """Look up ``keys`` once, in a transaction of its own, connecting if need be. Return the
        rows found, the position of each row's key in ``keys``, and a mask of the unfit keys. The
        store's columns cannot have these. ``keys``: columns by their names in the store.

        Raises ``OSError`` if another attempt may help, else ``DataError``; errors that are not
        psycopg's pass. Any error closes the connection. The errors raised have none of psycopg's in
        their chain, which may show the DSN.
        """
        try:
            self._connect()
            with deadline(self._connection, self._source.timeout_s):
                self._begin_transaction()
                answer = self._find_rows(keys)
                self._connection.execute("COMMIT")
        except Exception as error:
            self.close()
            if not isinstance(error, self._psycopg.Error):
                raise
            failure = self._error_to_raise(error)
        else:
            return answer
        raise failure

    def _error_to_raise(self, error: Exception) -> Exception:
        """Return the error to raise for ``error``, one of psycopg's, without the connection's
        secrets: ``OSError`` if another attempt may help, else ``DataError``.

        Another attempt may help after psycopg's ``OperationalError`` and ``InterfaceError``.
        """
        errors, title = self._psycopg.errors, self._source.title
        if isinstance(error, (self._psycopg.OperationalError, self._psycopg.InterfaceError)):
            return OSError(without_secrets(self._source.dsn, first_line(error)))
        gone = (errors.UndefinedColumn, errors.UndefinedTable, errors.UndefinedFunction)
        if isinstance(error, (*gone, errors.DatatypeMismatch)):
            return changed_store_error(title, error)
        return DataError(
            title,
            f"its rows cannot be read: {first_line(error)}",
            "See that the lookup's user can read these columns of all rows",
        )

    def _connect(self) -> None:
        """Connect, unless there is an open connection. Psycopg closes a connection that is lost.
        Raises psycopg's error if the server cannot be reached.
        """
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._source.dsn, self._source.timeout_s)

    def _begin_transaction(self) -> None:
        """Begin a read-only transaction, with the settings that determine the form of values: UTC,
        ISO dates, the server's encoding. The server stops its queries after ``timeout_s``.
        """
        self._connection.execute(
            "BEGIN READ ONLY; SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; "
            f"SET LOCAL statement_timeout = {milliseconds(self._source.timeout_s)}; "
            f"SET LOCAL client_encoding = '{self._server_encoding()}'"
        )

    def _server_encoding(self) -> str:
        """Return PostgreSQL's name of the server's encoding, which limits the texts that the server
        can have. ``UTF8`` stands for an unknown encoding and for ``SQL_ASCII``.
        """
        encoding = self._connection.info.parameter_status("server_encoding")
        return "UTF8" if encoding in (None, "SQL_ASCII") else encoding

    def _find_rows(self, keys: pa.Table) -> Found:
        """Return the rows found by one query, which runs without keys, too, with the position of
        each row's key in ``keys``. Keys that the store's columns cannot have are not sent, but
        marked as unfit. ``keys``: columns by their names in the store.

        Must run in the transaction that ``_begin_transaction`` begins. Raises ``DataError`` for
        columns or values that are missing or do not fit; errors of psycopg pass.
        """
        columns = self._store_columns(keys.schema)
        encoding = self._connection.info.encoding
        fine = np.logical_and.reduce(
            [
                find_possible_keys(columns[name], column.combine_chunks(), encoding)
                for name, column in zip(keys.schema.names, keys.columns, strict=True)
            ]
        )
        cursor = self._connection.execute(
            self._statement(keys.schema.names, columns),
            self._parameters(keys.filter(pa.array(fine)), columns),
        )
        rows = cursor.fetchall()
        table = rows_as_table(
            self._source.title, [row[1:] for row in rows], self._schema, self._source.key
        )
        key_index = np.array([row[0] for row in rows], np.int64) - 1
        return Found(table, np.flatnonzero(fine)[key_index], ~fine)

    def _store_columns(self, keys: pa.Schema) -> dict[str, StoreColumn]:
        """Return all columns that the table has now, by name, read from PostgreSQL's catalog.
        Columns of ``keys``, the keys' names and types, and of the schema are checked.

        Raises ``DataError`` for one that is missing, and for a ``double precision`` that is
        declared a single float. So it does for a column of ``keys`` or of the primary key whose
        type is not compared exactly with the declared one. A missing table raises psycopg's
        ``UndefinedTable``.
        """
        title, name = self._source.title, self._table_identifier().as_string(self._connection)
        catalog_rows = self._connection.execute(COLUMNS_QUERY, [name]).fetchall()
        columns = {row[0]: StoreColumn(*row) for row in catalog_rows}
        for asked in (*keys, *self._schema):
            column = columns.get(asked.name)
            if column is None:
                raise changed_store_error(title, f"column {asked.name} does not exist")
            key = column.name in (*keys.names, *self._source.key)
            refuse_column(title, column, asked.type, key=key)
        return columns

    def _table_identifier(self) -> Any:
        """Return psycopg's identifier of the table: its name, quoted, with its schema if given."""
        return self._psycopg.sql.Identifier(*self._source.table.split("."))

    def _statement(self, by: Sequence[str], columns: Mapping[str, StoreColumn]) -> Any:
        """Return psycopg's query for the rows that equal a key in the columns ``by`` and pass the
        filters. The keys are sent as one array for each of ``by``; empty arrays give no rows.

        Each row begins with the ordinal of its key, from 1; then come the schema's columns in
        order. ``columns``: the store's columns by name.
        """
        sql = self._psycopg.sql
        join, identifier = sql.SQL(", ").join, sql.Identifier
        names = [identifier(f"k{column_index}") for column_index in range(len(by))]
        of_store = {name: sql.SQL("t.{}").format(identifier(name)) for name in columns}
        matches = [
            sql.SQL(equality_condition(columns[column])).format(
                of_store[column], sql.SQL("k.{}").format(name)
            )
            for column, name in zip(by, names, strict=True)
        ]
        matches += [
            _constants_condition(sql, column, values) for column, values in self._source.filters
        ]
        return sql.SQL(
            "SELECT k.n, {} FROM {} AS t JOIN unnest({}) WITH ORDINALITY AS k({}, n) ON {}"
        ).format(
            join(
                sql.SQL(select_expression(columns[field.name], field.type)).format(
                    of_store[field.name]
                )
                for field in self._schema
            ),
            self._table_identifier(),
            join(sql.SQL(f"%s::{key_column_type(columns[column]).sql}[]") for column in by),
            join(names),
            sql.SQL(" AND ").join(matches),
        )

    def _parameters(self, keys: pa.Table, columns: Mapping[str, StoreColumn]) -> list[Any]:
        """Return the parameters of the query: a list of values for each key column, then one for
        each filter with constants that are not null.

        ``keys``: columns by their names in the store, only keys that these can have. ``columns``:
        the store's columns by name.
        """
        travelling = (
            column.cast(key_column_type(columns[name]).arrow or column.type)
            for name, column in zip(keys.schema.names, keys.columns, strict=True)
        )
        constants = (_constants_to_send(c) for _, c in self._source.filters)
        return [*(column.to_pylist() for column in travelling), *(c for c in constants if c)]


def _constants_condition(sql: Any, column: str, constants: Sequence[Any]) -> Any:
    """Return psycopg's SQL condition that the column ``t.<column>`` has one of the constants, or is
    null if None is one of them. There must be a constant.

    Constants that are not None are one parameter, a list, which the caller sends. ``sql``: the
    module ``psycopg.sql``.
    """
    name = sql.Identifier(column)
    parts = [sql.SQL("t.{} IS NULL").format(name)] if None in constants else []
    if any(value is not None for value in constants):
        parts.append(sql.SQL("t.{} = ANY(%s)").format(name))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))


def _constants_to_send(constants: Sequence[Any]) -> list[Any]:
    """Return the constants that are not None as values of one type, as psycopg needs them: whole
    numbers beside floats become floats, others stay as they are.
    """
    values = [value for value in constants if value is not None]
    return [*map(float, values)] if any(isinstance(v, float) for v in values) else values


@validated
def postgres(
    dsn: str,
    table: Text,
    *,
    key: ColumnNames,
    indexes: Indexes = (),
    where: Where | None = None,
    timeout_s: Seconds = 10.0,
    retries: Natural = 5,
) -> PostgresLookup:
    """Declare a PostgreSQL table or view in which delta joins and ``lookup`` find rows.

    A delta join keeps no rows in state: it asks the stores of both tables. It needs the
    package psycopg on the driver and the workers: ``pip install 'dovetail[postgres]'``.

    Parameters
    ----------
    dsn : str
        A connection string or URL, as psycopg takes it. No error and no plan shows it.
    table : str
        The name of a table, a view or a materialized view. It includes the schema if the
        schema is not on the search path: ``"sales.orders"``.
    key : str or list of str
        The columns of its primary key, which are never null.
    indexes : list of Index, default ()
        The other columns by which it finds rows, such as ``[dt.lookups.index("customer")]``.
    where : mapping, optional
        Columns with their constants: a text, a number, a boolean, None for null, or a list
        of these. A row belongs to the table if each of these columns has one of its
        constants. By default all rows do.
    timeout_s : float, default 10.0
        The limit in seconds for connecting (at least 2 s) and for each query. The server
        then stops the query. A second later the connection is cut.
    retries : int, default 5
        The number of further attempts after a failure. The wait before the first one is 0.1
        s. Waits double, up to 5 s.

    Returns
    -------
    LookupSource
        The source, for ``Table.with_lookup`` and ``Stream.lookup``. Nothing connects yet.

    Raises
    ------
    PlanError
        If ``dsn`` is no connection string, ``table`` is no name, or ``key`` names no
        column. Also if a list in ``where`` is empty, or has constants that no column has
        together.
    ConfigurationError
        If psycopg is missing. A query fails with it if the server does not answer after all
        attempts.
    DataError
        In a query, for a row that does not fit the declared types, a null in the key or two
        rows with one key. Also for a missing column.

    See Also
    --------
    index : Declare an index.
    Table.with_lookup : Declare that a source holds the table's rows.
    Stream.lookup : Join each record with the rows of a source.
    sqlite : The same for a SQLite file.
    dbapi : The same for any database with a Python driver.
    delta_files : The same for a Delta table.

    Notes
    -----
    Each worker process keeps one connection, and the server may be behind a pooler. A batch
    of keys is one query in a transaction of its own. It reads only the columns that the
    join needs.

    Keys match to the letter, even if the column's collation ignores case. Times without a
    zone are in UTC. Source: FLIP-486, "Public Interfaces".

    Examples
    --------
    >>> import dovetail as dt
    >>> orders = dt.lookups.postgres(
    ...     "postgresql://app:secret@db/shop",
    ...     "sales.orders",
    ...     key="id",
    ...     indexes=[dt.lookups.index("customer")],
    ...     where={"region": ["EU", "UK"]},
    ... )
    >>> orders.title, orders.filters
    ('postgres sales.orders', (('region', ('EU', 'UK')),))
    """
    title = f"postgres {table}"
    psycopg_for(title)
    refuse_names(title, dsn, table)
    options = declared_fields(
        title, key=key, indexes=indexes, where=where, timeout_s=timeout_s, retries=retries
    )
    # Of one type, whole numbers may be beyond int64, as numeric has them.
    mixed = [(n, c) for n, c in options["filters"] if len({type(v) for v in c} - {type(None)}) > 1]
    refuse_mixed_constants(title, mixed)
    return PostgresLookup(dsn=dsn, table=table, **options)
