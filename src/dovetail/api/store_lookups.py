"""Streams whose records are looked up in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.api.topology import Topology
from dovetail.base.validation import Text, validated
from dovetail.laws.joins.look_up import HowAnswered
from dovetail.lookup.source import LookupSource
from dovetail.plan.joins.join_keys import On
from dovetail.plan.joins.look_up import ACache, look_up
from dovetail.plan.select import Selection
from dovetail.plan.types.schemas import Columns
from dovetail.plan.views import Errors

if TYPE_CHECKING:
    from typing_extensions import Self


class LooksUp(Topology):
    """The look-ups of a stream's records in stores."""

    @validated
    def look_up(
        self,
        source: LookupSource,
        *,
        columns: Columns,
        on: On | None = None,
        how: HowAnswered = "inner",
        select: Selection | None = None,
        errors: Errors = "fail",
        cache: ACache | None = None,
        name: Text | None = None,
    ) -> Self:
        """Join with a store that has no changelog: each record beside the store's rows for it.

        Law: a record is answered by the rows that the store has at some moment while the record's
        micro-batch is processed. With ``cache``, it may be the rows of up to ``max_age`` before.
        Nothing waits, nothing is stored, and nothing comes when the store changes. A micro-batch
        that is run again may be answered otherwise; only joins with tables are repeatable. Records
        keep their order, their key and their time.

        ``source``: ``dt.postgres(...)``, ``dt.dbapi(...)``, ``dt.sqlite(...)`` or
        ``dt.delta_files(...)``. ``columns``: the store's columns that may be read and their types,
        its key among them: a text as in SQL (``"id long, city string"``), a ``StructType``, a
        pyarrow schema, or a mapping of names to types.

        ``on``: columns of this stream that equal the source's key, in its order. Or a mapping of
        this stream's columns to the source's, which are or include its key or one of its indexes.
        Left out, both keys, which then have the same names. A null equals nothing.

        A record that meets several rows, by an index, comes once with each, in the order of the
        store's primary key. ``how``: ``"inner"`` leaves a record out that meets none, ``"left"``
        gives it nulls. A record without a value is dropped and counted, and with ``"inner"`` one
        with a null in ``on``.

        ``select``, ``errors``: as in ``Table.join``; the row of the store is ``right``. By default
        the values of both, but for the store's columns in ``on``. ``cache``: as ``dt.cache``
        describes; by default a task asks for each key once in a micro-batch. ``name``: the
        look-up's name in errors and the metric ``<name>.lookups``.

        Raises ``PlanError`` where types differ, names are unknown or ambiguous, and no index is
        among the columns. Source: Flink, "Lookup Join".
        """
        plan = look_up(
            self.plan,
            source,
            columns=columns,
            on=on,
            how=how,
            select=select,
            errors=errors,
            cached=cache,
            label=name,
        )
        return type(self)(plan)
