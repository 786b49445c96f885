"""The columns in which a changelog's rows travel to an input that reads them by key, as plain data.

An input (``physical.inputs.Input``) knows Spark's frames. Workers get what they need of it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.arrays.equality import canonical_key
from dovetail.base.columns import FOREIGN, HASH, aggregated_name, foreign_name
from dovetail.physical.inputs import Input
from dovetail.physical.source import SourceSpec


@dataclass(frozen=True)
class TravelColumns:
    """The columns in which rows of a changelog travel to one input, and how they are made.

    An example: a join by foreign key reads orders with the key ``id`` and the values ``customer``
    and ``amount``, by ``customer``.

    | column | content |
    |---|---|
    | ``_hash`` | hash of ``id`` |
    | ``_event_time``, ``_deleted`` | as they come |
    | ``id`` | as it comes |
    | ``_foreign``, ``_f0`` | hash of ``customer``, then ``customer`` |
    | ``customer``, ``amount`` | as they come |
    """

    schema: pa.Schema
    """The columns (``SourceSpec.travel_schema``)."""
    key: tuple[str, ...]
    """The changelog's columns by which the input finds rows."""
    own_key: tuple[str, ...]
    """The changelog's own key columns."""
    foreign: tuple[str, ...]
    """The columns of the foreign key; empty for none, or if it has expressions."""
    references: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """For each foreign key of a star: its columns, and the names under which its hash and they
    travel."""
    used: tuple[str, ...]
    """The columns that travel under the names ``_v0``, ``_v1`` and so on; empty for none."""

    @classmethod
    def of(cls, input_: Input, source: SourceSpec) -> TravelColumns:
        """Return the travelling columns of ``input_``, whose rows have the layout ``source`` in the
        stage that reads them.
        """
        foreign = [item for item, _ in input_.foreign if isinstance(item, str)]
        return cls(
            source.travel_schema,
            input_.key,
            tuple(input_.source.key.names),
            tuple(foreign) if len(foreign) == len(input_.foreign) else (),
            tuple(
                (
                    tuple(name for name, _ in reference),
                    tuple(field.name for field in input_.star_key_fields(number)),
                )
                for number, reference in enumerate(input_.references)
            ),
            input_.used or (),
        )

    def travelling_rows(
        self,
        rows: pa.Table,
        key_hash: Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]],
        foreign: Sequence[pa.Array] | None = None,
    ) -> pa.Table:
        """Return ``rows`` as a table of ``schema``, row by row. Keys are canonical: one NaN, no
        negative zero.

        ``rows``: the changelog's columns, ``_event_time`` in microseconds, ``_deleted``, and the
        columns on order that the input's rows bring. ``key_hash``: a function of a key's canonical
        columns that returns int64[rows]. ``foreign``: the columns of a foreign key that has
        expressions; None to take those named ``self.foreign``.
        """
        columns = {name: rows.column(name).combine_chunks() for name in rows.schema.names}
        foreign = [columns[name] for name in self.foreign] if foreign is None else foreign
        columns |= {name: canonical_key(columns[name]) for name in self.own_key}

        def hashed(parts: Sequence[pa.Array]) -> Iterator[pa.Array]:
            """Yield the hash of a key's columns ``parts``, then these, made canonical."""
            canonical = [*map(canonical_key, parts)]
            yield pa.array(key_hash(canonical), pa.int64())
            yield from canonical

        key = [*hashed([columns[name] for name in self.key])]
        if foreign:
            names = [FOREIGN, *map(foreign_name, range(len(foreign)))]
            columns |= zip(names, hashed(foreign), strict=True)
        for parts, names_of_star in self.references:
            columns |= zip(names_of_star, hashed([columns[p] for p in parts]), strict=True)
        columns |= {aggregated_name(n): columns[name] for n, name in enumerate(self.used)}
        columns |= zip([HASH, *self.key], key, strict=True)
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)
