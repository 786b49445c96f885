"""Look-ups in PostgreSQL: one query for all keys of a batch, over one connection per process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dovetail.errors import ConfigurationError, PlanError
from dovetail.lookup.fit import changed, fitted
from dovetail.lookup.retry import persistently
from dovetail.lookup.source import Declared, Index, Where, declared

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""


@dataclass(frozen=True, kw_only=True)
class PostgresLookup(Declared):
    """A PostgreSQL table, view or materialized view as a look-up source."""

    dsn: str = field(repr=False)
    table: str

    @property
    def title(self) -> str:
        """What errors call it; without the connection's secrets."""
        return f"postgres {self.table}"

    def open(self, schema: pa.Schema) -> PostgresReader:
        """A reader; it connects at its first look-up."""
        return PostgresReader(self, schema)


class PostgresReader:
    """One connection, made when needed and again when it is lost."""

    def __init__(self, source: PostgresLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._psycopg = _psycopg(source.title)
        self._connection: Any = None
        self._types: dict[str, str] = {}

    def rows(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """As ``Reader.rows``: one query, whose keys travel as arrays."""
        values = [column.to_pylist() for column in keys.columns]
        errors = self._psycopg.errors
        try:
            found = persistently(
                self._source.title,
                lambda: self._query(by, values),
                passing=(self._psycopg.OperationalError, self._psycopg.InterfaceError),
                retries=self._source.retries,
                wait_s=self._source.wait_s,
            )
        except (
            errors.UndefinedColumn,
            errors.UndefinedTable,
            errors.UndefinedFunction,
            errors.DatatypeMismatch,
            errors.DataError,
        ) as error:
            self.close()
            raise changed(self._source.title, error) from error
        return fitted(self._source.title, found, self._schema, self._source.key)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _query(self, by: Sequence[str], values: Sequence[list[Any]]) -> list[tuple[Any, ...]]:
        self._connect()
        cursor = self._connection.execute(self._statement(by), self._parameters(values))
        return cursor.fetchall()  # type: ignore[no-any-return]

    def _connect(self) -> None:
        """See that there is a connection; psycopg closes one that is lost."""
        if self._connection is not None and not self._connection.closed:
            return
        source, seconds = self._source, self._source.timeout_s
        connection = self._psycopg.connect(
            source.dsn,
            autocommit=True,
            connect_timeout=max(2, round(seconds)),
            # A plan that the server keeps would not survive a change of the table.
            prepare_threshold=None,
            application_name="dovetail look-up",
        )
        connection.execute("SELECT set_config('statement_timeout', %s, false)", [_ms(seconds)])
        connection.execute("SET default_transaction_read_only = on")
        self._types = dict(connection.execute(_COLUMNS, [self._name(connection)]).fetchall())
        self._connection = connection

    def _name(self, connection: Any = None) -> str:
        """The table's name as SQL has it."""
        identifier = self._psycopg.sql.Identifier(*self._source.table.split("."))
        return str(identifier.as_string(connection))

    def _statement(self, by: Sequence[str]) -> Any:
        sql = self._psycopg.sql
        identifier, join = sql.Identifier, sql.SQL(", ").join
        names = [f"k{number}" for number in range(len(by))]
        # The keys get the types of the columns, so that the store's index serves them.
        arrays = [
            sql.SQL("%s::{}[]").format(sql.SQL(self._types.get(column, "text"))) for column in by
        ]
        equal = [
            sql.SQL("t.{} = k.{}").format(identifier(column), identifier(name))
            for column, name in zip(by, names, strict=True)
        ]
        equal += [_restricted(sql, column, values) for column, values in self._source.filters]
        return sql.SQL("SELECT {} FROM {} AS t JOIN unnest({}) AS k({}) ON {}").format(
            join(sql.SQL("t.{}").format(identifier(name)) for name in self._schema.names),
            identifier(*self._source.table.split(".")),
            join(arrays),
            join(map(identifier, names)),
            sql.SQL(" AND ").join(equal),
        )

    def _parameters(self, values: Sequence[list[Any]]) -> list[Any]:
        constants = ([v for v in c if v is not None] for _, c in self._source.filters)
        return [*values, *(c for c in constants if c)]


def _restricted(sql: Any, column: str, constants: Sequence[Any]) -> Any:
    """A column that has one of some constants; those that are not null are a parameter."""
    name = sql.Identifier(column)
    parts = [sql.SQL("t.{} IS NULL").format(name)] if None in constants else []
    if any(value is not None for value in constants):
        parts.append(sql.SQL("t.{} = ANY(%s)").format(name))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))


def _ms(seconds: float) -> str:
    return str(max(1, round(1000 * seconds)))


def _psycopg(title: str) -> Any:
    try:
        import psycopg
        import psycopg.sql
    except ImportError as error:
        raise ConfigurationError(
            title,
            "psycopg is not installed where it is needed",
            "Install dovetail[postgres] for the driver and the workers",
        ) from error
    return psycopg


def postgres(
    dsn: str,
    table: str,
    *,
    key: str | Sequence[str],
    indexes: Sequence[Index] = (),
    where: Where | None = None,
    timeout_s: float = 10.0,
    retries: int = 5,
) -> PostgresLookup:
    """A PostgreSQL table in which delta joins look rows up.

    ``dsn``: a connection string or URL, as psycopg takes it. ``table``: its name, with its schema
    where it is not on the search path (``"sales.orders"``). ``key``: its primary key; ``indexes``:
    the other columns by which it finds rows, ``dt.index("customer")``. ``where``: the table is
    only the rows in which these columns have these constants (a value, or a list of them).

    Each worker process keeps one connection. A batch of keys is one query, of the columns that the
    join needs. ``timeout_s``: for connecting, and for each query; ``retries``: how often a query
    that failed is tried again, after waits that double.

    Raises ``PlanError`` for arguments that cannot serve, ``ConfigurationError`` where psycopg is
    missing (``dovetail[postgres]``). Source: FLIP-486 "Public Interfaces".
    """
    title = f"postgres {table}"
    _psycopg(title)
    if not 1 <= len(table.split(".")) <= 2 or not all(table.split(".")):
        raise PlanError(title, "its name is not one", "Write 'table' or 'schema.table'")
    options = declared(
        title, key=key, indexes=indexes, where=where, timeout_s=timeout_s, retries=retries
    )
    return PostgresLookup(dsn=dsn, table=table, **options)
