"""Look-ups in a Delta table by its path, read by the worker itself: of each file only what its
statistics do not exclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
            data = self._table.to_pyarrow_dataset()
        except deltalake.exceptions.DeltaError as error:
            self.close()
            raise OSError(str(error)) from error
        missing = [name for name in (*self._schema.names, *by) if name not in data.schema.names]
        if missing:
            raise changed(title, f"there is no column {missing[0]!r}")
        wanted = [
            pc.field(name).isin(column.combine_chunks().cast(data.schema.field(name).type))
            for name, column in zip(by, keys.columns, strict=True)
        ]
        wanted += [
            pc.field(name).isin(pa.array(list(values), data.schema.field(name).type))
            for name, values in self._source.filters
        ]
        found = data.to_table(columns=self._schema.names, filter=reduce(lambda a, b: a & b, wanted))
        try:
            return checked(title, found.cast(self._schema), self._source.key)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                title,
                f"a row does not fit the table's schema: {error}",
                "Give the changelog and the look-up source the same types",
            ) from error


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
