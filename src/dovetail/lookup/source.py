"""The declaration of a look-up source, and the reader that a worker opens from it.

A declaration (``LookupSource``) is plain, hashable data that travels to the workers. Its method
``open`` returns a ``Reader``, which belongs to one process. A source holds the rows of one table,
under the same column names. A look-up reads only the columns that it needs.
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

    The index is informational: the store's owner promises that it exists.
    """

    name: Text
    """The name of the index, for errors and ``explain``."""
    columns: tuple[str, ...]
    """The indexed columns."""
    unique: bool = False
    """True if at most one row has a given value of the columns."""

    @property
    def summary(self) -> str:
        """The index in words.

        >>> index("a", "b").summary
        'INDEX INDEX_a_b (a, b)'
        >>> index("a", unique=True).summary
        'UNIQUE INDEX INDEX_a (a)'
        """
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        return f"{kind} {self.name} ({', '.join(self.columns)})"


@validated
def index(*columns: ColumnName, unique: bool = False, name: Text | None = None) -> Index:
    """Return an index over ``columns``, by default named ``INDEX_<columns joined by _>``.

    ``unique``: True if each value belongs to at most one row. A look-up that finds more fails the
    batch.

    Raises ``PlanError`` for no columns, and for one that occurs twice. Source: FLIP-486 "Introduce
    Index in CatalogTable", "Future Work".
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
    """The rows that a look-up found."""

    rows: pa.Table
    """The n rows found."""
    key: Ints
    """The position of each row's key among the keys asked for: int64[n]."""
    unfit: Mask
    """True for each key asked for that the store's columns cannot have: one boolean per key."""


Indexes: TypeAlias = Annotated[
    Sequence[Index], Rule("a list such as [dt.index('a', 'b'), dt.index('c', unique=True)]")
]


class Reader(Protocol):
    """An open source, used by one thread of one process."""

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows whose columns ``by`` equal one of ``keys``, as the store has them at one
        moment.

        ``keys``: one column for each of ``by``, with distinct rows without nulls. The rows have the
        columns of the schema that the reader was opened with, in any order.

        A row has a key if the changelog would give it that key, to the letter. A store that
        compares more loosely, for instance without case, must not return rows of other keys.

        Raises ``DataError`` for rows that do not fit the schema, ``ConfigurationError`` if the
        store cannot be reached.
        """

    def close(self) -> None:
        """Release all that is open."""


class LookupSource(Protocol):
    """The declaration of a store that holds a table's rows."""

    @property
    def title(self) -> str:
        """The name in errors and ``explain``, without secrets."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key."""

    @property
    def indexes(self) -> tuple[Index, ...]:
        """The other columns by which the store finds rows."""

    @property
    def filters(self) -> tuple[tuple[str, tuple[Constant, ...]], ...]:
        """The constants that each column is restricted to.

        A row belongs to the table if each of these columns has one of its constants.
        """

    def open(self, schema: pa.Schema) -> Reader:
        """Return a reader for look-ups of the columns ``schema``."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The fields that all sources share."""

    key: tuple[str, ...]
    """The columns of the primary key."""
    indexes: tuple[Index, ...] = ()
    """The other columns by which the store finds rows."""
    filters: tuple[tuple[str, tuple[Constant, ...]], ...] = ()
    """The constants that each column is restricted to."""
    timeout_s: float = 10.0
    """The limit in seconds for connecting and for each query."""
    retries: int = 5
    """The number of further attempts after a failure."""
    wait_s: float = field(default=0.1, repr=False)
    """The wait in seconds before the first further attempt; it doubles each time."""


def declared(
    operator: str,
    *,
    key: ColumnNames,
    indexes: Indexes,
    where: Where | None,
    timeout_s: float,
    retries: int,
) -> dict[str, Any]:
    """Return the fields of ``Declared`` by name. Raises ``PlanError`` without a key column."""
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise PlanError(operator, "no key column is given", "Name at least one in key=")
    return {
        "key": keys,
        "indexes": tuple(indexes),
        "filters": tuple((column, _constants(value)) for column, value in (where or {}).items()),
        "timeout_s": float(timeout_s),
        "retries": retries,
    }


def _constants(value: Constant | Sequence[Constant]) -> tuple[Constant, ...]:
    """Return a constant or a list of constants as a tuple."""
    if value is None or isinstance(value, (str, int, float)):
        return (value,)
    return tuple(value)


def covering(source: LookupSource, columns: Sequence[str]) -> Index | None:
    """Return the index that serves a look-up by ``columns``, or None if there is none.

    All columns of an index must be in ``columns``. Unique indexes come first, then those with most
    columns. The primary key is an index, too.
    """
    known = (Index("PRIMARY KEY", source.key, unique=True), *source.indexes)
    usable = [item for item in known if set(item.columns) <= set(columns)]
    return max(usable, key=lambda item: (item.unique, len(item.columns)), default=None)


def summary(source: LookupSource) -> str:
    """Return a source in words: its key, its indexes, its filters."""
    parts = [f"PRIMARY KEY ({', '.join(source.key)})"]
    parts += [item.summary for item in source.indexes]
    parts += [f"WHERE {column} IN {list(values)!r}" for column, values in source.filters]
    return f"{source.title}: {'; '.join(parts)}"
