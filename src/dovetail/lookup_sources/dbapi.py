"""Lookups in any database with a Python driver, by PEP 249 and in plain SQL."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.base.error_text import first_line
from dovetail.base.validation import ColumnNames, Natural, Positive, Text, validated
from dovetail.errors import ConfigurationError, DataError, PlanError
from dovetail.lookup_sources.conversion import changed_store_error, is_text, rows_as_table
from dovetail.lookup_sources.keys import (
    find_calendar_keys,
    find_rows_of_own_query,
    positions_among,
    refuse_types,
)
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, Indexes, Where, declared_fields

Quote: TypeAlias = Literal['"', "`", "["]
"""The character before a name in the database's SQL. The same one stands after it, but ``]`` for
``[``.
"""

_PARAMETER_MARKS: Mapping[str, Callable[[int], str]] = {
    "qmark": lambda _: "?",
    "numeric": lambda position: f":{position}",
    "named": lambda position: f":p{position}",
    "format": lambda _: "%s",
    "pyformat": lambda position: f"%(p{position})s",
}
"""The placeholder of a parameter, given its number from 1, for each ``paramstyle``."""
_NAMED_STYLES = ("named", "pyformat")
"""The styles in which a driver takes parameters as a mapping."""
_PERCENT_STYLES = ("format", "pyformat")
"""The styles in which ``%`` begins a placeholder."""
_NEEDED_NAMES = ("connect", "paramstyle", "Error", "OperationalError", "ProgrammingError")
"""The names that a driver's module must have."""


@dataclass(frozen=True, kw_only=True)
class DbapiLookup(DeclaredSource):
    """A table or a view of a database as a lookup source."""

    driver: str
    """The name of the driver's module."""
    table: str
    """The table's name, with or without its schema."""
    arguments: bytes = field(repr=False)
    """The arguments of the driver's ``connect``, pickled so that sources can be compared."""
    quote: Quote = '"'
    """The character before a quoted name."""
    keys_max: int = 10_000
    """The most values of keys in a query; a key of two columns counts twice."""
    keep_open: bool = True
    """True if the connection stays open between lookups."""

    @property
    def title(self) -> str:
        """The driver's module and the table, such as ``pymysql shop.orders``, for errors and
        ``explain``. It has none of the connection's secrets.
        """
        return f"{self.driver} {self.table}"

    def open(self, schema: pa.Schema) -> DbapiReader:
        """Return a reader whose rows have the columns of ``schema``. The reader connects at its
        first lookup. Raises ``ConfigurationError`` if the driver is missing or not by PEP 249.
        """
        return DbapiReader(self, schema)


class DbapiReader:
    """A reader with one connection, made at the first lookup and again after a failed query."""

    def __init__(self, source: DbapiLookup, schema: pa.Schema) -> None:
        """Import the driver, without connecting. Raises ``ConfigurationError`` if it is missing or
        not by PEP 249.
        """
        self._source = source
        self._schema = schema
        self._driver = _import_driver(source.title, source.driver)
        self._mark = _PARAMETER_MARKS[self._driver.paramstyle]
        self._connection: Any = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows whose columns ``by`` equal one of ``keys``, in any order. Also return the
        position of each row's key in ``keys``. Each query asks for at most ``keys_max`` values: a
        key of two columns counts twice.

        ``keys``: one column for each of ``by``, distinct, without nulls. Without keys a query
        checks that the table has the columns. The rows have the columns of the schema that the
        reader was opened with, which must have all of ``by``. They are compared with the keys
        again, since the database may compare more loosely. Only keys with a date outside the years
        1 to 9999, which Python's dates lack, are marked as unfit.

        Raises ``DataError`` for rows or keys of unsuitable types and nulls in the primary key, and
        ``ConfigurationError`` if no attempt succeeds. A missing column is ``ConfigurationError``,
        after all attempts, if the driver raises ``OperationalError`` or ``InterfaceError`` for it.
        It is ``DataError`` for the driver's other errors.
        """
        source = self._source
        kinds = (pa.types.is_integer, is_text, pa.types.is_boolean, pa.types.is_date)
        refuse_types(
            source.title,
            by,
            keys,
            (*kinds, pa.types.is_decimal, pa.types.is_binary),
            "Join by whole numbers, decimals, texts, bytes, booleans or dates",
        )
        step = max(1, source.keys_max // max(1, len(by)))
        fits = np.ones(keys.num_rows, np.bool_)
        for column in keys.columns:
            if pa.types.is_date(column.type):
                fits &= find_calendar_keys(column)
        possible = keys.filter(pa.array(fits))
        answers = call_with_retries(source, lambda: self._look_up_once(by, possible, step))
        rows = [row for answer in answers for row in answer]
        table = rows_as_table(source.title, rows, self._schema, source.key, counted=True)
        key = positions_among(possible, table.select(list(by)))
        asked = find_rows_of_own_query(key, step, [len(answer) for answer in answers])
        return Found(table.filter(pa.array(asked)), np.flatnonzero(fits)[key[asked]], ~fits)

    def close(self) -> None:
        """Close the connection, if there is one. A later lookup connects again. Errors of the
        driver are ignored.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _look_up_once(
        self, by: Sequence[str], keys: pa.Table, step: int
    ) -> list[Sequence[Sequence[Any]]]:
        """Look up ``keys`` by the columns ``by`` once, ``step`` of them in a query, connecting if
        need be. Return the rows that each query gave, as tuples in the order of the schema.

        Raises ``OSError`` if another attempt may help: for the driver's ``OperationalError`` or
        ``InterfaceError``, and for any error of connecting. The driver's other errors become
        ``DataError``, errors that are not the driver's pass. Any error of a query closes the
        connection. The errors raised have none of the driver's in their chain, which may show
        connection arguments. After success the transaction is rolled back, or the connection closed
        if it is not kept open.
        """
        try:
            if self._connection is None:
                self._connection = self._driver.connect(**pickle.loads(self._source.arguments))  # noqa: S301 -- the user's own
        except Exception as error:
            raise OSError(first_line(error)) from None
        try:
            answers = [*self._query_rows(by, keys, step)]
        except Exception as error:
            self.close()
            if not isinstance(error, self._driver.Error):
                raise
            raise self._error_to_raise(error) from None
        self._end_transaction()
        return answers

    def _end_transaction(self) -> None:
        """End a transaction that the driver may have begun, so that the next lookup sees all
        commits made since. Close the connection instead if it is not kept open. Errors of the
        driver are ignored.
        """
        if not self._source.keep_open:
            self.close()
            return
        # Some drivers complain without a transaction. A lost connection fails the next query.
        with suppress(self._driver.Error):
            self._connection.rollback()

    def _error_to_raise(self, error: Exception) -> Exception:
        """Return the error to raise for ``error``, one of the driver's: ``OSError`` if another
        attempt may help (``OperationalError``, ``InterfaceError``), else ``DataError``. A
        ``ProgrammingError`` counts as a table or column that is missing.
        """
        title, driver = self._source.title, self._driver
        # Not all drivers have InterfaceError.
        passing = (
            driver.OperationalError,
            getattr(driver, "InterfaceError", driver.OperationalError),
        )
        if isinstance(error, passing):
            return OSError(first_line(error))
        if isinstance(error, driver.ProgrammingError):
            return changed_store_error(title, error)
        return DataError(
            title,
            f"its rows cannot be read: {first_line(error)}",
            "See that its columns have the declared types and that its user can read them",
        )

    def _query_rows(
        self, by: Sequence[str], keys: pa.Table, step: int
    ) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield, query by query, the rows of ``step`` of the ``keys`` in the columns ``by``, with
        values in the order of the schema. The last query may have fewer keys.

        Rows of other keys may be among them, if the database compares loosely. Without keys one
        query still checks that the columns exist. The connection must be open; errors of the driver
        pass.
        """
        with closing(self._connection.cursor()) as cursor:
            # Query even without keys, to check that the table and its columns exist.
            for start in range(0, max(keys.num_rows, 1), step):
                cursor.execute(*self._statement(by, keys.slice(start, step)))
                yield cursor.fetchall()

    def _statement(self, by: Sequence[str], keys: pa.Table) -> tuple[str, Any]:
        """Return an SQL query for the rows that have one of ``keys`` in the columns ``by`` and pass
        the source's filters, and its parameters. The query selects the schema's columns in order.

        The parameters are a mapping (``p1``, ``p2`` …) for a ``paramstyle`` with names, else a
        tuple. Without keys the query finds no rows.
        """
        parameters: list[Any] = []

        def add_parameter(value: Any) -> str:
            """Append ``value`` to the query's parameters and return its placeholder in SQL."""
            parameters.append(value)
            return self._mark(len(parameters))

        columns = ", ".join(map(self._quoted_name, self._schema.names))
        table = ".".join(map(self._quoted_name, self._source.table.split(".")))
        conditions = [
            self._key_condition(by, keys, add_parameter),
            *self._filter_conditions(add_parameter),
        ]
        query = f"SELECT {columns} FROM {table} WHERE {' AND '.join(conditions)}"  # noqa: S608
        if self._driver.paramstyle in _NAMED_STYLES:
            return query, {f"p{n}": value for n, value in enumerate(parameters, start=1)}
        return query, tuple(parameters)

    def _key_condition(
        self, by: Sequence[str], keys: pa.Table, add_parameter: Callable[[Any], str]
    ) -> str:
        """Return the SQL condition that a row has one of the keys in the columns ``by``, in a form
        that uses indexes: ``IN`` for one column, else ``OR``. Return ``1 = 0`` without keys.

        ``add_parameter``: adds a value and returns its placeholder. The values are added in the
        order in which the placeholders stand.
        """
        names = [self._quoted_name(name) for name in by]
        values = [column.to_pylist() for column in keys.columns]
        if not keys.num_rows:
            return "1 = 0"
        if len(names) == 1:
            return f"{names[0]} IN ({', '.join(map(add_parameter, values[0]))})"
        rows = (
            " AND ".join(f"{name} = {add_parameter(v)}" for name, v in zip(names, row, strict=True))
            for row in zip(*values, strict=True)
        )
        return f"({' OR '.join(f'({row})' for row in rows)})"

    def _filter_conditions(self, add_parameter: Callable[[Any], str]) -> Iterator[str]:
        """Yield an SQL condition for each of the source's filters, in parentheses: its column has
        one of the constants, or is null if None is one of them. ``add_parameter``: adds a constant
        that is not None to the query's parameters and returns its placeholder.
        """
        for column, constants in self._source.filters:
            name, not_null = self._quoted_name(column), [c for c in constants if c is not None]
            parts = [f"{name} IS NULL"] if None in constants else []
            if not_null:
                parts.append(f"{name} IN ({', '.join(map(add_parameter, not_null))})")
            yield f"({' OR '.join(parts)})"

    def _quoted_name(self, name: str) -> str:
        """Return a name in quotes for SQL, in the source's kind of quotes. The closing quote is
        doubled within the name, and a dot in it separates nothing. ``%`` is doubled if placeholders
        begin with it.
        """
        end = {"[": "]"}.get(self._source.quote, self._source.quote)
        written = f"{self._source.quote}{name.replace(end, end * 2)}{end}"
        return written.replace("%", "%%") if self._driver.paramstyle in _PERCENT_STYLES else written


def _import_driver(title: str, name: str) -> Any:
    """Import and return the driver's module, of the import name ``name``. ``title``: the source in
    errors.

    Raises ``ConfigurationError`` if it cannot be imported, or if its ``paramstyle`` is not one of
    PEP 249. So it does if it lacks ``connect``, ``paramstyle``, ``Error``, ``OperationalError`` or
    ``ProgrammingError``.
    """
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            title,
            f"its driver cannot be imported: {first_line(error)}",
            "Install it for the driver and the workers, or name another one",
        ) from error
    missing = [needed for needed in _NEEDED_NAMES if not hasattr(module, needed)]
    if missing or module.paramstyle not in _PARAMETER_MARKS:
        raise ConfigurationError(
            title,
            f"the module {name} is no driver by PEP 249: it has no {missing[0]}"
            if missing
            else f"the driver's paramstyle is {module.paramstyle!r}",
            f"Name a module with {', '.join(_NEEDED_NAMES)}",
        )
    return module


