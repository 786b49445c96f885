"""Lookups in a SQLite file: a store without a server, for one machine."""

from __future__ import annotations

import pathlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Mask
from dovetail.base.columns import double_quoted
from dovetail.base.validation import ColumnNames, Natural, Path, Seconds, Text, validated
from dovetail.lookup_sources.conversion import changed_store_error, rows_as_table
from dovetail.lookup_sources.keys import refuse_types
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, Indexes, Where, declared_fields

_PARAMETERS_MAX = 30_000
"""The number of parameters in a query at most."""
_STEPS_PER_CHECK = 10_000
"""The number of SQLite's steps between two checks of the deadline."""


@dataclass(frozen=True, kw_only=True)
class SqliteLookup(DeclaredSource):
    """A table of a SQLite file as a lookup source."""

    path: str
    """The path of the file."""
    table: str
    """The name of the table."""

    @property
    def title(self) -> str:
        """The word ``sqlite`` and the table, such as ``sqlite orders``, for errors and
        ``explain``.
        """
        return f"sqlite {self.table}"

    def open(self, schema: pa.Schema) -> SqliteReader:
        """Return a reader whose rows have the columns of ``schema``. The reader opens the file at
        its first lookup.
        """
        return SqliteReader(self, schema)


class SqliteReader:
    """A reader with one read-only connection, opened at the first lookup and again after a failed
    one.
    """

    def __init__(self, source: SqliteLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows whose columns ``by`` equal one of ``keys``, in any order. Also return the
        position of each row's key in ``keys``. All is read in one transaction. Keys with a NaN are
        marked as unfit, since SQLite cannot store one.

        ``keys``: one column for each of ``by``, distinct, without nulls. Without keys a query
        checks that the file has the table with its columns. A query has at most 30,000 values of
        keys. The rows have the columns of the schema that the reader was opened with.

        Raises ``DataError`` for keys that are no whole numbers, texts, floats or bytes. Also for
        rows that do not fit the schema, nulls in the primary key, and a missing table or column.
        Raises ``ConfigurationError`` if no attempt succeeds, as for a file that is no database.
        SQLite's other errors pass.
        """
        title = self._source.title
        kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_floating, pa.types.is_binary)
        refuse_types(title, by, keys, kinds, "Join by whole numbers, texts or bytes")
        rows = call_with_retries(
            self._source, lambda: self._query_rows(by, keys), (sqlite3.OperationalError, OSError)
        )
        table = rows_as_table(
            title, [row[1:] for row in rows], self._schema, self._source.key, typeless=True
        )
        key = np.array([row[0] for row in rows], np.int64)
        return Found(table, key, _find_nan_keys(keys))

    def close(self) -> None:
        """Close the SQLite file, if it is open. A later lookup opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _query_rows(self, by: Sequence[str], keys: pa.Table) -> list[tuple[Any, ...]]:
        """Return all rows found for ``keys`` in the columns ``by``, in one transaction. Each row
        has the index of its key in ``keys``, from 0, in front, then the schema's columns.

        Raises ``sqlite3.OperationalError`` if another attempt may help, and ``OSError`` for a file
        that is no database or a damaged one. Raises ``DataError`` for a missing table or column.
        Other errors of SQLite pass. An error of a query closes the connection.
        """
        connection = self._connect()
        step = max(1, _PARAMETERS_MAX // keys.num_columns)
        rows: list[tuple[Any, ...]] = []
        try:
            connection.execute("BEGIN")
            # Query even without keys, to check the file, the table and its columns.
            for start in range(0, max(keys.num_rows, 1), step):
                rows += self._query_chunk(connection, by, keys.slice(start, step), start)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            if str(error).startswith(("no such column", "no such table")):
                raise changed_store_error(self._source.title, error) from error
            if type(error) is sqlite3.DatabaseError:  # its subclasses are errors of other kinds
                raise OSError(str(error)) from error
            raise
        return rows

    def _query_chunk(
        self, connection: sqlite3.Connection, by: Sequence[str], keys: pa.Table, start: int
    ) -> list[tuple[Any, ...]]:
        """Return the rows of some of a lookup's keys, in no particular order. Each is a tuple with
        the index of its key in front, then the schema's columns.

        ``connection``: an open one, whose time limit is set anew. ``keys``: one column for each of
        ``by``, without nulls, few enough for SQLite's limit on parameters. ``start``: the index of
        the first of them among all keys of the lookup. A key without rows is not in the result; one
        with several rows is there several times. SQLite raises ``OperationalError`` once the query
        takes longer than the source's ``timeout_s``.
        """
        deadline = time.monotonic() + self._source.timeout_s
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)
        columns = [column.to_pylist() for column in keys.columns]
        constants = [v for _, values in self._source.filters for v in values if v is not None]
        parameters = [v for row in zip(*columns, strict=True) for v in row] + constants
        return connection.execute(self._statement(by, keys.num_rows, start), parameters).fetchall()

    def _connect(self) -> sqlite3.Connection:
        """Return the connection to the file, read only, opening it on first use. If another file
        has replaced the one at the path, close the connection and open that file. A missing file
        raises SQLite's ``OperationalError``.
        """
        path = pathlib.Path(self._source.path)
        file = (path.stat().st_dev, path.stat().st_ino) if path.exists() else None
        if self._connection is not None and file == self._file:
            return self._connection
        self.close()
        self._file = file
        address = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(
            address,
            uri=True,
            timeout=self._source.timeout_s,
            check_same_thread=False,
            isolation_level=None,
        )
        return self._connection

    def _statement(self, by: Sequence[str], count: int, start: int = 0) -> str:
        """Return an SQL query for the rows of ``count`` keys in the columns ``by`` that pass the
        source's filters. Its rows have the key's index, then the schema's columns.

        ``count`` may be 0; the query finds no rows then. ``start``: the index of the first key. The
        query's parameters are the keys, row by row, then the filters' constants that are not None.
        """
        names = [f"k{position}" for position in range(len(by))]
        marks = ", ".join("?" * len(by))
        rows = ", ".join(f"({start + position}, {marks})" for position in range(count))
        rows = rows or f"(0, {', '.join(['NULL'] * len(by))})"  # which equals nothing
        # SQLite reads an unknown quoted name as a text, so columns are qualified.
        selected = ", ".join(f"t.{double_quoted(name)}" for name in self._schema.names)
        # The column's own collation uses the index, but may find too many rows.
        equal = [f"t.{double_quoted(c)} = k.{n}" for c, n in zip(by, names, strict=True)]
        equal += [f"{condition} COLLATE BINARY" for condition in equal]
        equal += list(self._filter_conditions())
        # CROSS JOIN makes the keys the outer loop, so the table is searched by its index.
        return (
            f"WITH k(n, {', '.join(names)}) AS (VALUES {rows}) "  # noqa: S608
            f"SELECT k.n, {selected} FROM k CROSS JOIN {double_quoted(self._source.table)} AS t "
            f"WHERE {' AND '.join(equal)}"
        )

    def _filter_conditions(self) -> Iterator[str]:
        """Yield an SQL condition for each of the source's filters, in parentheses: its column has
        one of the constants, or is null if None is one of them. Each constant that is not None is a
        parameter, ``?``, in the order of the filters.
        """
        for column, constants in self._source.filters:
            name = f"t.{double_quoted(column)}"
            not_null_count = sum(value is not None for value in constants)
            parts = [f"{name} IS NULL"] if None in constants else []
            if not_null_count:
                parts.append(f"{name} IN ({', '.join('?' * not_null_count)})")
            yield f"({' OR '.join(parts)})"


def _find_nan_keys(keys: pa.Table) -> Mask:
    """Return a mask of the n rows of ``keys`` with a NaN, which SQLite takes for a null: bool[n].
    Only float columns count; they must have no nulls.
    """
    nan = np.zeros(keys.num_rows, np.bool_)
    for column in keys.columns:
        if pa.types.is_floating(column.type):
            nan |= np.isnan(column.to_numpy())
    return nan


@validated
def sqlite(
    path: Path,
    table: Text,
    *,
    key: ColumnNames,
    indexes: Indexes = (),
    where: Where | None = None,
    timeout_s: Seconds = 10.0,
    retries: Natural = 5,
) -> SqliteLookup:
    """Declare a table of a SQLite file in which delta joins and ``lookup`` find rows.

    All workers must see the file at this path, so the source suits one machine: tests and
    small tools.

    Parameters
    ----------
    path : str or Path
        The path of the file. The workers open it for reading only.
    table : str
        The name of a table or a view.
    key : str or list of str
        The columns of its primary key, which are never null.
    indexes : list of Index, default ()
        The other columns by which it finds rows, such as ``[dt.lookups.index("customer")]``.
    where : mapping, optional
        Columns with their constants: a text, a number, a boolean, None for null, or a list
        of these. A row belongs to the table if each of these columns has one of its
        constants. By default all rows do.
    timeout_s : float, default 10.0
        The limit in seconds for each query of each attempt, and for the wait for a writer's
        lock.
    retries : int, default 5
        The number of further attempts after a failure. The wait before the first one is 0.1
        s. Waits double, up to 5 s.

    Returns
    -------
    LookupSource
        The source, for ``Table.with_lookup`` and ``Stream.lookup``. The file is not opened
        yet.

    Raises
    ------
    PlanError
        If ``key`` names no column, or a list in ``where`` is empty.
    ConfigurationError
        In a query, if the file cannot be read after all attempts.
    DataError
        In a query, for a row that does not fit the declared types, a null in the key or two
        rows with one key. Also for a missing column.

    See Also
    --------
    index : Declare an index.
    Stream.lookup : Join each record with the rows of a source.
    postgres : The same for a PostgreSQL table.

    Notes
    -----
    SQLite only has numbers, texts and bytes, so other types are read by rule:

    - A timestamp is a text (``2024-05-01T10:00:00Z``), or a whole number of seconds since
      1970. A text without a zone only fits a declared type without one.
    - A date is a text (``2024-05-01``). A decimal is a text or a whole number.
    - A boolean is 0 or 1.

    Rows are looked up by numbers, texts or bytes. Texts must match to the letter, even if
    the column's collation ignores case. Source: FLIP-486, "Public Interfaces".

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
    >>> users = dt.lookups.sqlite(f"{folder.name}/shop.db", "users", key="name")
    >>> clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    >>> columns = {"name": pa.string(), "city": pa.string()}
    >>> driver = testing.Driver(clicks.lookup(users, columns=columns, on="user", how="left"))
    >>> driver.pipe(clicks, [{"id": 1, "user": "ann"}, {"id": 2, "user": "Ann"}], timestamp=1)
    [<id=1: user='ann', city='Oslo' @1>, <id=2: user='Ann', city=None @1>]
    """
    title = f"sqlite {table}"
    options = declared_fields(
        title, key=key, indexes=indexes, where=where, timeout_s=timeout_s, retries=retries
    )
    return SqliteLookup(path=str(path), table=table, **options)
