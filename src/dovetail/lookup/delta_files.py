"""Look-ups in a Delta table by its path, read by the worker itself: of each file only what its
statistics do not exclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.errors import ConfigurationError, DataError
from dovetail.lookup.fit import changed, checked
from dovetail.lookup.retry import persistently
from dovetail.lookup.source import Declared, Index, Where, declared


@dataclass(frozen=True, kw_only=True)
class DeltaFilesLookup(Declared):
    """A Delta table as a look-up source."""

    path: str

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"delta table {Path(self.path).name}"

    def open(self, schema: pa.Schema) -> DeltaFilesReader:
        """A reader; it reads the table's log at its first look-up."""
        return DeltaFilesReader(self, schema)


class DeltaFilesReader:
    """The table's latest version at each look-up."""

    def __init__(self, source: DeltaFilesLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._table: Any = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """As ``Reader.rows``: a scan that skips files and row groups without such keys."""
        return persistently(
            self._source.title,
            lambda: self._scan(by, keys),
            passing=(OSError,),
            retries=self._source.retries,
            wait_s=self._source.wait_s,
        )

    def close(self) -> None:
        """Forget the table."""
        self._table = None

    def _scan(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        title = self._source.title
        deltalake = _deltalake(title)
        try:
            if self._table is None:
                self._table = deltalake.DeltaTable(self._source.path)
            else:
                self._table.update_incremental()
            known = {field.name for field in self._table.schema().fields}
            missing = [name for name in (*self._schema.names, *by) if name not in known]
            if missing:
                raise changed(title, f"there is no column {missing[0]!r}")
            found = self._query(deltalake, by, keys)
        except deltalake.exceptions.DeltaError as error:
            self.close()
            raise OSError(str(error)) from error
        try:
            return checked(title, found.cast(self._schema), self._source.key)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                title,
                f"a row does not fit the table's schema: {error}",
                "Give the changelog and the look-up source the same types",
            ) from error

    def _query(self, deltalake: Any, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """Rows whose columns have one of the keys' values each: more than those asked for, where
        there are several columns.
        """
        wanted = [
            self._one_of(name, column.to_pylist())
            for name, column in zip(by, keys.columns, strict=True)
        ]
        wanted += [self._one_of(name, values) for name, values in self._source.filters]
        columns = ", ".join(map(_quoted, self._schema.names))
        query = f"SELECT {columns} FROM t WHERE {' AND '.join(wanted)}"  # noqa: S608
        return pa.table(
            deltalake.QueryBuilder().register("t", self._table).execute(query).read_all()
        )

    def _one_of(self, name: str, values: Sequence[Any]) -> str:
        literals = [_literal(self._source.title, name, v) for v in values if v is not None]
        parts = [f"{_quoted(name)} IS NULL"] if None in values else []
        if literals:
            parts.append(f"{_quoted(name)} IN ({', '.join(literals)})")
        return f"({' OR '.join(parts)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(title: str, name: str, value: Any) -> str:
    if isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise DataError(
        title,
        f"column {name!r} cannot be looked up by a {type(value).__name__}",
        "Join by whole numbers or texts",
    )


def _deltalake(title: str) -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise ConfigurationError(
            title,
            "deltalake is not installed where it is needed",
            "Install dovetail[deltalake] for the driver and the workers",
        ) from error
    return deltalake


def delta_files(
    path: str | Path,
    *,
    key: str | Sequence[str],
    indexes: Sequence[Index] = (),
    where: Where | None = None,
    retries: int = 5,
) -> DeltaFilesLookup:
    """A Delta table, by a path that all workers read, in which delta joins look rows up.

    A look-up reads the table's latest version, without Spark, by the package ``deltalake``. Its
    indexes are how its files are laid out: cluster or sort it by what is looked up, or each batch
    scans it all. The other arguments and errors are those of ``postgres``; the package's extra is
    ``dovetail[deltalake]``.
    """
    title = f"delta table {Path(path).name}"
    _deltalake(title)
    options = declared(title, key=key, indexes=indexes, where=where, timeout_s=1.0, retries=retries)
    return DeltaFilesLookup(path=str(path), **options)