@validated
def dbapi(
    driver: Text,
    table: Text,
    *,
    connect: Mapping[str, Any],
    key: ColumnNames,
    indexes: Indexes = (),
    where: Where | None = None,
    quote: Quote = '"',
    keys_max: Positive = 10_000,
    keep_open: bool = True,
    retries: Natural = 5,
) -> DbapiLookup:
    """Declare a table or view of any database with a PEP 249 driver, in which rows are looked up.

    PEP 249 is Python's interface of database drivers. DuckDB and MariaDB are tested. For
    SQL Server and Oracle, the SQL is tested without a server. For PostgreSQL use
    ``postgres``.

    Parameters
    ----------
    driver : str
        The driver's module, which all workers can import: ``"duckdb"``, ``"pymysql"``. A
        module of your own needs the same names: ``connect``, ``paramstyle`` and the errors.
    table : str
        The name of a table or view. It includes the schema if the connection needs it:
        ``"sales.orders"``.
    connect : mapping
        The arguments of the driver's ``connect``, time-outs among them. There is no other
        time-out.
    key : str or list of str
        The columns of its primary key, which are never null.
    indexes : list of Index, default ()
        The other columns by which it finds rows, such as ``[dt.lookups.index("customer")]``.
    where : mapping, optional
        Columns with their constants: a text, a number, a boolean, None for null, or a list
        of these. A row belongs to the table if each of these columns has one of its
        constants. By default all rows do.
    quote : {'"', "`", "["}, default '"'
        The character before a name in the database's SQL. MySQL and MariaDB have the
        backtick, and SQL Server takes the bracket.
    keys_max : int, default 10000
        The most values of keys in a query. A key of two columns counts twice.
        Several queries of one lookup see one moment if the database's transactions do.
        Give 2,000 for SQL Server, and 1,000 for Oracle before 23ai.
    keep_open : bool, default True
        True if a worker process keeps its connection between lookups. A DuckDB file is
        locked against writers meanwhile.
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
        If ``connect`` does not pickle, ``key`` names no column, or a list in ``where`` is
        empty.
    ConfigurationError
        If the driver cannot be imported, or is no driver by PEP 249. A query fails with it
        if the database does not answer after all attempts.
    DataError
        In a query, for a row that does not fit the declared types, a null in the key, or
        two rows with one key. A missing column is this error or ``ConfigurationError``, by
        the class of the driver's error.

    See Also
    --------
    index : Declare an index.
    Stream.lookup : Join each record with the rows of a source.
    postgres : The same for PostgreSQL, with time-outs.

    Notes
    -----
    Rows are looked up by whole numbers, decimals, texts, bytes, booleans and dates. Texts
    must match to the letter, even if the column's collation ignores case. Times without a
    zone are in UTC, and booleans may be 0 and 1. Sources: PEP 249; FLIP-486, "Public Interfaces".

    Examples
    --------
    >>> import sqlite3, tempfile
    >>> import dovetail as dt
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = sqlite3.connect(f"{folder.name}/shop.db", isolation_level=None)
    >>> _ = store.execute("CREATE TABLE users (name TEXT PRIMARY KEY, city TEXT)")
    >>> _ = store.execute("INSERT INTO users VALUES ('ann', 'Oslo')")
    >>> address = {"database": f"{folder.name}/shop.db", "timeout": 10.0}
    >>> users = dt.lookups.dbapi("sqlite3", "users", connect=address, key="name")
    >>> clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    >>> columns = {"name": pa.string(), "city": pa.string()}
    >>> driver = testing.Driver(clicks.lookup(users, columns=columns, on="user"))
    >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
    [<id=1: user='ann', city='Oslo' @1>]
    """
    title = f"{driver} {table}"
    try:
        arguments = pickle.dumps(dict(connect))
    except Exception as error:
        raise PlanError(
            title,
            f"connect= cannot travel to the workers: {first_line(error)}",
            "Give plain values",
        ) from error
    _import_driver(title, driver)
    options = declared_fields(
        title, key=key, indexes=indexes, where=where, timeout_s=1.0, retries=retries
    )
    return DbapiLookup(
        driver=driver,
        table=table,
        arguments=arguments,
        quote=quote,
        keys_max=keys_max,
        keep_open=keep_open,
        **options,
    )
