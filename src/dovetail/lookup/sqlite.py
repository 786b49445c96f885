"""Look-ups in a SQLite file: a store without a server, for one machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.errors import DataError, PlanError
from dovetail.lookup.fit import changed, fitted
from dovetail.lookup.retry import persistently
from dovetail.lookup.source import Declared, Index, Where, declared

_PARAMETERS_MAX = 30_000
_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class SqliteLookup(Declared):
    """A table of a SQLite file as a look-up source."""

    path: str
    table: str

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"sqlite {self.table}"

    def open(self, schema: pa.Schema) -> SqliteReader:
        """A reader; it opens the file at its first look-up."""
        return SqliteReader(self, schema)


class SqliteReader:
    """One connection that only reads."""

    def __init__(self, source: SqliteLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """As ``Reader.rows``: a query for as many keys as SQLite takes parameters."""
        title = self._source.title
        for name, column in zip(by, keys.columns, strict=True):
            _refuse_type(title, name, column.type)
        found: list[tuple[Any, ...]] = []
        step = max(1, _PARAMETERS_MAX // keys.num_columns)
        for start in range(0, keys.num_rows, step):
            chunk = keys.slice(start, step)
            found += persistently(
                title,
                lambda chunk=chunk: self._query(by, chunk),  # type: ignore[misc]
                passing=(sqlite3.OperationalError,),
                retries=self._source.retries,
                wait_s=self._source.wait_s,
            )
        return fitted(title, found, self._schema, self._source.key)

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _query(self, by: Sequence[str], keys: pa.Table) -> list[tuple[Any, ...]]:
        connection = self._connect()
        deadline = time.monotonic() + self._source.timeout_s
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        columns = [column.to_pylist() for column in keys.columns]
        constants = [v for _, values in self._source.filters for v in values if v is not None]
        parameters = [v for row in zip(*columns, strict=True) for v in row] + constants
        try:
            return connection.execute(self._statement(by, keys.num_rows), parameters).fetchall()
        except sqlite3.OperationalError as error:
            self.close()
            if str(error).startswith(("no such column", "no such table")):
                raise changed(self._source.title, error) from error
            raise

    def _connect(self) -> sqlite3.Connection:
        """The connection to the file that has the path now: it may have been replaced."""
        path = Path(self._source.path)
        file = (path.stat().st_dev, path.stat().st_ino) if path.exists() else None
        if self._connection is not None and file == self._file:
            return self._connection
        self.close()
        self._file = file
        address = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(
            address, uri=True, timeout=self._source.timeout_s, check_same_thread=False
        )
        return self._connection

    def _statement(self, by: Sequence[str], count: int) -> str:
        names = [f"k{number}" for number in range(len(by))]
        row = f"({', '.join('?' * len(by))})"
        # SQLite reads a name in quotes that is no column as a text, so columns are qualified.
        selected = ", ".join(f"t.{_quoted(name)}" for name in self._schema.names)
        equal = [f"t.{_quoted(c)} = k.{n}" for c, n in zip(by, names, strict=True)]
        equal += list(self._restrictions())
        # CROSS JOIN: the keys are the outer loop, the table is searched by its index.
        return (
            f"WITH k({', '.join(names)}) AS (VALUES {', '.join([row] * count)}) "  # noqa: S608
            f"SELECT {selected} FROM k CROSS JOIN {_quoted(self._source.table)} AS t "
            f"WHERE {' AND '.join(equal)}"
        )

    def _restrictions(self) -> Iterator[str]:
        for column, constants in self._source.filters:
            name = f"t.{_quoted(column)}"
            given = sum(value is not None for value in constants)
            parts = [f"{name} IS NULL"] if None in constants else []
            if given:
                parts.append(f"{name} IN ({', '.join('?' * given)})")
            yield f"({' OR '.join(parts)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _refuse_type(title: str, name: str, type_: pa.DataType) -> None:
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_floating, pa.types.is_binary)
    if not any(kind(type_) for kind in kinds):
        raise DataError(
            title,
            f"column {name!r} of type {type_} cannot be looked up, SQLite has no such type",
            "Join by whole numbers, texts or bytes",
        )


def sqlite(
    path: str | Path,
    table: str,
    *,
    key: str | Sequence[str],
    indexes: Sequence[Index] = (),
    where: Where | None = None,
    timeout_s: float = 10.0,
    retries: int = 5,
) -> SqliteLookup:
    """A table of a SQLite file, which every worker must see, in which delta joins look rows up.

    Times, dates, decimals and booleans may be stored as texts or numbers and are read as the
    table's types; what is looked up by is whole numbers, texts or bytes. The other arguments and
    errors are those of ``postgres``. ``timeout_s`` also bounds the wait for a writer's lock.
    """
    title = f"sqlite {table}"
    if not table:
        raise PlanError("sqlite", "the table has no name", "Name a table of the file")
    options = declared(
        title, key=key, indexes=indexes, where=where, timeout_s=timeout_s, retries=retries
    )
    return SqliteLookup(path=str(path), table=table, **options)
