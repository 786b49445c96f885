"""What a look-up source declares, and what a worker asks of it once it is open.

A declaration (``LookupSource``) is plain, hashable data that travels to the workers; ``open`` gives
a ``Reader``, which belongs to one process. A source holds the rows of one table: the same columns
under the same names, of which a look-up reads those that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeAlias

import pyarrow as pa

from dovetail.arguments import ColumnName, ColumnNames, Rule, Text, validated, validated_fields
from dovetail.arrays.timeline import Ints, Mask
from dovetail.errors import PlanError

Constant: TypeAlias = str | int | float | bool | None
Where: TypeAlias = Annotated[
    Mapping[str, Constant | Sequence[Constant]],
    Rule("a mapping of columns to constants: a text, a number, True, False, None, or a list"),
]


@validated_fields
@dataclass(frozen=True)
class Index:
    """Columns by which a store finds whole rows quickly. Informational: that the store has it is
    its owner's promise. ``unique``: at most one row has a given value of them.
    """

    name: Text
    columns: tuple[str, ...]
    unique: bool = False

    @property
    def summary(self) -> str:
        """The index in a readable way.

        >>> index("a", "b").summary
        'INDEX INDEX_a_b (a, b)'
        >>> index("a", unique=True).summary
        'UNIQUE INDEX INDEX_a (a)'
        """
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        return f"{kind} {self.name} ({', '.join(self.columns)})"


@validated
def index(*columns: ColumnName, unique: bool = False, name: Text | None = None) -> Index:
    """An index over ``columns``, by default named ``INDEX_<columns joined by _>``; ``unique``: each
    of its values belongs to at most one row, so a look-up by it gives one row or none, and one that
    gives more fails the batch.

    Raises ``PlanError`` for no columns, and for one that occurs twice. Source: FLIP-486
    "Introduce Index in CatalogTable", "Future Work".
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
    """What a look-up found. ``rows``: n rows; ``key``: int64[n], which of the keys each has;
    ``unfit``: which keys are none that the store's columns could have, so that no row has them.
    """

    rows: pa.Table
    key: Ints
    unfit: Mask


Indexes: TypeAlias = Annotated[
    Sequence[Index], Rule("a list such as [dt.index('a', 'b'), dt.index('c', unique=True)]")
]


class Reader(Protocol):
    """An open source, used by one thread of one process."""

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """The rows whose columns ``by`` are one of ``keys``, in the columns of the schema that the
        reader was opened with, in any order: the store's at one moment.

        A key is a row's if the changelog would give the row that key, to the letter: where the
        store compares more loosely, without case for instance, other keys are not the row's.
        ``keys``: one column for each of ``by``, rows distinct and without nulls.
        Raises ``DataError`` for rows that do not fit the schema and ``ConfigurationError`` where
        the store cannot be reached.
        """

    def close(self) -> None:
        """Release what is open."""


class LookupSource(Protocol):
    """A store that holds a table's rows."""

    @property
    def title(self) -> str:
        """What errors and ``explain`` call it; no secrets."""

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key's columns."""

    @property
    def indexes(self) -> tuple[Index, ...]:
        """The other columns by which it finds rows."""

    @property
    def filters(self) -> tuple[tuple[str, tuple[Constant, ...]], ...]:
        """The constants that columns are restricted to: a row belongs to the table if each of
        these columns has one of its constants.
        """

    def open(self, schema: pa.Schema) -> Reader:
        """Connect, for look-ups of these columns."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What all sources declare."""

    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    filters: tuple[tuple[str, tuple[Constant, ...]], ...] = ()
    timeout_s: float = 10.0
    retries: int = 5
    wait_s: float = field(default=0.1, repr=False)


def declared(
    operator: str,
    *,
    key: ColumnNames,
    indexes: Indexes,
    where: Where | None,
    timeout_s: float,
    retries: int,
) -> dict[str, Any]:
    """The arguments of ``Declared``, checked."""
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
    if value is None or isinstance(value, (str, int, float)):
        return (value,)
    return tuple(value)


def covering(source: LookupSource, columns: Sequence[str]) -> Index | None:
    """The index that finds rows by ``columns``: one that these columns are or include; a unique one
    before others, then the one with most columns.
    """
    known = (Index("PRIMARY KEY", source.key, unique=True), *source.indexes)
    usable = [item for item in known if set(item.columns) <= set(columns)]
    return max(usable, key=lambda item: (item.unique, len(item.columns)), default=None)


def summary(source: LookupSource) -> str:
    """A source in a readable way: its key, its indexes, its filters."""
    parts = [f"PRIMARY KEY ({', '.join(source.key)})"]
    parts += [item.summary for item in source.indexes]
    parts += [f"WHERE {column} IN {list(values)!r}" for column, values in source.filters]
    return f"{source.title}: {'; '.join(parts)}"
